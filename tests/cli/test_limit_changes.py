# SPDX-License-Identifier: Apache-2.0
"""`unset` of what is not set, and `set --dry-run`."""

from __future__ import annotations

from tests.cli import base


class UnsetTest(base.CliTestCase):
    options = base.DATABASE

    def test_what_is_not_set(self) -> None:
        """It was accepted silently."""
        self.prepare("set --default gpu=5", "set gpu=3 p")
        line = self.refused(1, "unset", "--resource", "fpga", "p")
        self.assertEqual("cyborg-quota: Project p has no limit of its own for fpga. Nothing was changed.\n", line)
        self.refused_each(
            1,
            {
                "unset --resource gpu other": "Project other has no limit of its own for gpu.",
                "unset --default --resource fpga": "There is no default limit for fpga.",
                "unset --resource gpu --resource fpga p": "Project p has no limit of its own for fpga.",
            },
        )
        self.assertEqual([(None, "gpu", 5), ("p", "gpu", 3)], self.columns("list", "project_id resource limit"))

    def test_what_only_an_override_sets(self) -> None:
        """It was accepted silently, and nothing changed."""
        self.prepare("set --default gpu=5 fpga=5", "set gpu=9 fpga=8 p --until 2999-01-01")
        refused = "Project p has no limit of its own for gpu. Nothing was changed."
        self.refused_each(1, {"unset --resource gpu p": refused})
        self.prepare("set gpu=7 p", "unset --resource gpu p")
        self.assertEqual("", self.call("list", "--over").out)
        self.assertEqual(2, len(self.good("override", "list")))


class DryRunTest(base.CliTestCase):
    options = base.DATABASE

    def setUp(self) -> None:
        super().setUp()
        self.prepare(
            "set --default gpu=5",
            "project set top --no-parent",
            "project set left --parent top",
            "project set right --parent top",
            "set gpu=10 top",
            "set gpu=6 left",
        )

    def test_it_prints_the_changes_and_writes_nothing(self) -> None:
        before = self.columns("list", "project_id resource limit")
        columns = ["change", "project_id", "resource", "before", "after", "pod"]
        for argv, expected in (
            (["right", "gpu=4", "fpga=0"], [["right", "fpga", None, 0], ["right", "gpu", None, 4]]),
            (["left", "gpu=6"], []),
            (["--default", "gpu=7", "fpga=-1"], [[None, "fpga", None, -1], [None, "gpu", 5, 7]]),
        ):
            rows = self.good("set", *argv, "--dry-run")
            self.assertEqual([["set limit", *row] for row in expected], sorted(list(row.values())[:-1] for row in rows))
            self.assertTrue(all(list(row) == columns for row in rows))
        self.assertEqual(before, self.columns("list", "project_id resource limit"))
        ended = self.call("set", "gpu=6", "new", "--dry-run", "-f", "json")
        self.assertEqual((0, ["set limit", "new", "gpu", None, 6, None]), (ended.status, list(ended.json[0].values())))
        notice = "Project 'new' is new: it had no usage, limit or parent before."
        self.assertEqual(f"cyborg-quota: {notice}\n", ended.err)
        self.assertEqual(["left", "right", "top"], [row["project_id"] for row in self.good("project", "list")])

    def test_it_prints_what_would_be_refused_and_why(self) -> None:
        argv = ("set", "gpu=5", "right", "--dry-run")
        ended = self.call(*argv, "-f", "json")
        said = self.refused(1, "set", "gpu=5", "right")
        self.assertEqual((1, 1, said), (ended.status, len(ended.json), ended.err))
        self.assertIn("would sum up to 11; the limit of top is 10", said)

    def test_an_override(self) -> None:
        span = ("--from", "2998-12-01T08:00Z", "--until", "2999-01-01")
        self.assertEqual(
            [("set override", "right", "fpga", None, 0), ("set override", "right", "gpu", None, 4)],
            [tuple(row.values())[:-1] for row in self.good("set", "gpu=4", "fpga=0", *span, "right", "--dry-run")],
        )
        self.assertEqual([], self.good("override", "list"))
        self.assertEqual(1, len(self.good("history", "list", "--project", "right")))  # it was added to the tree
        argv = ("set", "gpu=5", *span, "right")
        ended = self.call(*argv, "--dry-run", "-f", "json")
        self.assertEqual((1, 1), (ended.status, len(ended.json)))
        self.assertEqual(self.refused(1, *argv), ended.err)
        self.assertIn("would sum up to 11; the limit of top is 10 (from 2998-12-01T08:00Z)", ended.err)
        past = "set gpu=4 right --until 2001-01-01"  # (the message ends with the time of the database)
        self.refused_each(2, dict.fromkeys((past, f"{past} --dry-run"), "end in the future, not at 2001-01-01T00:00Z"))
