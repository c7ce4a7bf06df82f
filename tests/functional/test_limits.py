# SPDX-License-Identifier: Apache-2.0
"""The database limit driver: CERN's rules one by one, the other models, and the tree; on every database."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import EnforcementModel, Flat, StrictHierarchy, StrictTwoLevel
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures

load_tests = testscenarios.load_tests_apply_scenarios

UNLIMITED = -1


class LimitsTestCase(base.LedgerTestCase):
    policy: type[EnforcementModel] = StrictHierarchy

    def make_limited(self, *, statement_timeout_seconds: int = 8, **changes: Any) -> QuotaEngine:
        limits = DatabaseLimitDriver(self.policy(), InitialLimits(), **changes)
        how = fixtures.settings(self.url, statement_timeout_seconds=statement_timeout_seconds)
        engine = QuotaEngine(DbQuotaDriver(DriverSettings(database=how), limits))
        engine.register_resources(["fpga", "gpu"])
        self.addCleanup(engine.close)
        return engine

    def setUp(self) -> None:
        super().setUp()
        self.engine = self.make_limited()
        self.quotas = fixtures.Checked(self.engine, self.url)  # type: ignore[assignment]
        self.admin = self.engine.limits
        self.database = fixtures.open_database(self, self.url)

    def set(self, project_id: str | None, limit: int, resource: str = "gpu") -> None:
        self.admin.set_limit(base.ADMIN, resource, limit, project_id)
        self.assert_invariants()

    def import_tree(
        self,
        tree: Mapping[str, str | None],
        limits: Mapping[str, int | dict[str, int]],
        **defaults: int,
    ) -> None:
        """Make a tree, parents first, with limits (of gpu, or of several resources) by one call, which is faster."""
        nodes: dict[str, dict[str, Any]] = {}
        roots = []
        for project_id, parent_id in tree.items():
            limit = limits.get(project_id, {})
            own = {"gpu": limit} if isinstance(limit, int) else limit
            nodes[project_id] = {"id": project_id, "limits": own, "children": []}
            (roots if parent_id is None else nodes[parent_id]["children"]).append(nodes[project_id])
        self.admin.import_limits(base.ADMIN, {"defaults": defaults, "projects": roots})
        self.assert_invariants()

    def make_tree(self, tree: dict[str, str | None]) -> None:
        for project_id, parent_id in tree.items():
            self.admin.add_project(base.ADMIN, project_id, parent_id)

    def hold(self, project_id: str, amount: int) -> None:
        context = base.Context(project_id)
        self.quotas.commit(context, self.quotas.reserve(context, {"gpu": amount}))

    def blockers(self, project_id: str, amount: int = 1) -> list[str]:
        """Return the projects whose limits refuse a reserve; check and reserve must agree."""
        checked = [over.project_id for over in self.quotas.check(base.ADMIN, {"gpu": amount}, project_id)]
        try:
            uuids = self.quotas.reserve(base.ADMIN, {"gpu": amount}, project_id=project_id)
        except exceptions.OverQuota as error:
            self.assertEqual(checked, [over.project_id for over in error.overs])
            return checked
        self.quotas.rollback(base.ADMIN, uuids)
        self.assertEqual([], checked)
        return []


class TestCern(LimitsTestCase):
    """CERN's example: ATLAS is the parent of Physics and Operations, each with two children; 100 are shared."""

    def setUp(self) -> None:
        super().setUp()
        self.import_tree(
            {
                "atlas": None,
                "physics": "atlas",
                "operations": "atlas",
                "higgs": "physics",
                "simulation": "physics",
                "workflow": "operations",
                "web": "operations",
            },
            {
                "atlas": 100,
                "physics": 30,
                "operations": 70,
                "higgs": 10,
                "simulation": 10,
                "workflow": 40,
                "web": 30,
            },
            gpu=0,
        )

    def refused(self, project_id: str, limit: int) -> str:
        error = self.assertRaises(exceptions.LimitRefused, self.admin.set_limit, base.ADMIN, "gpu", limit, project_id)
        return str(error)

    def test_no_child_can_be_raised_past_the_parents_limit(self) -> None:
        for project_id in ("physics", "operations"):
            self.assertIn(
                "children of atlas would sum up to 101",
                self.refused(project_id, {"physics": 31, "operations": 71}[project_id]),
            )
        for project_id in ("workflow", "web"):
            self.assertIn("operations", self.refused(project_id, 41 if project_id == "workflow" else 31))

    def test_unallocated_quota_of_the_parent_can_be_given(self) -> None:
        self.set("higgs", 20)
        self.assertIn("physics", self.refused("simulation", 11))

    def test_the_parent_cannot_be_lowered_below_its_children(self) -> None:
        self.assertIn("sum up to 70", self.refused("operations", 50))
        self.set("web", 10)
        self.set("operations", 50)

    def test_a_limit_can_be_set_below_the_usage_and_refuses_new_reserves(self) -> None:
        self.hold("simulation", 10)
        self.set("simulation", 5)
        self.assertEqual(["simulation"], self.blockers("simulation"))
        (row,) = self.admin.list_over(base.ADMIN)
        self.assertEqual(("simulation", 5, 10, -5), (row.project_id, row.limit, row.subtree, row.available))

    def test_resources_can_be_used_at_every_level_and_only_the_parent_is_named(self) -> None:
        """A leaf has not reached its limit, but its parent has: the parent itself holds the rest."""
        self.hold("physics", 25)
        self.assertEqual([], self.blockers("higgs", 5))
        self.assertEqual(["physics"], self.blockers("higgs", 6))
        self.assertEqual(["higgs", "physics"], self.blockers("higgs", 11))

    def test_a_sibling_over_its_lowered_limit_fills_the_parent(self) -> None:
        self.set("higgs", 20)
        self.hold("higgs", 20)
        self.set("higgs", 5)
        self.set("simulation", 25)
        self.assertEqual(["physics"], self.blockers("simulation", 11))

    def test_the_exact_remaining_amount_can_be_reserved(self) -> None:
        self.hold("web", 5)
        self.hold("workflow", 30)
        self.hold("higgs", 10)
        self.hold("simulation", 10)
        self.assertEqual([], self.blockers("web", 25))
        self.hold("web", 25)
        rows = {row.project_id: row for row in self.admin.tree(base.ADMIN)}
        self.assertEqual((30, 60, 80), (rows["web"].used, rows["operations"].subtree, rows["atlas"].subtree))

    def test_a_child_starts_at_zero(self) -> None:
        self.admin.add_project(base.ADMIN, "newcomer", "web")
        self.assertEqual(["newcomer"], self.blockers("newcomer"))

    def test_an_unlimited_child_below_a_finite_parent_is_refused(self) -> None:
        self.assertIn("cannot be unlimited", self.refused("higgs", UNLIMITED))

    def test_an_unlimited_parent_bounds_nothing(self) -> None:
        self.set("atlas", UNLIMITED)
        self.set("physics", UNLIMITED)
        self.set("higgs", 10**9)
        self.assertEqual([], self.blockers("higgs", 1000))

    def test_zero_allows_nothing_at_any_level(self) -> None:
        for project_id in ("higgs", "simulation", "physics"):
            self.set(project_id, 0)
        self.assertEqual(["higgs", "physics"], self.blockers("higgs"))
        self.assertEqual(["physics"], self.blockers("physics"))

    def test_a_move_that_would_overbook_is_refused(self) -> None:
        error = self.assertRaises(exceptions.LimitRefused, self.admin.move_project, base.ADMIN, "higgs", "operations")
        self.assertIn("operations", str(error))
        self.set("web", 20)
        self.hold("higgs", 4)
        self.admin.move_project(base.ADMIN, "higgs", "operations")
        self.assert_invariants()
        rows = {row.project_id: row.subtree for row in self.admin.tree(base.ADMIN)}
        self.assertEqual((0, 4, 4), (rows["physics"], rows["operations"], rows["atlas"]))

    def test_an_unset_limit_is_the_start_again(self) -> None:
        self.admin.unset_limit(base.ADMIN, "gpu", "higgs")
        self.assertEqual(["higgs"], self.blockers("higgs"))
        error = self.assertRaises(exceptions.LimitRefused, self.admin.unset_limit, base.ADMIN, "gpu", "atlas")
        self.assertIn("atlas", str(error))


