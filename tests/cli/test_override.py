# SPDX-License-Identifier: Apache-2.0
"""Overrides through the command line."""

from __future__ import annotations

from tests.cli import test_limits

COLUMNS = ["id", "project_id", "resource", "limit", "from", "until", "is_active", "reason"]


class OverrideTest(test_limits.LimitTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.done("limit", "set", "--default", "gpu=5")

    def test_set_list_and_cancel(self) -> None:
        self.assertEqual("", self.call("limit", "override", "list").out)
        set_p, set_q = ("limit", "set", "--project", "p"), ("limit", "set", "--project", "q")
        for project in ("p", "q"):
            self.done("project", "add", project)
        self.done(*set_p, "gpu=40", "fpga=-1", "--until", "2999-12-05T18:00Z", "--reason", "workshop")
        self.done(*set_q, "gpu=0", "--from", "2998-01-01T10:00+02:00", "--until", "2999-01-01")
        rows = self.good("limit", "override", "list")
        self.assertEqual([COLUMNS] * 3, [list(row) for row in rows])
        self.assertEqual(
            [("p", "fpga", -1, True, "workshop"), ("p", "gpu", 40, True, "workshop"), ("q", "gpu", 0, False, None)],
            [tuple(row[name] for name in ("project_id", "resource", "limit", "is_active", "reason")) for row in rows],
        )
        self.assertEqual("2998-01-01T08:00:00.000000Z", rows[2]["from"])
        self.assertEqual("2999-12-05T18:00:00.000000Z", rows[1]["until"])
        self.assertIn("unlimited", self.call("limit", "override", "list").out)
        sources = {row["resource"]: list(row.values())[2:] for row in self.good("limit", "list", "--project", "p")}
        until = "2999-12-05T18:00:00.000000Z"
        self.assertEqual({"fpga": [-1, False, "override", until], "gpu": [40, False, "override", until]}, sources)
        self.done("limit", "set", "--project", "p", "gpu=7")
        (row,) = self.good("limit", "list", "--project", "p", "--resource", "gpu")
        self.assertEqual([40, True, "override", until], list(row.values())[2:])
        self.done("limit", "unset", "--project", "p", "gpu")
        for kind in ("csv", "yaml", "value"):
            self.assertIn("workshop", self.call("limit", "override", "list", "-f", kind).out)
        self.assertEqual(1, len(self.good("limit", "override", "list", "--project", "q")))
        self.good("reserve", "--project", "p", "gpu=40")
        self.done("limit", "override", "cancel", rows[1]["id"], rows[2]["id"], "--reason", "over")
        self.assertEqual(["fpga"], [row["resource"] for row in self.good("limit", "override", "list")])
        over = self.call("limit", "over", "-f", "json")
        self.assertEqual((1, 5), (over.status, over.json[0]["limit"]))
        history = self.good("history", "list", "--project", "p")
        self.assertEqual("cancel override", history[0]["action"])
        self.assertEqual("2999-12-05T18:00:00.000000Z", history[0]["until"])
        (row,) = self.good("history", "list", "--project", "q", "--limit", "1")
        self.assertEqual("2998-01-01T08:00:00.000000Z", row["from"])
        self.assertIn("2998-01-01T08", self.call("history", "list", "--project", "q").out)

    def test_the_notice_on_a_new_project_names_the_overrides(self) -> None:
        ended = self.call("limit", "set", "--project", "new", "gpu=1", "fpga=1", "--until", "2999-01-01")
        ids = " ".join(row["id"] for row in self.good("limit", "override", "list"))
        self.assertIn(f"If the id is wrong, remove the limit with `limit override cancel {ids}`.", ended.err)
        self.done("limit", "override", "cancel", *ids.split())

    def test_bad_usage(self) -> None:
        until = ("--until", "2999-01-01")
        self.assertIn("--project", self.refused(2, "limit", "set", "--default", "gpu=1", *until))
        self.assertIn("--until", self.refused(2, "limit", "set", "--project", "p", "gpu=1", "--from", "2999-01-01"))
        self.assertIn("2026-12-01T08:00Z", self.misused("limit", "set", "--project", "p", "gpu=1", "--until", "noon"))
        self.misused("limit", "override", "cancel")

    def test_in_the_file(self) -> None:
        file = self.directory / "limits.yaml"
        file.write_text(
            "projects:\n- id: p\n  limits: {gpu: 7}\n  overrides:\n"
            "  - {resource: gpu, limit: 40, from: 2998-12-01T08:00Z, until: 2999-12-05T18:00Z, reason: workshop}\n"
        )
        self.assertEqual(3, len(self.call("limit", "import", str(file), "-f", "json").json))
        self.assertIsNone(self.good("limit", "import", str(file)) or None)
        self.assertIn("workshop", self.call("limit", "export").out)
