# SPDX-License-Identifier: Apache-2.0
"""Totals along the tree (I9), the constraints of subtrees, and moves; on every database."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent import futures

import fixtures as fx

from cyborg_quota import exceptions
from cyborg_quota.db import projects
from cyborg_quota.types import MAX_AMOUNT
from tests import base, fixtures, trees


class TreeTestCase(base.LedgerTestCase):
    """root is the parent of left and right; left is the parent of leaf; each has a context of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        self.plant({"root": None, "left": "root", "right": "root", "leaf": "left"})
        self.leaf = base.Context("leaf")

    def move(self, project_id: str, parent_id: str | None) -> None:
        trees.move(self.database, project_id, parent_id)
        self.assert_invariants()


class TestMoves(TreeTestCase):
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


class TestTreeFromLimitDriver(base.LedgerTestCase):
    """A limit driver that knows each project's parent, as Keystone knows a project's domain."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.parents = {"p1": "domain", "p2": "domain"}
        self.asked: list[str] = []
        self.limits.path_of = self.path_of  # type: ignore[method-assign]
        self.limits.tree_source = "keystone"  # type: ignore[misc]
        self.limits.subtree_limits["domain", "gpu"] = 3

    def path_of(self, project_id: str) -> Sequence[str] | None:
        self.asked.append(project_id)
        return [project_id, *projects.ancestors(project_id, self.parents)] if project_id in self.parents else None

    def test_a_charge_puts_the_project_there_first(self) -> None:
        """With its usage. Calls that no limit can refuse do not read limits."""
        self.quotas.adopt(base.ADMIN, [base.claim("c", gpu=1)], "p1")
        self.assertEqual([], self.asked)
        self.assertEqual([], self.quotas.check(base.ADMIN, {"gpu": 2}, "p1"))
        self.assertEqual(["domain"], [over.project_id for over in self.quotas.check(base.ADMIN, {"gpu": 3}, "p1")])
        self.quotas.reserve(self.context, {"gpu": 1})
        self.quotas.reserve(base.Context("p2"), {"gpu": 1})
        self.assertEqual({"p1": 2, "p2": 1, "domain": 3}, self.subtrees())
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 1})
        self.assertEqual(["domain"], [over.project_id for over in error.overs])
        # The tree is not written again at every charge.
        before = self.fetch("SELECT project_id, generation FROM projects ORDER BY 1")
        self.quotas.release(self.context, consumer="c")
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual(before, self.fetch("SELECT project_id, generation FROM projects ORDER BY 1"))

    def test_an_edge_that_contradicts_is_replaced(self) -> None:
        """With a log line; the history has the previous parent."""
        self.plant({"team": None, "p1": "team"})
        log = self.useFixture(fx.FakeLogger())
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertIn("operation=keystone user_id=keystone project_id=p1 before=team after=domain", log.output)
        self.assertEqual({"p1": 2, "domain": 2}, self.subtrees())
        moved = [entry for entry in self.engine.limits.history(base.ADMIN, "p1") if entry.before]
        self.assertEqual([("team", "domain")], [(entry.before, entry.after) for entry in moved])

    def test_new_projects_of_new_parents_do_not_escape_the_limit_above_them(self) -> None:
        """The first reserves of all run at once, two of each project, and each puts its ancestors into the tree."""
        leaves = [f"leaf{number}" for number in range(16)]
        self.parents = {leaf: f"team{number % 4}" for number, leaf in enumerate(leaves)}
        self.parents |= {f"team{number}": "atlas" for number in range(4)} | {"atlas": "domain"}

        def reserve(project_id: str) -> None:
            with contextlib.suppress(exceptions.OverQuota):
                self.engine.reserve(base.Context(project_id), {"gpu": 1})

        with futures.ThreadPoolExecutor(8) as pool:
            for call in [pool.submit(reserve, project_id) for project_id in leaves for _ in range(2)]:
                call.result()
        self.assert_invariants()
        held = self.subtrees()
        self.assertEqual((3, 3), (held["atlas"], held["domain"]))
        self.assertEqual(3, sum(held.get(leaf, 0) for leaf in leaves))
        edges = self.engine.limits.list_projects(base.ADMIN)
        self.assertEqual(self.parents, {name: parent for name, parent in edges if parent is not None})