class TestTwoLevels(LimitsTestCase):
    policy = StrictTwoLevel

    def setUp(self) -> None:
        super().setUp()
        self.set(None, 8)
        self.make_tree({"domain": None, "a": "domain", "b": "domain"})

    def test_overbooking_is_allowed_and_the_parent_blocks(self) -> None:
        self.set("a", 5)
        self.set("b", 5)
        self.hold("a", 5)
        self.assertEqual([], self.blockers("b", 3))
        self.assertEqual(["domain"], self.blockers("b", 4))
        self.assertEqual(["b", "domain"], self.blockers("b", 6))

    def test_no_child_above_its_parent(self) -> None:
        for limit in (9, UNLIMITED):
            self.assertRaises(exceptions.LimitRefused, self.set, "a", limit)
        self.set("a", 8)
        self.assertRaises(exceptions.LimitRefused, self.set, "domain", 7)
        self.set("domain", UNLIMITED)
        self.set("a", UNLIMITED)

    def test_no_third_level(self) -> None:
        self.assertRaises(exceptions.LimitRefused, self.admin.add_project, base.ADMIN, "c", "a")
        self.admin.add_project(base.ADMIN, "other")
        self.assertRaises(exceptions.LimitRefused, self.admin.move_project, base.ADMIN, "domain", "other")


