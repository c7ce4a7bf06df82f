# SPDX-License-Identifier: Apache-2.0
"""Total limits in a simulation."""

from __future__ import annotations

from typing import Any

from cyborg_quota.types import TOTAL
from tests.cli import test_simulate

NAMES = ("project_id", "refused_before", "refused_after", "peak", "limit_before", "limit_after", "bound_by")


class SameAsReplayTest(test_simulate.SameAsReplayTest):
    """The same trees and traces as in the base class, with a total limit in the file."""

    tree = {**test_simulate.TREE, "total": {"gpu": 5}}


class TotalRowsTest(test_simulate.SimulateCase):
    """p and q may hold any amount; p reserves 2 and 3, then q 2."""

    def setUp(self) -> None:
        super().setUp()
        self.call("set", "--default", "gpu=-1", "fpga=-1")
        self.file = self.trace(
            "0,reserve,a,p,gpu,2", "1,reserve,b,p,gpu,3", "2,reserve,c,q,gpu,2", "3,commit,c,q,gpu,2"
        )

    def rows(self, content: Any, against: str, *argv: str) -> dict[str, tuple[Any, ...]]:
        """What follows the project in NAMES, by project."""
        found = self.simulate(content, against, *argv)
        return {row["project_id"]: tuple(row[name] for name in NAMES[1:]) for row in found}

    def test_a_total_of_the_file(self) -> None:
        rows = self.rows({"total": {"gpu": 6}}, self.file)
        expected = {TOTAL: (0, 0, 7, -1, 6, None), "p": (0, 0, 5, -1, -1, None), "q": (0, 1, 2, -1, -1, TOTAL)}
        self.assertEqual(expected, rows)
        path = self.directory / "new.svg"
        new = self.limits({"total": {"gpu": 6}})
        table = self.call("simulate", new, "--against", self.file, "--chart", str(path)).out
        self.assertIn("(total)", path.read_text())  # the names are in comments beside their outlines
        self.assertIn("| (total)    | gpu      |", table)
        self.assertIn("| (total)  |", table)

    def test_the_present_total(self) -> None:
        """It applies before and after; the file can change or remove it."""
        self.call("set", "--total", "gpu=4", "fpga=1")
        for content, after in (({}, 4), ({"total": {"gpu": 7}}, 7), ({"total": {"gpu": None}}, -1)):
            refused = 1 if after == 4 else 0
            rows = self.rows(content, self.file)
            self.assertEqual((0, 0, 4, 4, after, None), rows[TOTAL])
            self.assertEqual((1, refused, 2, -1, -1, TOTAL if refused else None), rows["p"])
        self.assertEqual({"p", "q"}, set(self.rows({}, self.trace("0,reserve,a,p,tpu,1", "0,reserve,a,q,tpu,1"))))

    def test_the_limit_of_the_project_binds_if_both_leave_the_same(self) -> None:
        rows = self.rows({"defaults": {"gpu": 4}, "total": {"gpu": 4}}, self.file)
        self.assertEqual("p", rows["p"][-1])

    def test_against_the_ledger(self) -> None:
        self.prepare("reserve --project p gpu=3", "reserve --project q gpu=2")
        expected = {TOTAL: (0, 0, 5, -1, 4, None), "p": (0, 0, 3, -1, -1, None), "q": (0, 1, 2, -1, -1, TOTAL)}
        self.assertEqual(expected, self.rows({"total": {"gpu": 4}}, "ledger"))
