# SPDX-License-Identifier: Apache-2.0
"""Budgets and the report of usage on the command line."""

from __future__ import annotations

from tests.cli.test_limits import TreeTestCase


class BudgetTest(TreeTestCase):
    def test_it_is_set_shown_adjusted_and_deleted(self) -> None:
        [made] = self.good("budget", "set", "--hours", "gpu=1000", "--every", "quarter", "--carry", "gpu=50", "physics")
        expected = {"hours": 1000, "held": 25, "enforce": "refuse", "every": "quarter", "carry": 50}
        self.assertEqual(expected, {name: made[name] for name in expected})
        self.assertIsNotNone(made["lasts_until"])
        [one] = self.good("budget", "adjust", "--hours", "gpu=900", "--reason", "before the ledger", "physics")
        self.assertEqual((900, 100), (round(one["spent"]), round(one["left"])))
        self.assertEqual([one["resource"]], [row["resource"] for row in self.good("budget", "list", "--above", "80")])
        self.assertEqual([], self.good("budget", "list", "--above", "95"))
        self.assertEqual(1, len(self.good("budget", "show", "physics")))
        history = self.good("history", "list", "--subject", "budget")
        self.assertEqual(["adjust budget", "set budget"], [row["action"] for row in history])
        self.done("budget", "delete", "--resource", "gpu", "physics")
        self.assertEqual([], self.good("budget", "show", "physics"))

    def test_what_refuses_is_named(self) -> None:
        self.good("budget", "set", "--hours", "gpu=26", "physics")
        ended = self.call("check", "gpu=2", "physics")
        spent = "gpu: project physics, with all below it, has spent 0.0 of 26 hours since"
        self.assertRegex(ended.out, f"{spent}.*25 are held, and 2 more need 27.0 hours for the next hour")
        self.assertIn("| physics (budget) |", self.call("show", "--usage", "physics").out)
        self.assertEqual([("physics",)], self.columns("show --usage physics --resource gpu", "bound_by"))
        self.prepare("budget set --hours gpu=26 --notify-only physics", "check gpu=2 physics")

    def test_a_report(self) -> None:
        self.call("resize", "--project", "physics", "gpu=25")
        self.sql("UPDATE quota_usages SET metered = metered + 5400")
        reported = self.columns("usage report --project atlas --tree", "project_id")
        self.assertEqual({("atlas",), ("physics",)}, {*reported} - {("higgs",)})
        [row] = self.good("usage", "report", "--project", "atlas")
        self.assertEqual(round(row["device_seconds"] / 3600, 4), row["hours"])
        self.assertGreaterEqual(row["device_seconds"], 5400)
        first, *others = self.good("usage", "report", "--from", "2026-01")
        marker = first["project_id"], first["resource"], first["month"]
        after = self.columns(f"usage report --from 2026-01 --marker {' '.join(marker)}", "project_id")
        self.assertEqual([(one["project_id"],) for one in others], after)
        lines = self.call("usage", "report", "--limit", "1", "-f", "csv").out.splitlines()
        self.assertEqual('"project_id","resource","month","hours","device_seconds"', lines[0])

    def test_bad_input_is_one_line_with_the_value(self) -> None:
        for words, value in (
            (("budget", "set", "--hours", "gpu", "p"), "'gpu'"),
            (("budget", "set", "--hours", "gpu=-1", "p"), "-1"),
            (("budget", "set", "--hours", "gpu=1", "--hours", "gpu=2", "p"), "'gpu' is given twice"),
            (("budget", "set", "--hours", "typo=1", "p"), "typo"),
            (("budget", "set", "--hours", "gpu=1", "--carry", "fpga=1", "p"), "fpga"),
            (("budget", "set", "--hours", "gpu=1", "--every", "week", "p"), "'week'"),
            (("budget", "set", "--hours", "gpu=1", "--from", "2026-01-15", "--until", "2026-02-01", "p"), "2026-01-15"),
            (("budget", "set", "--hours", "gpu=1", "--from", "20260101", "--until", "2026-02-01", "p"), "'20260101'"),
            (("budget", "set", "--hours", "gpu=1", "--from", "soon", "--until", "2026-02-01", "p"), "'soon'"),
            (("budget", "set", "--hours", "gpu=1", "--until", "2026-02-01", "p"), "2026-02-01"),
            (("budget", "adjust", "--hours", "gpu=1", "nobody"), "nobody"),
            (("budget", "delete", "--resource", "fpga", "physics"), "fpga"),
            (("budget", "list", "--above", "-1"), "-1"),
            (("usage", "report", "--from", "2026-13"), "'2026-13'"),
            (("usage", "report", "--from", "202601"), "'202601'"),
            (("usage", "report", "--from", "2026-03", "--to", "2026-01"), "2026-03 and 2026-01"),
            (("usage", "report", "--marker", "physics"), "'physics'"),
        ):
            ended = self.call(*words)
            self.assertIn(ended.status, (1, 2), words)
            self.assertEqual(1, len(ended.err.splitlines()), ended.err)
            self.assertIn(value, ended.err, words)
