# SPDX-License-Identifier: Apache-2.0
"""Minimums by the command line: set, files, history, and what is said of one that promises nothing."""

from __future__ import annotations

from tests.cli.test_limits import LimitTestCase


class MinimumTest(LimitTestCase):
    """atlas (100), physics (30), higgs (10); physics holds 25."""

    def setUp(self) -> None:
        super().setUp()
        self.make_tree()

    def test_it_is_set_shown_and_recorded(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        rows = {row["project_id"]: row for row in self.good("list", "--tree")}
        self.assertEqual((4, 4), (rows["higgs"]["minimum"], rows["physics"]["promised"]))
        self.assertEqual(1, rows["physics"]["available"])
        [entry] = self.good("history", "list", "--subject", "minimum")
        self.assertEqual(
            ("set minimum", "higgs", 0, 4), tuple(entry[name] for name in ("action", "project_id", "before", "after"))
        )
        ended = self.call("check", "gpu=2", "physics")
        self.assertIn("used 25, reserved 0, promised 4, requested 2, fits 1", ended.out.replace("subtree 25, ", ""))

    def test_one_that_cannot_be_kept_is_refused(self) -> None:
        ended = self.call("set", "--minimum", "gpu=6", "higgs")
        self.assertEqual(1, ended.status)
        self.assertIn("physics can keep 5 more gpu: limit 30, used 25, promised 0, needed 6", ended.err)
        ended = self.call("set", "--minimum", "--dry-run", "gpu=6", "higgs", "-f", "json")
        self.assertEqual((1, 6), (ended.status, ended.json[0]["after"]))

    def test_a_file_has_it(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        text = self.call("limits", "export", "-").out
        self.assertIn("minimums: {gpu: 4}", text)
        self.done("set", "--minimum", "gpu=0", "higgs")
        (self.directory / "limits.yaml").write_text(text)
        planned = self.good("limits", "import", "--dry-run", str(self.directory / "limits.yaml"))
        self.assertEqual([("set minimum", 4)], [(row["change"], row["after"]) for row in planned])
        self.call("limits", "import", str(self.directory / "limits.yaml"))
        self.assertEqual([0, 4], [row["minimum"] for row in self.good("show", "--usage", "higgs")])

    def test_a_file_that_exchanges_two(self) -> None:
        """What becomes lower is set first: both do not fit at once."""
        self.done("set", "--minimum", "gpu=5", "higgs")
        self.done("project", "set", "susy", "--parent", "physics")
        self.done("set", "gpu=5", "susy")
        text = "projects: [{id: atlas, children: [{id: physics, children: ["
        text += "{id: susy, minimums: {gpu: 5}}, {id: higgs, minimums: {gpu: 0}}]}]}]"
        (self.directory / "limits.yaml").write_text(text)
        self.good("limits", "import", str(self.directory / "limits.yaml"))
        rows = {row["project_id"]: row["minimum"] for row in self.good("list", "--tree")}
        self.assertEqual((0, 5), (rows["higgs"], rows["susy"]))
        (self.directory / "limits.yaml").write_text(text.replace("gpu: 0", "gpu: 1"))
        problem = "physics can keep 0 more gpu: limit 30, used 25, promised 5, needed 1"
        ended = self.call("limits", "import", str(self.directory / "limits.yaml"), "--dry-run", "-f", "json")
        self.assertEqual((1, [("higgs", 1)]), (ended.status, [(row["project_id"], row["after"]) for row in ended.json]))
        self.assertIn(problem, ended.err)
        ended = self.call("limits", "import", str(self.directory / "limits.yaml"))
        self.assertEqual(1, ended.status)
        self.assertIn(f"Not allowed: {problem}. Nothing was changed.", ended.err)

    def test_of_a_new_project_and_misuse(self) -> None:
        """Without Keystone, an id may be mistyped. What is unchanged writes nothing."""
        self.done("set", "--minimum", "typo=0", "unknown")
        self.assertNotIn("unknown", [row["project_id"] for row in self.good("project", "list")])
        self.done("set", "--default", "gpu=2")
        self.assertIn("Project 'typo' is new", self.call("set", "--minimum", "gpu=2", "typo").err)
        for argv in (["--default", "gpu=4"], ["gpu=4", "higgs", "--pod", "p"], ["gpu=4"], ["gpu=-1", "higgs"]):
            self.assertIn(self.call("set", "--minimum", *argv).status, (1, 2))

    def test_one_that_promises_nothing(self) -> None:
        ended = self.call("set", "--minimum", "gpu=30", "atlas")
        self.assertEqual(0, ended.status)
        self.assertIn("gpu: no limit bounds what other projects take, so that this minimum promises nothing", ended.err)

    def test_one_above_the_capacity(self) -> None:
        self.call("provider", "create", "node")
        self.call("inventory", "set", "node", "gpu=20")
        ended = self.call("set", "--minimum", "gpu=4", "higgs")
        self.assertIn("gpu: the limit of project physics is 30, and 20 exist", ended.err)

    def test_a_limit_below_it_needs_force(self) -> None:
        self.done("set", "--minimum", "gpu=4", "higgs")
        ended = self.call("set", "gpu=3", "higgs")
        self.assertEqual(1, ended.status)
        self.assertIn("the limit of higgs in gpu would be 3; its minimum is 4", ended.err)
        for more in ([], ["--until", "2999-01-01"]):
            planned = self.call("set", "--dry-run", "gpu=3", "higgs", *more)
            self.assertEqual((1, True), (planned.status, "its minimum is 4" in planned.err))
            self.good("set", "--force", "--dry-run", "gpu=3", "higgs", *more)
        self.done("set", "--force", "gpu=3", "higgs")
