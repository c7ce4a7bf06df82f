# SPDX-License-Identifier: Apache-2.0
"""Behaviour of the unmodified Cyborg on which the other tests depend."""

from __future__ import annotations

import uuid

from tests.cyborgs import base
from tests.cyborgs.records import HANDLES_PER_HOST
from tests.servers import machine


class TestBind(base.StackTestCase):
    def test_bind_unbind_delete(self) -> None:
        [arq] = self.client.created(self.profile)
        self.assertEqual(["Initial"], self.records.states([arq]))

        instance = self.bind([arq])
        self.assertEqual(["Bound"], self.records.states([arq]))
        self.assertEqual({self.client.project_id: 1}, self.records.bound())
        self.assertEqual(instance, self.records.arqs()[arq].instance_uuid)
        self.assertEqual({arq: "completed"}, self.stack.nova.told_of(instance))
        self.assertEqual((200, "Bound"), (self.client.get(arq).status, self.client.get(arq).body["state"]))
        self.assertEqual(1, self.records.handles_in_use())

        self.assertEqual(202, self.client.unbind([arq]).status)
        self.assertEqual((["Unbound"], 0), (self.records.states([arq]), self.records.handles_in_use()))
        self.assertEqual(204, self.client.delete([arq]).status)
        self.assertEqual([None], self.records.states([arq]))

    def test_delete_by_instance_repeatedly(self) -> None:
        arqs = self.client.created(self.new_profile({"resources:FPGA": "2"}))
        instance = self.bind(arqs)
        self.assertEqual(2, self.records.handles_in_use())
        for _ in range(2):
            self.assertEqual(204, self.client.delete_instance(instance).status)
        self.assertEqual(({}, 0), (self.records.arqs(), self.records.handles_in_use()))

    def test_an_admin_names_the_project_to_charge(self) -> None:
        [arq] = self.admin.created(self.profile)
        self.admin.bind([arq], str(uuid.uuid4()), self.rp, project_id=self.client.project_id)
        self.assertEqual({self.client.project_id: 1}, self.records.bound())

    def test_only_a_service_binds(self) -> None:
        [arq] = self.client.created(self.profile)
        self.client.service_roles = ("member",)
        answer = self.client.bind([arq], str(uuid.uuid4()), self.rp)
        self.assertEqual(403, answer.status)
        self.assertIn("requires a service token", answer.message)
        self.assertEqual(["Initial"], self.records.states([arq]))

    def test_another_projects_is_not_found(self) -> None:
        [arq] = self.client.created(self.profile)
        self.assertEqual(404, self.stack.client(base.new_id()).get(arq).status)


class TestFailedBinds(base.StackTestCase):
    def test_more_than_there_are(self) -> None:
        arqs = self.client.created(self.profile, HANDLES_PER_HOST + 1)
        instance = str(uuid.uuid4())
        answer = self.client.bind(arqs, instance, self.rp)
        self.assertEqual(404, answer.status)
        self.assertIn("AttachHandle not found", answer.message)
        self.assertEqual(["Bound"] * HANDLES_PER_HOST + ["BindFailed"], self.records.states(arqs))
        self.assertEqual({}, self.stack.nova.told_of(instance))

    def test_an_unknown_provider(self) -> None:
        [arq] = self.client.created(self.profile)
        self.assertEqual(404, self.client.bind([arq], str(uuid.uuid4()), str(uuid.uuid4())).status)
        self.assertEqual((["BindStarted"], 0), (self.records.states([arq]), self.records.handles_in_use()))

    def test_a_job_fails(self) -> None:
        """Without an image service for the bitstream, Cyborg does not change the state of the ARQ."""
        profile = self.new_profile({"resources:FPGA": "1", "accel:bitstream_id": str(uuid.uuid4())})
        arqs = self.client.created(profile)
        instance = self.bind(arqs)
        self.stack.conductor.wait_for("Error in ARQ bind async job_monitor")
        self.assertEqual((["BindStarted"], {}), (self.records.states(arqs), self.stack.nova.told_of(instance)))

    def test_nova_fails(self) -> None:
        [arq] = self.client.created(self.profile)
        with self.stack.nova.failing():
            self.assertEqual(400, self.client.bind([arq], str(uuid.uuid4()), self.rp).status)
        self.assertEqual(["Bound"], self.records.states([arq]))


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


class TestChosen(base.StackTestCase):
    config = "[DEFAULT]\nbind_timeout = 61\ndebug = true\n"

    def test_the_configuration_of_a_class(self) -> None:
        self.bind(self.client.created(self.profile))
        output = self.stack.conductor.output()
        self.assertIn("DEBUG", output)
