# SPDX-License-Identifier: Apache-2.0
"""The history of providers and inventories through the command line."""

from __future__ import annotations

import sqlalchemy as sa
from oslo_context import context

from cyborg_quota import Inventory
from tests import fixtures
from tests.cli import base

COLUMNS = [
    *("id", "at", "actor", "action", "provider", "resource", "change", "reason"),
    *("actor_project_id", "request_id"),
]


class CapacityHistoryTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.good("capacity", "provider", "add", "n1", "--reason", "rack 7")
        self.good("capacity", "inventory", "set", "n1", "gpu=8")
        self.good("capacity", "inventory", "set", "n1", "gpu=9", "fpga=1", "--reserved", "1", "--reason", "repair")

    def test_rows(self) -> None:
        rows = self.good("capacity", "history")
        self.assertEqual([COLUMNS] * 4, [list(row) for row in rows])
        units = "min_unit 1, max_unit {}, step_size 1, allocation_ratio 1"
        self.assertEqual(
            [
                ("set inventory", "n1", "gpu", "total 8 -> 9, reserved 0 -> 1, max_unit 8 -> 9", "repair"),
                ("set inventory", "n1", "fpga", f"total 1, reserved 1, {units.format(1)}", "repair"),
                ("set inventory", "n1", "gpu", f"total 8, reserved 0, {units.format(8)}", None),
                ("add provider", "n1", None, "name n1, can_host True", "rack 7"),
            ],
            [tuple(row[name] for name in COLUMNS[3:-2]) for row in rows],
        )
        self.assertTrue(rows[0]["at"].endswith("Z"))
        self.assertTrue(rows[0]["actor"].startswith("os:"))

    def test_the_project_of_the_user(self) -> None:
        """Every format has it, and the request ID; a table with --long, or if it is selected."""
        alice = context.RequestContext(
            user_id="alice", project_id="operations", request_id="req-7", is_admin=True, overwrite=False
        )
        engine = fixtures.make_engine(self.url)
        engine.capacity.set_inventories(alice, "n1", {"gpu": Inventory(5)})
        engine.close()
        row = self.good("capacity", "history", "--limit", "1")[0]
        self.assertEqual(("alice", "operations", "req-7"), tuple(row[name] for name in ("actor", *COLUMNS[-2:])))
        argv = ("capacity", "history", "--limit", "1")
        self.assertNotIn("operations", self.call(*argv).out)
        for more in (["--long"], ["-c", "actor_project_id"], ["-f", "csv"], ["-f", "yaml"]):
            self.assertIn("operations", self.call(*argv, *more).out)

    def test_filters(self) -> None:
        self.assertEqual(2, len(self.good("capacity", "history", "--resource", "gpu")))
        page = self.good("capacity", "history", "--limit", "3", "--provider", "n1")
        rest = self.good("capacity", "history", "--marker", page[-1]["id"], "--since", "1h")
        self.assertEqual(["add provider"], [row["action"] for row in rest])
        self.assertEqual([], self.good("capacity", "history", "--provider", "n9"))

    def test_reasons_of_all_commands(self) -> None:
        why = ("--reason", "because")
        self.good("pod", "add", "east")
        self.good("capacity", "provider", "set", "n1", "--pod", "east", *why)
        path = self.directory / "nodes.csv"
        path.write_text("provider,resource,total\nn1,gpu,3\n")
        self.good("capacity", "import", str(path), *why)
        for argv in (("inventory", "remove", "n1", "gpu"), ("provider", "remove", "n1")):
            self.assertEqual(0, self.call("capacity", *argv, *why).status)
        rows = self.good("capacity", "history")
        self.assertEqual(["because"] * 5 + ["repair"], [row["reason"] for row in rows][:6])
        self.assertEqual("removed (name n1, can_host True, pod east)", rows[0]["change"])
        self.assertEqual("pod none -> east", rows[4]["change"])
        self.assertIn("reason", self.refused(2, "capacity", "provider", "add", "n2", "--reason", ""))

    def test_verify_and_checkpoint(self) -> None:
        self.assertEqual([], self.good("capacity", "history", "--verify"))
        self.assertIn("--resource", self.refused(2, "capacity", "history", "--verify", "--resource", "gpu"))
        sql = sa.create_engine(self.url, poolclass=sa.NullPool)
        with sql.begin() as connection:
            connection.exec_driver_sql("UPDATE inventories SET reserved = 2 WHERE resource = 'gpu'")
        ended = self.call("capacity", "history", "--verify", "-f", "csv")
        self.assertEqual(1, ended.status)
        self.assertIn("total 9, reserved 1", ended.out)
        self.assertIn("total 9, reserved 2", ended.out)
        self.assertEqual({"recorded": 4}, self.good("capacity", "checkpoint", "--reason", "repaired"))
        self.assertEqual([], self.good("capacity", "history", "--verify"))
