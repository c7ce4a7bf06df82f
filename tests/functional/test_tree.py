# SPDX-License-Identifier: Apache-2.0
"""Totals along the tree (I9), the constraints of subtrees, and moves; on every database."""

from __future__ import annotations

import contextlib
from concurrent import futures

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.db import projects
from cyborg_quota.tree import changes as tree_changes
from tests import base, fixtures, trees

load_tests = testscenarios.load_tests_apply_scenarios


class TreeTestCase(base.LedgerTestCase):
    """root is the parent of left and right; left is the parent of leaf; each has a context of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        trees.plant(self.database, {"root": None, "left": "root", "right": "root", "leaf": "left"})
        self.leaf = base.Context("leaf")

    def move(self, project_id: str, parent_id: str | None) -> None:
        trees.move(self.database, project_id, parent_id)
        self.assert_invariants()

    def subtrees(self, resource: str = "gpu") -> dict[str, int]:
        with self.sql.connect() as connection:
            return trees.subtrees(connection, resource)


class TestTotals(TreeTestCase):
    def test_every_transition_updates_the_path(self) -> None:
        (uuid,) = self.quotas.reserve(self.leaf, {"gpu": 3}, consumer="c")
        self.assertEqual({"leaf": 3, "left": 3, "root": 3}, self.subtrees())
        self.quotas.commit(self.leaf, [uuid])
        self.assertEqual({"leaf": 3, "left": 3, "root": 3}, self.subtrees())
        self.quotas.release(self.leaf, [uuid])
        self.assertEqual({"leaf": 0, "left": 0, "root": 0}, self.subtrees())


class TestConstraints(TreeTestCase):
    def test_each_level_refuses_in_turn(self) -> None:
        for project_id, limit in (("leaf", 1), ("left", 2), ("root", 3)):
            self.limits.subtree_limits[project_id, "gpu"] = limit
        blocked = []
        for name in ("leaf", "leaf", "left", "left", "right", "right"):
            try:
                self.quotas.reserve(base.Context(name), {"gpu": 1})
                blocked.append(None)
            except exceptions.OverQuota as error:
                blocked.append([over.project_id for over in error.overs])
        self.assertEqual([None, ["leaf"], None, ["left"], None, ["root"]], blocked)


class TestMoves(TreeTestCase):
    def test_totals_move_along(self) -> None:
        self.quotas.reserve(self.leaf, {"gpu": 3, "fpga": 1})
        self.quotas.reserve(base.Context("left"), {"gpu": 2})
        self.move("left", "right")
        self.assertEqual({"leaf": 3, "left": 5, "right": 5, "root": 5}, self.subtrees())
        self.assertEqual({"leaf": 1, "left": 1, "right": 1, "root": 1}, self.subtrees("fpga"))
        self.move("leaf", None)
        self.assertEqual({"leaf": 3, "left": 2, "right": 2, "root": 2}, self.subtrees())
        self.move("leaf", "root")
        self.assertEqual({"leaf": 3, "left": 2, "right": 2, "root": 5}, self.subtrees())

    def test_a_flat_project_with_usage_joins(self) -> None:
        newcomer = base.Context("newcomer")
        self.quotas.reserve(newcomer, {"gpu": 4})
        self.move("newcomer", "left")
        self.assertEqual({"newcomer": 4, "left": 4, "root": 4}, self.subtrees())

    def test_an_old_cached_path_is_detected(self) -> None:
        """The engine has charged along the old path before; its next charge uses the new one."""
        (uuid,) = self.quotas.reserve(self.leaf, {"gpu": 1}, consumer="c")
        self.move("leaf", "right")
        self.quotas.reserve(self.leaf, {"gpu": 1})
        self.assertEqual({"leaf": 2, "left": 0, "right": 2, "root": 2}, self.subtrees())
        self.move("right", None)
        self.quotas.rollback(self.leaf, [uuid])
        self.assertEqual({"leaf": 1, "left": 0, "right": 1, "root": 0}, self.subtrees())

    def test_check_uses_the_new_path(self) -> None:
        """check charges nothing, so it must detect in another way that a cached path is old."""
        self.limits.subtree_limits["left", "gpu"] = 1
        self.quotas.reserve(self.leaf, {"gpu": 1})
        self.move("leaf", "right")
        self.assertEqual([], self.quotas.check(self.leaf, {"gpu": 1}))

    def test_the_constraints_of_the_new_path_apply(self) -> None:
        self.limits.subtree_limits["right", "gpu"] = 1
        self.quotas.reserve(self.leaf, {"gpu": 1})
        self.move("leaf", "right")
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.leaf, {"gpu": 1})
        self.assertEqual(["right"], [over.project_id for over in error.overs])

    def test_a_cycle_is_refused(self) -> None:
        self.quotas.reserve(self.leaf, {"gpu": 1})
        for parent in ("leaf", "left"):
            self.assertRaises(exceptions.ProjectRefused, self.move, "left", parent)
        self.assertEqual("root", self.parents()["left"])

    def parents(self) -> dict[str, str | None]:
        return self.database.read(projects.edges)


class TestTreeFromLimitDriver(base.LedgerTestCase):
    """A limit driver that knows each project's parent, as Keystone knows a project's domain."""

    def setUp(self) -> None:
        super().setUp()
        self.parents = {"p1": "domain", "p2": "domain"}
        self.asked: list[str] = []
        self.limits.parent_of = self.parent_of  # type: ignore[method-assign]
        self.limits.tree_source = "keystone"  # type: ignore[misc]
        self.limits.subtree_limits["domain", "gpu"] = 3

    def parent_of(self, project_id: str) -> str | None:
        self.asked.append(project_id)
        return self.parents.get(project_id)

    def subtrees(self) -> dict[str, int]:
        with self.sql.connect() as connection:
            return trees.subtrees(connection, "gpu")

    def test_a_charge_puts_the_project_there_first(self) -> None:
        self.assertEqual([], self.quotas.check(base.ADMIN, {"gpu": 3}, "p1"))
        self.assertEqual(["domain"], [over.project_id for over in self.quotas.check(base.ADMIN, {"gpu": 4}, "p1")])
        self.quotas.reserve(self.context, {"gpu": 2})
        self.quotas.reserve(base.Context("p2"), {"gpu": 1})
        self.assertEqual({"p1": 2, "p2": 1, "domain": 3}, self.subtrees())
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 1})
        self.assertEqual(["domain"], [over.project_id for over in error.overs])

    def test_its_usage_moves_along(self) -> None:
        self.parents.clear()
        self.quotas.reserve(self.context, {"gpu": 2})
        self.parents["p1"] = "domain"
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual({"p1": 3, "domain": 3}, self.subtrees())

    def test_a_domain_below_another_project_is_not_moved(self) -> None:
        """The source of the tree says nothing of it: the tree is not written again at every charge."""
        database = fixtures.open_database(self, self.url)
        trees.plant(database, {"above": None, "domain": "above"})
        self.quotas.reserve(self.context, {"gpu": 1})
        before = self.generation()
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual(before, self.generation())
        self.assertEqual({"p1": 2, "domain": 2, "above": 2}, self.subtrees())

    def test_an_edge_that_contradicts_is_replaced(self) -> None:
        """With a log line; the history has the previous parent."""
        database = fixtures.open_database(self, self.url)
        trees.plant(database, {"team": None, "p1": "team"})
        with self.assertLogs(tree_changes.LOG.logger, "WARNING") as logged:
            self.quotas.reserve(self.context, {"gpu": 2})
        self.assertIn("Project p1 is moved below domain, as keystone reports; it was below team.", logged.output[0])
        self.assertEqual({"p1": 2, "domain": 2}, self.subtrees())
        moved = [entry for entry in self.engine.limits.history(base.ADMIN, "p1") if entry.before]
        self.assertEqual([("team", "domain")], [(entry.before, entry.after) for entry in moved])

    def test_a_domain_that_lies_below_its_project_becomes_a_root(self) -> None:
        database = fixtures.open_database(self, self.url)
        trees.plant(database, {"p1": None, "between": "p1", "domain": "between"})
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertEqual({"p1": 2, "domain": 2}, self.subtrees())
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 2})
        self.assertEqual(["domain"], [over.project_id for over in error.overs])

    def test_a_new_project_does_not_escape_the_limit_of_its_parent(self) -> None:
        """Not even if many of its first reserves run at once."""
        self.quotas.reserve(base.Context("p2"), {"gpu": 2})

        def reserve() -> None:
            with contextlib.suppress(exceptions.OverQuota):
                self.quotas.reserve(self.context, {"gpu": 1})

        with futures.ThreadPoolExecutor(8) as pool:
            for call in [pool.submit(reserve) for _ in range(16)]:
                call.result()
        self.assertEqual({"p1": 1, "p2": 2, "domain": 3}, self.subtrees())

    def generation(self) -> int:
        with self.sql.connect() as connection:
            return int(connection.exec_driver_sql("SELECT SUM(generation) FROM projects").scalar_one())

    def test_calls_that_no_limit_can_refuse_do_not_read_limits(self) -> None:
        self.quotas.adopt(base.ADMIN, [base.claim("c", gpu=2)], "p1")
        self.assertEqual([], self.asked)
