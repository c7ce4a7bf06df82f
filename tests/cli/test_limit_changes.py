# SPDX-License-Identifier: Apache-2.0
"""limit unset of what is not set, and limit set --dry-run."""

from __future__ import annotations

import json
from typing import Any

from tests.cli import base


class LimitCase(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.configure("[limits]\ndriver = database")

    def limits(self) -> list[list[Any]]:
        return [list(row.values())[:3] for row in self.good("limit", "list") or []]


class UnsetTest(LimitCase):
    def test_what_is_not_set(self) -> None:
        """It was accepted silently."""
        self.call("limit", "set", "--default", "gpu=5")
        self.call("limit", "set", "--project", "p", "gpu=3")
        line = self.refused(1, "limit", "unset", "--project", "p", "fpga")
        self.assertEqual("cyborg-quota: Project p has no limit of its own for fpga. Nothing was changed.\n", line)
        line = self.refused(1, "limit", "unset", "--project", "other", "gpu")
        self.assertIn("Project other has no limit of its own for gpu.", line)
        self.assertIn("There is no default limit for fpga.", self.refused(1, "limit", "unset", "--default", "fpga"))
        self.refused(1, "limit", "unset", "--project", "p", "gpu", "fpga")
        self.assertEqual([[None, "gpu", 5], ["p", "gpu", 3]], self.limits())

    def test_what_is_set(self) -> None:
        self.call("limit", "set", "--default", "gpu=5")
        self.call("limit", "set", "--project", "p", "gpu=0")
        self.assertEqual((0, "", ""), tuple(vars(self.call("limit", "unset", "--project", "p", "gpu")).values()))
        self.assertEqual([[None, "gpu", 5]], self.limits())
        self.assertEqual(0, self.call("limit", "unset", "--default", "gpu").status)
        self.refused(1, "limit", "unset", "--default", "gpu")

    def test_with_another_driver_the_command_says_where_limits_are_set(self) -> None:
        self.limit("gpu:5")
        self.assertIn("[limits] driver is not database", self.refused(1, "limit", "unset", "--default", "gpu"))

    def test_bad_names(self) -> None:
        for argv in (["--project", " p", "gpu"], ["--project", "p", "g\x01"], ["--default", ""]):
            self.refused(2, "limit", "unset", *argv)


class DryRunTest(LimitCase):
    def setUp(self) -> None:
        super().setUp()
        self.call("limit", "set", "--default", "gpu=5")
        for argv in (["top"], ["left", "--parent", "top"], ["right", "--parent", "top"]):
            self.call("project", "add", *argv)
        self.call("limit", "set", "--project", "top", "gpu=10")
        self.call("limit", "set", "--project", "left", "gpu=6")

    def test_it_prints_the_changes_and_writes_nothing(self) -> None:
        before = self.limits()
        columns = ["change", "project_id", "resource", "before", "after"]
        for argv, expected in (
            (["--project", "right", "gpu=4", "fpga=0"], [["right", "fpga", None, 0], ["right", "gpu", None, 4]]),
            (["--project", "left", "gpu=6"], []),
            (["--default", "gpu=7", "fpga=-1"], [[None, "fpga", None, -1], [None, "gpu", 5, 7]]),
        ):
            rows = self.good("limit", "set", *argv, "--dry-run")
            self.assertEqual([["set limit", *row] for row in expected], sorted(list(row.values()) for row in rows))
            self.assertTrue(all(list(row) == columns for row in rows))
        self.assertEqual(before, self.limits())
        self.assertEqual(["left", "right", "top"], [row["project_id"] for row in self.good("project", "list")])

    def test_it_reports_a_new_project(self) -> None:
        ended = self.call("limit", "set", "--project", "new", "gpu=6", "--dry-run", "-f", "json")
        self.assertEqual(0, ended.status)
        self.assertEqual([["set limit", "new", "gpu", None, 6]], [list(row.values()) for row in ended.json])
        notice = "Project 'new' is new: it had no usage, limit or place in the tree before."
        self.assertEqual(f"cyborg-quota: {notice}\n", ended.err)

    def test_it_prints_what_would_be_refused_and_why(self) -> None:
        argv = ("limit", "set", "--project", "right", "gpu=5", "--dry-run")
        ended = self.call(*argv, "-f", "json")
        self.assertEqual(1, ended.status)
        self.assertEqual(1, len(json.loads(ended.out)))
        said = self.refused(1, "limit", "set", "--project", "right", "gpu=5")
        self.assertEqual(said, ended.err)
        self.assertIn("would sum up to 11; the limit of top is 10", said)

    def test_without_it_nothing_is_printed(self) -> None:
        ended = self.call("limit", "set", "--project", "right", "gpu=1")
        self.assertEqual((0, "", ""), (ended.status, ended.out, ended.err))

    def test_bad_input(self) -> None:
        self.refused(2, "limit", "set", "--project", "right", "tpu=5", "--dry-run")
        self.refused(2, "limit", "set", "--project", " right", "gpu=5", "--dry-run")
        self.limit("gpu:5")
        self.assertIn("not database", self.refused(1, "limit", "set", "--project", "right", "gpu=5", "--dry-run"))
