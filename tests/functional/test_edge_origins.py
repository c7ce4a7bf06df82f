# SPDX-License-Identifier: Apache-2.0
"""Edges of the project tree that a limit driver's source made, and the limits after a switch of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar
from unittest import mock

import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.ledger import limit_changes, project_tree
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.strict_hierarchy import StrictHierarchy
from cyborg_quota.limits.noop import NoopLimitDriver
from tests import base, fixtures, trees

load_tests = testscenarios.load_tests_apply_scenarios


class DomainLimits(fixtures.DictLimits):
    """Limits of a source that puts each project below its domain, as Keystone does under strict_two_level."""

    origin: ClassVar[str | None] = "keystone"

    def __init__(self, domains: Mapping[str, str]) -> None:
        super().__init__()
        self.domains = dict(domains)

    def parent_of(self, project_id: str) -> str | None:
        return self.domains.get(project_id)


class OriginTestCase(base.LedgerTestCase):
    """p1 and p2 in the domain dom; ``by_domain`` and ``by_database`` are engines on one ledger."""

    def setUp(self) -> None:
        super().setUp()
        self.source = DomainLimits({"p1": "dom", "p2": "dom"})
        self.by_domain = self.checked(self.source)
        self.by_database = self.checked(DatabaseLimitDriver(StrictHierarchy(), InitialLimits()))
        self.administration = self.by_database.administration

    def checked(self, limits: object) -> QuotaEngine:
        engine = fixtures.make_engine(self.url, limits)  # type: ignore[arg-type]
        self.addCleanup(engine.close)
        return fixtures.Checked(engine, self.url)  # type: ignore[return-value]

    def charge_by_domain(self) -> None:
        for project_id in ("p1", "p2"):
            self.by_domain.reserve(base.Context(project_id), {"gpu": 2})

    def subtrees(self) -> dict[str, int]:
        with self.sql.connect() as connection:
            return trees.subtrees(connection, "gpu")

    def origins(self) -> dict[str, tuple[str | None, str | None]]:
        """Return (parent, origin) of each project that has a parent or an origin."""
        with self.sql.connect() as connection:
            rows = connection.exec_driver_sql("SELECT project_id, parent_id, origin FROM projects").all()
        return {row.project_id: (row.parent_id, row.origin) for row in rows if row.parent_id or row.origin}


class TestSwitch(OriginTestCase):
    def test_a_domain_does_not_limit_its_projects_after_the_switch(self) -> None:
        self.charge_by_domain()
        self.administration.set_limit(base.ADMIN, "gpu", 3)
        for project_id in ("p1", "p2"):
            self.assertEqual([], self.by_database.check(base.Context(project_id), {"gpu": 1}))
            self.by_database.reserve(base.Context(project_id), {"gpu": 1})
            error = self.assertRaises(
                exceptions.OverQuota, self.by_database.reserve, base.Context(project_id), {"gpu": 1}
            )
            self.assertEqual([project_id], [over.project_id for over in error.overs])

    def test_the_limit_of_a_project_is_shown_as_that_of_a_root(self) -> None:
        self.charge_by_domain()
        self.administration.set_limit(base.ADMIN, "gpu", 3)
        self.assertEqual(3, self.by_database.get_usages(base.Context("p1"))["gpu"].limit)
        shown = {usage.project_id: usage.usage.limit for usage in self.by_database.list_usages(base.ADMIN)}
        self.assertEqual({"p1": 3, "p2": 3, "dom": 3}, shown)
        self.assertEqual(["p1"], [row.project_id for row in self.administration.path(base.ADMIN, "p1")])
        self.assertEqual({0}, {row.depth for row in self.administration.tree(base.ADMIN)})

    def test_the_limit_of_such_a_project_can_be_set(self) -> None:
        self.charge_by_domain()
        self.administration.set_limit(base.ADMIN, "gpu", 3)
        self.administration.set_limit(base.ADMIN, "gpu", 7, "p1")  # more than the limit of dom
        self.by_database.reserve(base.Context("p1"), {"gpu": 5})
        self.assertEqual({"dom": 9, "p1": 7, "p2": 2}, self.subtrees())

    def test_switched_back(self) -> None:
        """The counters followed the edges all the time, so that a switch changes no counter."""
        self.charge_by_domain()
        self.administration.set_limit(base.ADMIN, "gpu", 50)
        self.by_database.reserve(base.Context("p1"), {"gpu": 3})
        self.source.subtree_limits["dom", "gpu"] = 8
        error = self.assertRaises(exceptions.OverQuota, self.by_domain.reserve, base.Context("p2"), {"gpu": 2})
        self.assertEqual([("dom", 8)], [(over.project_id, over.limit) for over in error.overs])
        self.by_domain.reserve(base.Context("p2"), {"gpu": 1})
        self.assertEqual({"dom": 8, "p1": 5, "p2": 3}, self.subtrees())

    def test_which_driver_ignores_which_edges(self) -> None:
        self.charge_by_domain()
        noop = self.checked(NoopLimitDriver()).administration
        self.assertEqual({"keystone": 2}, noop.count_ignored_edges(base.ADMIN))
        self.assertEqual({"keystone": 2}, self.administration.count_ignored_edges(base.ADMIN))
        self.assertIn("2 of keystone", str(self.administration.ignored_edges_warning(base.ADMIN)))
        self.assertIsNone(self.by_domain.administration.ignored_edges_warning(base.ADMIN))
        self.assertRaises(exceptions.NotAuthorized, noop.count_ignored_edges, self.context)


class TestMark(OriginTestCase):
    def test_an_edge_is_marked_when_it_is_made(self) -> None:
        self.charge_by_domain()
        self.assertEqual({"p1": ("dom", "keystone"), "p2": ("dom", "keystone")}, self.origins())

    def test_an_edge_of_the_operator_stays_the_operators(self) -> None:
        """It agrees with the source's; also after ``--keep``, while a process still has the old driver."""
        self.charge_by_domain()
        self.administration.detach_projects(base.ADMIN, "keystone", keep=True)
        before = self.generations()
        another = self.checked(self.source)  # whose cache of paths is empty
        for engine in (another, self.by_domain):
            engine.reserve(base.Context("p1"), {"gpu": 1})
        self.assertEqual({"p1": ("dom", None), "p2": ("dom", None)}, self.origins())
        self.assertEqual(before, self.generations())
        self.administration.set_limit(base.ADMIN, "gpu", 6, "dom")
        error = self.assertRaises(exceptions.LimitRefused, self.administration.set_limit, base.ADMIN, "gpu", 50, "p1")
        self.assertIn("dom", str(error))

    def test_another_edge_of_the_operator_is_replaced(self) -> None:
        """With a warning; the history has the parent that the operator set."""
        self.administration.add_project(base.ADMIN, "team")
        self.administration.add_project(base.ADMIN, "p1", "team")
        with self.assertLogs(project_tree.LOG.logger, "WARNING") as logged:
            self.by_domain.reserve(base.Context("p1"), {"gpu": 2})
        self.assertIn("Project p1 is moved below dom, as keystone reports; it was below team", logged.output[0])
        self.assertEqual({"p1": ("dom", "keystone")}, self.origins())
        moves = [entry for entry in self.administration.history(base.ADMIN, "p1") if entry.before == "team"]
        self.assertEqual(["dom"], [entry.after for entry in moves])

    def test_a_warning_before_edges_are_replaced(self) -> None:
        """It names the edges that differ from the source's, and none that agrees or that the source does not define."""
        for project_id, parent_id in (("team", None), ("p1", "team"), ("p2", "dom"), ("p3", "team")):
            if parent_id == "dom":
                self.administration.add_project(base.ADMIN, "dom")
            self.administration.add_project(base.ADMIN, project_id, parent_id)
        [warning] = self.by_domain.administration.tree_warnings(base.ADMIN)
        self.assertIn("differ from those of keystone (p1 is below team and not dom).", warning)
        self.assertEqual([], self.administration.tree_warnings(base.ADMIN))
        self.charge_by_domain()
        self.assertEqual([], self.by_domain.administration.tree_warnings(base.ADMIN))
        [warning] = self.administration.tree_warnings(base.ADMIN)
        self.assertIn("1 of keystone", warning)
        self.assertRaises(exceptions.NotAuthorized, self.administration.tree_warnings, self.context)

    def generations(self) -> list[tuple[str, int]]:
        with self.sql.connect() as connection:
            rows = connection.exec_driver_sql("SELECT project_id, generation FROM projects ORDER BY project_id")
            return [tuple(row) for row in rows]  # type: ignore[misc]

    def test_a_move_by_the_operator_clears_it(self) -> None:
        self.charge_by_domain()
        self.administration.set_limits(base.ADMIN, {"gpu": 5}, None)
        self.administration.move_project(base.ADMIN, "p1", "dom")
        self.administration.add_project(base.ADMIN, "p2")
        self.assert_invariants()
        self.assertEqual({"p1": ("dom", None)}, self.origins())
        self.assertEqual({"dom": 2, "p1": 2, "p2": 2}, self.subtrees())

    def test_an_import_clears_it(self) -> None:
        """Even if the file puts the domain below its project: the stored edge is removed with the rest."""
        self.charge_by_domain()
        wanted = {"projects": [{"id": "p1", "children": [{"id": "dom"}]}]}
        changes = self.administration.import_limits(base.ADMIN, wanted)
        self.assert_invariants()
        self.assertEqual(
            [("p1", "dom", None), ("dom", None, "p1")],
            [(change.project_id, change.before, change.after) for change in changes],
        )
        self.assertEqual({"dom": ("p1", None), "p2": ("dom", "keystone")}, self.origins())
        self.assertEqual({"p1": 4, "dom": 2, "p2": 2}, self.subtrees())
        self.assertEqual([], self.administration.import_limits(base.ADMIN, wanted))


