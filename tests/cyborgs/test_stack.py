# SPDX-License-Identifier: Apache-2.0
"""The services of the unmodified Cyborg, which the other tests kill and start again."""

from __future__ import annotations

import uuid

from tests.cyborgs import base
from tests.cyborgs.records import HANDLES_PER_HOST
from tests.servers import machine


class TestCrash(base.StackTestCase):
    def test_a_killed_conductor_serves_again(self) -> None:
        conductor = self.stack.conductor
        before = conductor.pids
        conductor.kill()
        self.assertEqual([False] * len(before), [machine.alive(pid) for pid in before])
        conductor.start()
        self.bind(self.client.created(self.profile))
        self.assertNotIn(conductor.pid, before)

    def test_the_api_is_started_again(self) -> None:
        self.stack.api.kill()
        self.assertRaises(OSError, self.client.create, self.profile)
        self.stack.api.start()
        self.bind(self.client.created(self.profile))


class TestTwoConductors(base.StackTestCase):
    def test_one_is_killed(self) -> None:
        other = self.stack.add_conductor("second")
        self.stack.conductor.kill()
        self.bind(self.client.created(self.profile))
        self.assertIn("Bound", other.output())


class TestTwoHosts(base.StackTestCase):
    hosts = 2

    def test_each_has_its_own_handles(self) -> None:
        arqs = self.client.created(self.profile, 2 * HANDLES_PER_HOST)
        for host, rp in zip(self.stack.hosts, self.rps, strict=True):
            here, arqs = arqs[:HANDLES_PER_HOST], arqs[HANDLES_PER_HOST:]
            self.assertEqual(202, self.client.bind(here, str(uuid.uuid4()), rp, host).status)
        self.assertEqual(2 * HANDLES_PER_HOST, self.records.handles_in_use())
