# SPDX-License-Identifier: Apache-2.0
"""Two pods that are regions of one cloud: `pod measure` measures both by their Placements."""

from __future__ import annotations

import logging
from typing import Any

import fixtures as fx

from tests.cli import base
from tests.integration import regions
from tests.integration import server as servers
from tests.servers import sharing

PODS = ("north", "south")
LIMITS_SECONDS = (3, 15, 60)
"""Time limits: on a busy machine, the region that runs may need more than the first one."""


class PodRegionsTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        # The thread of a measurement that was given up may write its warning to the stderr of a later command.
        self.patch(logging.getLogger("keystoneauth.discover"), "disabled", True)
        # Those of openstacksdk would be printed to stderr.
        self.useFixture(fx.WarningsFilter([{"action": "ignore", "category": PendingDeprecationWarning}]))
        self.keystone = sharing.need(self, "Keystone", servers.running, "flat")
        found = regions.Regions(self.keystone, len(PODS))
        self.regions = sharing.need(self, "Placement", self.useFixture, found).regions
        for pod, region in zip(PODS, self.regions, strict=True):
            self.good("pod", "create", pod, "--threshold", "75", "--endpoint", f"{regions.CLOUD}/{region.name}")

    def collect(self, limit_seconds: int = LIMITS_SECONDS[-1], *, status: int = 0) -> dict[str, Any]:
        """Collect; returns (capacity, used, error) of each pod."""
        ended = self.call("pod", "measure", "--timeout", str(limit_seconds), "-f", "json")
        self.assertEqual(status, ended.status, ended.out + ended.err)
        self.assertNotIn(self.keystone.password, ended.out + ended.err)
        rows = ended.json
        self.assertTrue(all(row["resource"] in ("gpu", None) for row in rows), rows)
        return {row["pod"]: (row["capacity"], row["used"], row["error"]) for row in rows}

    def selected(self) -> tuple[str, str]:
        row = self.good("pod", "select", "--project", "film", "gpu=1")
        return row["pod"], row["reason"]

    def test_one_region_stops(self) -> None:
        north, south = self.regions
        node = north.add_node("PGPU", 8)
        for amount in (1, 3):
            north.allocate(node, "PGPU", amount)
        for total in (4, 4):
            south.add_node("PGPU", total)
        south.add_node("VCPU", 64)
        self.assertEqual({"north": (8, 4, None), "south": (8, 0, None)}, self.collect())
        self.assertEqual(("north", "first"), self.selected())

        # One does not answer: its process is suspended, and keeps its port.
        north.allocate(node, "PGPU", 2)
        south.placement.pause()
        for limit_seconds in LIMITS_SECONDS:
            found = self.collect(limit_seconds, status=1)
            self.assertEqual((8, 0, f"It did not answer within {limit_seconds} seconds."), found["south"])
            if found["north"][2] is None:
                break
        self.assertEqual((8, 6, None), found["north"])
        # The selection continues, with the new figures of the one and the last figures of the other.
        self.assertEqual(("south", "full"), self.selected())

        # It is gone; and other errors, none of which shows a password. (When it is killed, requests that still wait for
        # it in this process log a warning: no command may run meanwhile that must print nothing.)
        self.good("pod", "create", "unknown", "--endpoint", "nowhere")
        self.good("pod", "create", "wrong", "--endpoint", f"wrong/{north.name}")
        south.placement.kill()
        found = self.collect(status=1)
        self.assertEqual(((8, 6, None), (8, 0)), (found["north"], found["south"][:2]))
        for pod, reason in (
            (
                "south",
                f"cannot be reached; check auth_url and endpoint_override of cloud 'pods', region '{south.name}'",
            ),
            ("unknown", "there is no cloud 'nowhere' in clouds.yaml"),
            ("wrong", "the user of cloud 'wrong'"),
        ):
            self.assertIn(reason, found[pod][2])
        times = {row["name"]: row["measured_at"] for row in self.good("pod", "list")}
        self.assertLessEqual(times["south"], times["north"])