class TestFence(OriginTestCase):
    """A mark is changed while a charge is in progress."""

    def setUp(self) -> None:
        super().setUp()
        self.charge_by_domain()
        self.administration.set_limits(base.ADMIN, {"gpu": 5}, None)
        for project_id in ("p1", "p2"):
            self.administration.set_limit(base.ADMIN, "gpu", 2, project_id)
        self.administration.set_limit(base.ADMIN, "gpu", 4, "dom")
        self.by_database.release(base.Context("p1"), [self.uuid_of("p1")])
        self.by_database.reserve(base.Context("p1"), {"gpu": 1})  # dom holds 3, and the path of p1 is cached

    def uuid_of(self, project_id: str) -> str:
        return self.by_database.list_reservations(base.ADMIN, project_id, state="reserved")[0].uuid

    def keep(self) -> None:
        other = fixtures.make_engine(self.url, DatabaseLimitDriver(StrictHierarchy(), InitialLimits()))
        self.addCleanup(other.close)
        other.administration.set_limit(base.ADMIN, "gpu", 0, "p2")
        other.administration.set_limit(base.ADMIN, "gpu", 3, "p1")
        other.administration.detach_projects(base.ADMIN, "keystone", keep=True)
        other.administration.set_limit(base.ADMIN, "gpu", 3, "dom")

    def test_after_the_lookup_and_before_the_charge(self) -> None:
        limits = self.engine_limits()
        real, asked = limits.get_constraints, []

        def once(path: list[str], resources: list[str]) -> object:
            asked.append(list(path))
            found = real(path, resources)
            if len(asked) == 1:
                self.keep()
            return found

        with mock.patch.object(limits, "get_constraints", once):
            error = self.assertRaises(
                exceptions.OverQuota, self.by_database.reserve, base.Context("p1", True), {"gpu": 1}
            )
        self.assertEqual([("dom", 3)], [(over.project_id, over.subtree) for over in error.overs])
        self.assertEqual([["p1"], ["p1", "dom"]], asked)

    def engine_limits(self) -> DatabaseLimitDriver:
        limits = self.by_database._engine._driver.limits  # type: ignore[attr-defined]
        assert isinstance(limits, DatabaseLimitDriver)
        return limits

    def test_a_remembered_path(self) -> None:
        self.keep()
        error = self.assertRaises(exceptions.OverQuota, self.by_database.reserve, base.Context("p1"), {"gpu": 1})
        self.assertEqual(["dom"], [over.project_id for over in error.overs])