class TestFlat(LimitsTestCase):
    policy = Flat

    def test_each_project_separately(self) -> None:
        self.set(None, 3)
        self.make_tree({"parent": None, "child": "parent"})
        self.set("child", UNLIMITED)
        self.hold("child", 50)
        self.assertEqual([], self.blockers("parent", 3))
        self.assertEqual(["parent"], self.blockers("parent", 4))
        self.set("parent", 0)
        self.assertEqual([], self.blockers("child", 50))


class TestMissing(LimitsTestCase):
    def test_refused_with_the_command_that_sets_one(self) -> None:
        error = self.assertRaises(exceptions.LimitNotSet, self.quotas.reserve, self.context, {"gpu": 1})
        self.assertIn("cyborg-quota set --default gpu=10", str(error))
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))
        self.set(None, 1)
        self.quotas.reserve(self.context, {"gpu": 1})

    def test_unlimited_where_configured(self) -> None:
        engine = self.make_limited(missing_is_unlimited=True)
        engine.reserve(self.context, {"gpu": 1000})
        self.assertEqual(UNLIMITED, engine.get_usages(self.context)["gpu"].limit)
        self.assertEqual(0, self.engine.get_usages(self.context)["gpu"].limit, "every reserve is refused")


class TestTree(LimitsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.set(None, UNLIMITED)

    def refused(self, call: Any, *args: Any) -> str:
        return str(self.assertRaises(exceptions.ProjectRefused, call, base.ADMIN, *args))

    def test_unknown_projects(self) -> None:
        self.assertIn("nowhere", self.refused(self.admin.add_project, "a", "nowhere"))
        self.assertIn("not known", self.refused(self.admin.move_project, "a", None))
        self.assertIn("not known", self.refused(self.admin.remove_project, "a"))
        self.assertEqual([], self.admin.list_projects(base.ADMIN))

    def test_a_cycle(self) -> None:
        self.make_tree({"a": None, "b": "a", "c": "b"})
        for parent in ("a", "b", "c"):
            self.assertIn("below itself", self.refused(self.admin.move_project, "a", parent))

    def test_too_deep(self) -> None:
        self.make_tree({name: parent for parent, name in itertools.pairwise([None, *"abcdefgh"])})
        self.assertIn("9 levels", self.refused(self.admin.add_project, "i", "h"))
        self.admin.add_project(base.ADMIN, "x")
        self.assertIn("9 levels; at most 8 are possible", self.refused(self.admin.move_project, "a", "x"))

    def test_a_project_with_usage_cannot_be_removed(self) -> None:
        self.make_tree({"a": None, "b": "a"})
        self.set("b", UNLIMITED)
        self.assertIn("children", self.refused(self.admin.remove_project, "a"))
        (uuid,) = self.quotas.reserve(base.Context("b"), {"gpu": 1})
        self.assertIn("holds", self.refused(self.admin.remove_project, "b"))
        self.quotas.rollback(base.Context("b"), [uuid])
        self.admin.remove_project(base.ADMIN, "b")
        self.assert_invariants()
        self.assertEqual([("a", None)], self.admin.list_projects(base.ADMIN))

    def test_the_bindings_of_a_removed_project_end(self) -> None:
        self.make_tree({"a": None, "b": None})
        pods = self.quotas.pods
        pods.add(base.ADMIN, "p1")
        for zone in (None, "z"):
            pods.move_binding(base.ADMIN, "a", "p1", zone)
        self.set("a", UNLIMITED)
        (uuid,) = self.quotas.reserve(base.Context("a"), {"gpu": 1})
        self.refused(self.admin.remove_project, "a")
        self.assertEqual(2, len(pods.list_bindings(base.ADMIN)))
        error = self.assertRaises(exceptions.PodInUse, pods.remove, base.ADMIN, "p1")
        self.assertIn("`pod binding delete --pod`", str(error))
        self.quotas.rollback(base.Context("a"), [uuid])
        pods.move_binding(base.ADMIN, "b", "p1")
        self.admin.remove_project(base.ADMIN, "a")
        self.assertEqual(["b"], [one.project_id for _, one in pods.list_bindings(base.ADMIN)])
        ended = [one.ends_at for _, one in pods.list_bindings(base.ADMIN, "a", history=True)]
        self.assertEqual([True, True], [moment is not None for moment in ended])
        self.admin.remove_project(base.ADMIN, "b")
        pods.remove(base.ADMIN, "p1")

    def test_a_removed_project_can_be_charged_again_as_a_root(self) -> None:
        """The engine has its old path and rows in its cache, and detects that they are gone."""
        self.make_tree({"a": None, "b": "a"})
        self.set("b", 1)
        (uuid,) = self.quotas.reserve(base.Context("b"), {"gpu": 1})
        self.quotas.release(base.Context("b"), [uuid])
        other = self.make_limited()
        other.limits.remove_project(base.ADMIN, "b")
        self.hold("b", 5)
        self.assert_invariants()

    def test_bad_limits(self) -> None:
        for limit in (-2, True, 1.5, "3", None, 2**63):
            self.assertRaises(exceptions.InvalidRequest, self.admin.set_limit, base.ADMIN, "gpu", limit)
        self.assertRaises(exceptions.UnknownResource, self.admin.set_limit, base.ADMIN, "tpu", 1)


class TestSwitching(LimitsTestCase):
    """The limit driver of a ledger in use is changed: the totals are right under every driver, without repair."""

    def test_from_database_to_none_and_back(self) -> None:
        self.set(None, 10)
        self.make_tree({"parent": None, "child": "parent"})
        self.set("child", 10)
        self.hold("child", 4)
        without = fixtures.Checked(fixtures.make_engine(self.url), self.url)
        child = base.Context("child")
        without.commit(child, without.reserve(child, {"gpu": 4}))
        without.release(child, without.reserve(child, {"gpu": 50}))
        self.assertEqual([], self.quotas.audit(base.ADMIN))
        self.assertEqual([], self.blockers("child", 2))
        self.assertEqual(["child", "parent"], self.blockers("child", 3))


class TestOtherDriver(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[:1]

    def test_the_error_says_that_limits_are_not_kept_here(self) -> None:
        admin = self.engine.limits
        for call in (admin.tree, admin.list_over):
            error = self.assertRaises(exceptions.LimitsReadOnly, call, base.ADMIN)
            self.assertIn("[limits] driver", str(error))
        self.assertRaises(exceptions.LimitsReadOnly, admin.set_limit, base.ADMIN, "gpu", 1)
