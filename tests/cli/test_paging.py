# SPDX-License-Identifier: Apache-2.0
"""--limit, --marker and --resource of every list command; --depth of `list --tree`."""

from __future__ import annotations

from typing import Any

from tests.cli import base

PROJECTS = ("a", "b", "c")
LISTS = {
    "list": ("project_id", "resource"),
    "list --usage": ("project_id", "resource"),
    "list --tree": ("project_id", "resource"),
    "list --pod": ("project_id", "pod", "resource"),
    "show --total": ("resource",),
    "project list": ("project_id",),
    "override list": ("id",),
    "history list": ("id",),
    "reservation list": ("uuid",),
    "provider list": ("name",),
    "inventory list": ("provider", "resource"),
    "allocation list": ("reservation",),
    "pod list": ("name",),
    "pod binding list": ("id",),
    "resource list": ("resource",),
}
"""The columns of a row that make its marker."""


class PagingTest(base.CliTestCase):
    """Three projects below `top`, with limits of two resources."""

    def setUp(self) -> None:
        super().setUp()
        self.configure("[limits]\ndriver = database\nenforcement_model = strict_two_level")
        self.prepare("set --default gpu=9 fpga=9", "project set top --no-parent")
        for project in PROJECTS:
            self.prepare(
                f"project set {project} --parent top",
                f"set gpu=2 fpga=2 {project}",
                f"reserve --project {project} gpu=2 fpga=2",
            )

    def pages(self, size: int, *command: str, marker: tuple[str, ...]) -> list[dict[str, Any]]:
        """All rows, read page by page as a program would."""
        rows: list[dict[str, Any]] = []
        while True:
            last = [str(rows[-1][column] or "(default)") for column in marker] if rows else []
            page = self.good(*command, "--limit", str(size), *(["--marker", *last] if last else []))
            self.assertLessEqual(len(page), size)
            if not page:
                return rows
            rows += page

    def test_pages_add_up_to_the_list(self) -> None:
        self.prepare("set --total gpu=50 fpga=50")
        for number, project in ((1, "a"), (2, "b")):
            self.prepare(
                f"pod create pod{number} --zone az{number}",
                f"pod select --project a --zone az{number}",
                f"provider create n{number}",
                f"inventory set n{number} gpu=4 fpga=4",
                f"set gpu=4 fpga=4 {project}",
                f"set --pod pod{number} gpu=1 fpga=1 {project}",
                f"set gpu=5 fpga=5 {project} --until 2090-01-01T00:00Z",
                f"reserve --project {project} --provider n{number} gpu=1 fpga=1",
            )
        for name, marker in LISTS.items():
            command = name.split()
            whole = self.good(*command)
            self.assertGreaterEqual(len(whole), 2, name)
            for size in (1, len(whole)):
                self.assertEqual(whole, self.pages(size, *command, marker=marker), (name, size))
            if "resource" in whole[0]:
                gpus = [row for row in whole if row["resource"] == "gpu"]
                self.assertEqual(gpus, self.good(*command, "--resource", "gpu"), name)
                self.assertTrue(0 < len(gpus) < len(whole), name)
            error = self.call(*command, "--marker", "zz").err
            self.assertRegex(error, "no such row|A marker must be|was not found|write an integer", name)
        self.assertEqual(["gpu"], [row["resource"] for row in self.good("show", "--usage", "a", "--resource", "gpu")])

    def test_the_projects_over_their_limits(self) -> None:
        self.prepare(*(f"set gpu=1 fpga=1 {project}" for project in PROJECTS))
        over = self.call("list", "--over", "-f", "value", "-c", "project_id", "-c", "resource", "--marker", "b", "fpga")
        self.assertEqual((1, "b gpu\nc fpga\nc gpu\n"), (over.status, over.out))

    def test_depth(self) -> None:
        self.assertEqual({"top"}, {row["project_id"] for row in self.good("list", "--tree", "--depth", "0")})
        self.assertEqual(self.good("list", "--tree"), self.good("list", "--tree", "--depth", "1"))
        self.assertEqual(
            {"a"}, {row["project_id"] for row in self.good("list", "--tree", "--project", "a", "--depth", "0")}
        )

    def test_bad_input(self) -> None:
        self.refused_each(
            2,
            {
                "list --over --marker zz": "no such row",
                "list --pod --marker a pod1 gpu x": "--marker takes the ",
                "list --usage --marker a gpu x": "--marker takes",
                "project list --marker a gpu": "--marker takes",
                "inventory list --marker (default)": "no such row",
            },
        )
        self.assertIn("--pod needs", self.refused(2, "show", "top", "--pod", ""))
        self.misused("list", "--tree", "--depth=-1")