class TestDetach(OriginTestCase):
    def detach(self, **changes: bool) -> list[tuple[str, str]]:
        found = self.administration.detach_projects(base.ADMIN, "keystone", **changes)
        self.assert_invariants()
        return found

    def test_projects_become_roots_in_batches(self) -> None:
        self.charge_by_domain()
        sizes: list[int] = []
        with mock.patch.object(limit_changes, "BATCH_PROJECTS", 1):
            found = self.administration.detach_projects(base.ADMIN, "keystone", progress=sizes.append)
        self.assertEqual([("p1", "dom"), ("p2", "dom")], found)
        self.assertEqual([1, 1], sizes)
        self.assertEqual({}, self.origins())
        self.assertEqual({"dom": 0, "p1": 2, "p2": 2}, self.subtrees())
        self.assertEqual([], self.detach())
        self.assert_invariants()

    def test_descendants_move_along(self) -> None:
        self.charge_by_domain()
        self.administration.add_project(base.ADMIN, "child", "p1")
        self.by_domain.reserve(base.Context("child"), {"gpu": 1})
        self.detach()
        self.assertEqual({"child": ("p1", None)}, self.origins())
        self.assertEqual({"dom": 0, "p1": 3, "p2": 2, "child": 1}, self.subtrees())

    def test_dry_run(self) -> None:
        self.charge_by_domain()
        before = self.origins()
        self.assertEqual([("p1", "dom"), ("p2", "dom")], self.detach(dry_run=True))
        self.assertEqual(before, self.origins())

    def test_keep(self) -> None:
        self.charge_by_domain()
        self.administration.set_limits(base.ADMIN, {"gpu": 5}, None)
        for project_id, limit in (("p1", 3), ("p2", 2)):
            self.administration.set_limit(base.ADMIN, "gpu", limit, project_id)
        self.assertEqual([("p1", "dom"), ("p2", "dom")], self.detach(keep=True))
        self.assertEqual({"p1": ("dom", None), "p2": ("dom", None)}, self.origins())
        self.assertEqual({}, self.administration.count_ignored_edges(base.ADMIN))
        self.assertEqual(["dom", "p1"], [row.project_id for row in self.administration.path(base.ADMIN, "p1")])

    def test_keep_is_refused_as_a_whole_where_the_limits_do_not_fit(self) -> None:
        self.charge_by_domain()
        self.administration.set_limits(base.ADMIN, {"gpu": 5}, None)
        for project_id in ("p1", "p2"):
            self.administration.set_limit(base.ADMIN, "gpu", 3, project_id)
        before = self.origins()
        for changes in ({"keep": True}, {"keep": True, "dry_run": True}):
            with mock.patch.object(limit_changes, "BATCH_PROJECTS", 1):
                error = self.assertRaises(exceptions.LimitRefused, self.detach, **changes)
            self.assertIn("children of dom would sum up to 6; the limit of dom is 5", str(error))
        self.assertEqual(before, self.origins())
        self.detach()  # changes no limit

    def test_bad_input(self) -> None:
        administration = self.by_domain.administration
        self.assertRaises(exceptions.InvalidRequest, administration.detach_projects, base.ADMIN, "keystone")
        for origin in ("placement", "", None):
            error = self.assertRaises(exceptions.InvalidName, self.administration.detach_projects, base.ADMIN, origin)
            self.assertIn(repr(origin), str(error))
        self.assertRaises(exceptions.NotAuthorized, self.administration.detach_projects, self.context, "keystone")
