# SPDX-License-Identifier: Apache-2.0
"""The names and values are the same in every format; only the table shows "unlimited" as a word."""

from __future__ import annotations

import csv
import io
import re

import yaml

from tests.cli import base

LEFT = 2**31 - 3
"""What fits in the counter of a project that has no limit and holds 2."""

USAGE = ["project_id", "resource", "limit", "used", "reserved", "available", "fits", "bound_by"]


class FormatTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.limit("gpu:4")
        self.good("reserve", "--project", "p1", "gpu=1", "fpga=2")

    def usages(self, *more: str) -> str:
        ended = self.call("list", "--usage", *more)
        self.assertEqual((0, ""), (ended.status, ended.err))
        return ended.out

    def test_each_format(self) -> None:
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.usages().splitlines()]
        unlimited = ["p1", "fpga", "unlimited", "0", "2", "unlimited", "unlimited", ""]
        limited = ["p1", "gpu", "4", "0", "1", "3", "3", "p1"]
        self.assertEqual([USAGE, unlimited, limited], [lines[1], *lines[3:5]])
        rows = self.good("list", "--usage")
        self.assertEqual(["p1", "fpga", -1, 0, 2, None, LEFT, None], list(rows[0].values()))
        self.assertEqual(rows, yaml.safe_load(self.usages("-f", "yaml")))
        of_csv = list(csv.reader(io.StringIO(self.usages("-f", "csv"))))
        self.assertEqual([USAGE, ["p1", "fpga", "-1", "0", "2", "", str(LEFT), ""], limited], of_csv)
        self.assertEqual(f"p1 fpga -1 0 2 None {LEFT} None\np1 gpu 4 0 1 3 3 p1\n", self.usages("-f", "value"))
        self.good("reserve", "--project", "p1", "fpga=2147483000")
        self.assertIn("| unlimited | 645  |", self.usages("--resource", "fpga"), "of a counter that is half full")

    def test_no_rows(self) -> None:
        header = '"uuid","project_id","resource","delta","state","consumer","group","source","expire"'
        for form, nothing in (
            ("table", ""),
            ("json", "[]\n"),
            ("yaml", "[]\n"),
            ("value", ""),
            ("csv", f"{header}\n"),
        ):
            self.assertEqual(nothing, self.call("reservation", "list", "--project", "none", "-f", form).out)

    def test_sorting_puts_missing_values_last_in_every_format(self) -> None:
        self.assertEqual("3\nNone\n", self.usages("-f", "value", "-c", "available", "--sort-column", "available"))
        table = self.usages("-c", "available", "--sort-column", "available")
        self.assertEqual(["3", "unlimited"], re.findall(r"(?m)^\| (3|unlimited) +\|$", table))
