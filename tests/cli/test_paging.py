# SPDX-License-Identifier: Apache-2.0
"""--limit, --marker and --resource of every list command; --depth of `list --tree`."""

from __future__ import annotations

from typing import Any

from tests.cli import base

PROJECTS = ("a", "b", "c")


class PagingTest(base.CliTestCase):
    """Three projects below `top`, with limits of two resources."""

    def setUp(self) -> None:
        super().setUp()
        self.configure("[limits]\ndriver = database\nenforcement_model = strict_two_level")
        self.call("set", "--default", "gpu=9", "fpga=9")
        self.call("project", "set", "top", "--no-parent")
        for project in PROJECTS:
            self.call("project", "set", project, "--parent", "top")
            self.call("set", "gpu=2", "fpga=2", project)
            self.good("reserve", "--project", project, "gpu=2", "fpga=2")

    def pages(self, size: int, *command: str) -> list[dict[str, Any]]:
        """All rows, read page by page as a program would."""
        rows: list[dict[str, Any]] = []
        while True:
            marker: list[str] = []
            if rows:
                name = rows[-1]["project_id"] or "(default)"
                marker = ["--marker", name] + ([rows[-1]["resource"]] if "resource" in rows[-1] else [])
            page = self.good(*command, "--limit", str(size), *marker)
            self.assertLessEqual(len(page), size)
            if not page:
                return rows
            rows += page

    def test_pages_add_up_to_the_list(self) -> None:
        for command in (("list", "--usage"), ("list",), ("list", "--tree"), ("project", "list")):
            whole = self.good(*command)
            self.assertGreater(len(whole), 3, command)
            for size in (1, 2, 100):
                self.assertEqual(whole, self.pages(size, *command), (command, size))
        for project in PROJECTS:
            self.call("set", "gpu=1", "fpga=1", project)
        over = self.call("list", "--over", "-f", "value", "-c", "project_id", "-c", "resource", "--marker", "b", "fpga")
        self.assertEqual((1, "b gpu\nc fpga\nc gpu\n"), (over.status, over.out))

    def test_the_pages_of_reservations(self) -> None:
        whole = self.good("reservation", "list")
        first = self.good("reservation", "list", "--limit", "4")
        rest = self.good("reservation", "list", "--limit", "4", "--marker", first[-1]["uuid"])
        self.assertEqual(whole, first + rest)
        self.assertIn("was not found", self.refused(1, "reservation", "list", "--marker", "no-such-uuid"))

    def test_one_resource(self) -> None:
        for command in (("list", "--usage"), ("list",), ("list", "--tree"), ("reservation", "list")):
            whole = self.good(*command)
            gpus = self.good(*command, "--resource", "gpu")
            self.assertEqual([row for row in whole if row["resource"] == "gpu"], gpus)
            self.assertTrue(0 < len(gpus) < len(whole))
        rows = self.good("list", "--usage", "--resource", "gpu", "--marker", "a", "--limit", "1")
        self.assertEqual(["b"], [row["project_id"] for row in rows])
        self.assertEqual(["gpu"], [row["resource"] for row in self.good("show", "--usage", "a", "--resource", "gpu")])

    def test_a_marker_of_a_project_skips_all_its_rows(self) -> None:
        rows = self.good("list", "--marker", "(default)")
        self.assertEqual("a", rows[0]["project_id"])

    def test_the_pages_of_overrides_and_of_the_history(self) -> None:
        for project in PROJECTS:
            self.call("set", "gpu=1", "fpga=1", project, "--until", "2090-01-01T00:00Z")
        for command in (("override", "list"), ("history", "list")):
            whole = self.good(*command)
            self.assertGreaterEqual(len(whole), 6)
            first = self.good(*command, "--limit", "2")
            self.assertEqual(whole, first + self.good(*command, "--marker", first[-1]["id"]))
            self.assertEqual(
                [row for row in whole if row["resource"] == "gpu"], self.good(*command, "--resource", "gpu")
            )
            for bad in ("zz", "1", "1-x"):
                self.assertIn("A marker must be", self.refused(2, *command, "--marker", bad))

    def test_the_pages_of_capacity_and_pods(self) -> None:
        for number in ("1", "2"):
            self.call("provider", "create", f"n{number}")
            self.call("inventory", "set", f"n{number}", "gpu=4", "fpga=4")
            self.call("set", "gpu=4", "fpga=4", "a")
            self.good("reserve", "--project", "a", "--provider", f"n{number}", "gpu=1", "fpga=1")
            self.good("pod", "create", f"pod{number}", "--zone", f"az{number}")
            self.good("pod", "select", "--project", "a", "--zone", f"az{number}")
        for noun, columns in (
            ("provider", ["name"]),
            ("inventory", ["provider", "resource"]),
            ("allocation", ["reservation"]),
            ("pod", ["name"]),
            ("pod binding", ["id"]),
        ):
            command = (*noun.split(), "list")
            whole, rows = self.good(*command), self.good(*command, "--limit", "1")
            while page := self.good(*command, "--limit", "1", "--marker", *(str(rows[-1][name]) for name in columns)):
                rows += page
            self.assertEqual(whole, rows, noun)
            self.assertGreaterEqual(len(rows), 2)
            if noun != "pod binding":
                self.assertIn("no such row", self.refused(2, *command, "--marker", "zz"))
        for noun in ("inventory", "allocation"):
            self.assertEqual(2, len(self.good(noun, "list", "--resource", "gpu")))
        skipped = self.good("inventory", "list", "--marker", "n1", "--limit", "1")
        self.assertEqual("n2", skipped[0]["provider"])

    def test_the_pages_of_total_limits_and_of_limits_per_pod(self) -> None:
        self.call("set", "--total", "gpu=50", "fpga=50")
        for pod in ("pod1", "pod2"):
            self.good("pod", "create", pod)
            for project in PROJECTS[:2]:
                self.call("set", "--pod", pod, "gpu=1", "fpga=1", project)
        for *command, columns, count in (
            ("show", "--total", ["resource"], 2),
            ("list", "--pod", ["project_id", "pod", "resource"], 8),
        ):
            whole, rows = self.good(*command), self.good(*command, "--limit", "1")
            while page := self.good(*command, "--limit", "1", "--marker", *(rows[-1][name] for name in columns)):
                rows += page
            self.assertEqual((whole, count), (rows, len(rows)))
            gpus = self.good(*command, "--resource", "gpu")
            self.assertEqual([row for row in whole if row["resource"] == "gpu"], gpus)
            self.assertIn("no such row", self.refused(2, *command, "--marker", "zz"))
            self.assertIn("--marker takes the ", self.refused(2, *command, "--marker", "a", "pod1", "gpu", "x"))
        self.assertEqual(
            ["b"], [row["project_id"] for row in self.good(*command, "pod1", "--resource", "gpu", "--marker", "a")]
        )

    def test_depth(self) -> None:
        self.assertEqual({"top"}, {row["project_id"] for row in self.good("list", "--tree", "--depth", "0")})
        self.assertEqual(self.good("list", "--tree"), self.good("list", "--tree", "--depth", "1"))
        self.assertEqual(
            {"a"}, {row["project_id"] for row in self.good("list", "--tree", "--project", "a", "--depth", "0")}
        )

    def test_bad_input(self) -> None:
        for command in (
            ("list", "--usage"),
            ("list",),
            ("list", "--tree"),
            ("list", "--over"),
            ("project", "list"),
        ):
            self.assertIn("no such row", self.refused(2, *command, "--marker", "zz"))
        self.assertIn("--marker takes", self.refused(2, "list", "--usage", "--marker", "a", "gpu", "x"))
        self.assertIn("--marker takes", self.refused(2, "project", "list", "--marker", "a", "gpu"))
        self.assertIn("no such row", self.refused(2, "inventory", "list", "--marker", "(default)"))
        self.assertIn("--pod needs", self.refused(2, "show", "top", "--pod", ""))
        self.misused("list", "--tree", "--depth=-1")
