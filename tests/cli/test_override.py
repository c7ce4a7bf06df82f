# SPDX-License-Identifier: Apache-2.0
"""Overrides through the command line."""

from __future__ import annotations

from tests.cli import test_limits

COLUMNS = ["id", "project_id", "resource", "limit", "from", "until", "is_active", "reason"]


class OverrideTest(test_limits.LimitTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.done("set", "--default", "gpu=5")

    def test_set_list_and_cancel(self) -> None:
        self.assertEqual("", self.call("override", "list").out)
        self.prepare("project set p --no-parent", "project set q --no-parent")
        self.done("set", "p", "gpu=40", "fpga=-1", "--until", "2999-12-05T18:00Z", "--reason", "workshop")
        self.done("set", "q", "gpu=0", "--from", "2998-01-01T10:00+02:00", "--until", "2999-01-01")
        rows = self.good("override", "list")
        self.assertEqual([COLUMNS] * 3, [list(row) for row in rows])
        until = "2999-12-05T18:00:00.000000Z"
        self.assertEqual(
            [
                ("p", "fpga", -1, True, "workshop", until),
                ("p", "gpu", 40, True, "workshop", until),
                ("q", "gpu", 0, False, None, "2999-01-01T00:00:00.000000Z"),
            ],
            self.columns("override list", "project_id resource limit is_active reason until"),
        )
        self.assertEqual("2998-01-01T08:00:00.000000Z", rows[2]["from"])
        self.assertIn("unlimited", self.call("override", "list").out)
        sources = {row["resource"]: list(row.values())[2:] for row in self.good("show", "p")}
        self.assertEqual({"fpga": [-1, False, "override", until], "gpu": [40, False, "override", until]}, sources)
        self.done("set", "gpu=7", "p")
        (row,) = self.good("show", "p", "--resource", "gpu")
        self.assertEqual([40, True, "override", until], list(row.values())[2:])
        self.done("unset", "--resource", "gpu", "p")
        self.assertEqual(1, len(self.good("override", "list", "--project", "q")))
        self.good("reserve", "--project", "p", "gpu=40")
        self.done("override", "delete", rows[1]["id"], rows[2]["id"], "--reason", "over")
        self.assertEqual(["fpga"], [row["resource"] for row in self.good("override", "list")])
        over = self.call("list", "--over", "-f", "json")
        self.assertEqual((1, 5), (over.status, over.json[0]["limit"]))
        self.assertEqual(
            ("cancel override", until), self.columns("history list --project p --limit 1", "action until")[0]
        )
        self.assertEqual([("2998-01-01T08:00:00.000000Z",)], self.columns("history list --project q --limit 1", "from"))
        span = "from 2998-01-01T08:00:00Z until 2999-01-01T00:00:00Z"
        self.assertIn(f"| 0 {span} |", self.call("history", "list", "--project", "q").out)

    def test_bad_usage(self) -> None:
        until = ("--until", "2999-01-01")
        self.refused_each(
            2,
            {
                "set --default gpu=1 --until 2999-01-01": "--until needs a project",
                "set gpu=1 p --from 2999-01-01": "--until",
                "set gpu=1 p --until noon": "2026-12-01T08:00Z",
            },
        )
        self.misused("override", "delete")
        ended = self.call("set", "gpu=1", "fpga=1", "new", *until)
        ids = " ".join(row["id"] for row in self.good("override", "list"))
        self.assertIn(f"If the id is wrong, remove the limit with `override delete {ids}`.", ended.err)
        self.done("override", "delete", *ids.split())
