# SPDX-License-Identifier: Apache-2.0
"""usage list, check, audit and heal, through the command line."""

from __future__ import annotations

import sqlalchemy as sa

from tests.cli import base

USAGE = ["project_id", "resource", "limit", "used", "reserved", "available"]


class UsageTest(base.CliTestCase):
    def test_list(self) -> None:
        self.limit("gpu:4")
        self.good("reserve", "--project", "p2", "gpu=3", "fpga=1")
        self.good("reserve", "--project", "p1", "--consumer", "c", "gpu=1")
        self.good("commit", "--project", "p1", "--consumer", "c")
        rows = self.good("usage", "list")
        self.assertEqual([USAGE] * 3, [list(row) for row in rows])
        self.assertEqual(
            [("p1", "gpu", 4, 1, 0, 3), ("p2", "fpga", -1, 0, 1, None), ("p2", "gpu", 4, 0, 3, 1)],
            [tuple(row.values()) for row in rows],
        )

    def test_list_of_a_project_shows_unused_resources(self) -> None:
        self.limit("gpu:0")
        rows = self.good("usage", "list", "--project", "new")
        self.assertEqual(
            [("new", "fpga", -1, 0, 0, None), ("new", "gpu", 0, 0, 0, 0)], [tuple(row.values()) for row in rows]
        )
        self.assertIn("Invalid project_id", self.refused(2, "usage", "list", "--project", " "))

    def test_a_lowered_limit_shows_as_negative(self) -> None:
        self.good("reserve", "--project", "p1", "gpu=3")
        self.limit("gpu:1")
        self.assertEqual(-2, self.good("usage", "list")[0]["available"])

    def test_check(self) -> None:
        self.limit("gpu:2,fpga:1")
        self.assertEqual([], self.good("check", "--project", "p1", "gpu=2", "fpga=1"))
        ended = self.call("check", "--project", "p1", "gpu=3", "fpga=2", "-f", "json")
        self.assertEqual((1, ""), (ended.status, ended.err))
        expected = ["project_id", "resource", "scope", "limit", "used", "reserved", "requested"]
        self.assertEqual([expected] * 2, [list(row) for row in ended.json])
        self.assertEqual(
            [("p1", "fpga", "project", 1, 0, 0, 2), ("p1", "gpu", "project", 2, 0, 0, 3)],
            [tuple(row.values()) for row in ended.json],
        )
        self.assertEqual([], self.good("usage", "list"))

    def test_check_that_passes_prints_nothing(self) -> None:
        ended = self.call("check", "--project", "p1", "gpu=2")
        self.assertEqual((0, "", ""), (ended.status, ended.out, ended.err))

    def test_check_of_bad_input(self) -> None:
        self.misused("check", "--project", "p1", "gpu=x")
        self.misused("check", "gpu=1")
        self.assertIn("Unknown resource", self.refused(2, "check", "--project", "p1", "tpu=1"))

    def test_audit_and_heal(self) -> None:
        self.good("reserve", "--project", "p1", "gpu=2")
        self.assertEqual([], self.good("usage", "audit"))
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text("UPDATE quota_usages SET used = 7, reserved = 1"))
        row = {
            "project_id": "p1",
            "resource": "gpu",
            "recorded_used": 7,
            "expected_used": 0,
            "recorded_reserved": 1,
            "expected_reserved": 2,
            "recorded_subtree": 2,
            "expected_subtree": 2,
        }
        found = self.call("usage", "audit", "-f", "json")
        self.assertEqual((1, "", [row]), (found.status, found.err, found.json))
        healed = self.call("usage", "heal", "-f", "json")
        self.assertEqual((0, [row]), (healed.status, healed.json))
        self.assertEqual([], self.good("usage", "audit"))
        self.assertEqual([], self.good("usage", "heal"))

    def test_audit_of_a_missing_counter(self) -> None:
        self.good("reserve", "--project", "p1", "gpu=2")
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text("DELETE FROM quota_usages"))
        found = self.call("usage", "audit", "-f", "json")
        self.assertEqual(
            (1, [(None, 2)]),
            (found.status, [(row["recorded_reserved"], row["expected_reserved"]) for row in found.json]),
        )
