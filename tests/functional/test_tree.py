# SPDX-License-Identifier: Apache-2.0
"""Totals along the tree (I9), the constraints of subtrees, and moves; on every database."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.db import projects
from cyborg_quota.types import MAX_AMOUNT
from tests import base, fixtures, trees


class TestMoves(base.LedgerTestCase):
    """root is the parent of left and right; left is the parent of leaf; each has a context of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        self.plant({"root": None, "left": "root", "right": "root", "leaf": "left"})
        self.leaf = base.Context("leaf")

    def move(self, project_id: str, parent_id: str | None) -> None:
        trees.move(self.database, project_id, parent_id)
        self.assert_invariants()

    def test_the_limits_of_the_new_path_apply(self) -> None:
        """check charges nothing, so it must detect in another way that a cached path is old."""
        self.limits.subtree_limits["left", "gpu"] = 1
        self.limits.subtree_limits["right", "gpu"] = 2
        self.quotas.reserve(self.leaf, {"gpu": 1})
        self.move("leaf", "right")
        self.assertEqual([], self.quotas.check(self.leaf, {"gpu": 1}))
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.leaf, {"gpu": 2})
        self.assertEqual(["right"], [over.project_id for over in error.overs])
        self.quotas.reserve(self.leaf, {"gpu": 1})
        self.assertEqual({"leaf": 2, "left": 0, "right": 2, "root": 2}, self.subtrees())

    def test_more_than_a_meter_can_count_is_refused(self) -> None:
        names = [f"p{number}" for number in range(5)]
        for name in names:
            self.plant({name: None})
            self.quotas.reserve(base.Context(name), {"gpu": MAX_AMOUNT})
        for name in names[:4]:
            self.move(name, "root")
        error = self.assertRaises(exceptions.MeterOverflow, self.move, names[4], "root")
        self.assertEqual((names[4], MAX_AMOUNT), (error.project_id, error.requested))
        self.assert_invariants()
        self.assertEqual(4 * MAX_AMOUNT, self.subtrees()["root"])

    def test_a_cycle_is_refused(self) -> None:
        self.quotas.reserve(self.leaf, {"gpu": 1})
        for parent in ("leaf", "left"):
            self.assertRaises(exceptions.ProjectRefused, self.move, "left", parent)
        self.assertEqual("root", self.database.read(projects.edges)["left"])
