# SPDX-License-Identifier: Apache-2.0
"""Minimums by the command line: set, files, history, and what is said of one that promises nothing."""

from __future__ import annotations

from tests.cli.test_limits import TreeTestCase

PROBLEM = "physics can keep 5 more gpu: limit 30, used 25, promised 0, needed 6"


class MinimumTest(TreeTestCase):
    def test_it_is_set_shown_and_recorded(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        self.assertEqual(
            [("atlas", 0, 4, 71), ("physics", 0, 4, 1), ("higgs", 4, 0, 10)],
            self.columns("list --tree", "project_id minimum promised available"),
        )
        self.assertEqual(
            [("set minimum", "higgs", 0, 4)],
            self.columns("history list --subject minimum", "action project_id before after"),
        )
        ended = self.call("check", "gpu=2", "physics")
        self.assertIn("used 25, reserved 0, promised 4, requested 2, fits 1", ended.out.replace("subtree 25, ", ""))

    def test_one_that_cannot_be_kept_is_refused(self) -> None:
        self.refused_each(1, {"set --minimum gpu=6 higgs": PROBLEM})
        ended = self.call("set", "--minimum", "--dry-run", "gpu=6", "higgs", "-f", "json")
        self.assertEqual((1, 6), (ended.status, ended.json[0]["after"]))

    def test_a_file_has_it(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        text = self.call("limits", "export", "-").out
        self.assertIn("minimums: {gpu: 4}", text)
        self.done("set", "--minimum", "gpu=0", "higgs")
        path = self.directory / "limits.yaml"
        path.write_text(text.replace("minimums: {gpu: 4}", "minimums: {gpu: 6}"))
        ended = self.call("limits", "import", str(path), "--dry-run", "-f", "json")
        self.assertEqual((1, ["higgs"]), (ended.status, [row["project_id"] for row in ended.json]))
        self.assertIn(PROBLEM, ended.err)
        self.refused_each(1, {f"limits import {path}": f"Not allowed: {PROBLEM}. Nothing was changed."})
        path.write_text(text)
        self.assertEqual([("set minimum", 4)], self.columns(f"limits import --dry-run {path}", "change after"))
        self.prepare(f"limits import {path}")
        self.assertEqual([(0,), (4,)], self.columns("show --usage higgs", "minimum"))

    def test_of_a_new_project_and_misuse(self) -> None:
        """Without Keystone, an id may be mistyped. What is unchanged writes nothing."""
        self.done("set", "--minimum", "typo=0", "unknown")
        self.assertNotIn("unknown", [row["project_id"] for row in self.good("project", "list")])
        self.done("set", "--default", "gpu=2")
        self.assertIn("Project 'typo' is new", self.call("set", "--minimum", "gpu=2", "typo").err)
        for argv in (["--default", "gpu=4"], ["gpu=4", "higgs", "--pod", "p"], ["gpu=4"], ["gpu=-1", "higgs"]):
            self.assertIn(self.call("set", "--minimum", *argv).status, (1, 2))

    def test_what_is_said_of_it(self) -> None:
        """It promises nothing, or more than exists."""
        self.prepare("provider create node", "inventory set node gpu=20")
        for argv, said in (
            (
                ("gpu=30", "atlas"),
                "no limit bounds what other projects take, so that this minimum promises nothing",
            ),
            (("gpu=4", "higgs"), "gpu: the limit of project physics is 30, and 20 exist"),
        ):
            ended = self.call("set", "--minimum", *argv)
            self.assertEqual((0, True), (ended.status, said in ended.err), ended.err)

    def test_a_limit_below_it_needs_force(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        self.refused_each(1, {"set gpu=3 higgs": "the limit of higgs in gpu would be 3; its minimum is 4"})
        for more in ([], ["--until", "2999-01-01"]):
            planned = self.call("set", "--dry-run", "gpu=3", "higgs", *more)
            self.assertEqual((1, True), (planned.status, "its minimum is 4" in planned.err))
            self.good("set", "--force", "--dry-run", "gpu=3", "higgs", *more)
        self.done("set", "--force", "gpu=3", "higgs")
