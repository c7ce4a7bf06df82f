# SPDX-License-Identifier: Apache-2.0
"""The database limit driver: CERN's rules one by one, the other models, and the tree; on every database."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any
from unittest import mock

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import EnforcementModel, StrictHierarchy, StrictTwoLevel
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures

UNLIMITED = -1


class LimitsTestCase(base.LedgerTestCase):
    policy: type[EnforcementModel] = StrictHierarchy
    initial = InitialLimits()

    def make_limited(self, *, missing_is_unlimited: bool = False, **changes: Any) -> QuotaEngine:
        limits = DatabaseLimitDriver(self.policy(), self.initial, missing_is_unlimited=missing_is_unlimited)
        how: Any = {"statement_timeout_seconds": 8, "resources": ("fpga", "gpu"), **changes}
        return fixtures.open_engine(self, self.url, limits, **how)

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


class TestRepeatedReserve(LimitsTestCase):
    """A call whose answer was lost is repeated after its limit was unset, or the limits cannot be read any more."""

    def test_it_returns_what_was_charged_until_it_is_overdue(self) -> None:
        self.set("p", 5)
        context = base.Context("p")
        uuids = self.quotas.reserve(context, {"gpu": 1}, consumer="c")
        self.admin.unset_limit(base.ADMIN, "gpu", "p")
        self.assertEqual(uuids, self.quotas.reserve(context, {"gpu": 1}, consumer="c"))
        self.assertRaises(exceptions.ReservationConflict, self.quotas.reserve, context, {"gpu": 2}, consumer="c")
        claims = [Claim(consumer, {"gpu": 1}) for consumer in ("c", "d")]
        for refused in (claims, claims[1:]):
            self.assertRaises(exceptions.LimitNotSet, self.quotas.reserve_many, context, refused)
        with mock.patch.object(DatabaseLimitDriver, "bounds", side_effect=exceptions.LimitsUnavailable("down", 9)):
            self.assertEqual(uuids, self.engine.reserve(context, {"gpu": 1}, consumer="c"))
        self.make_overdue(*uuids)
        for _ in range(2):
            self.assertRaises(exceptions.LimitNotSet, self.quotas.reserve, context, {"gpu": 1}, consumer="c")
            self.assertEqual(["expired"], self.states(*uuids))


class TestTwoLevels(LimitsTestCase):
    scenarios = fixtures.ON_SQLITE
    policy = StrictTwoLevel

    def test_its_rules(self) -> None:
        self.set(None, 8)
        self.make_tree({"domain": None, "a": "domain", "b": "domain"})
        for project_id in ("a", "b"):
            self.set(project_id, 5)
        self.hold("a", 5)
        self.assertEqual([[], ["domain"], ["b", "domain"]], [self.blockers("b", amount) for amount in (3, 4, 6)])
        # No child above its parent, and no third level.
        self.admin.add_project(base.ADMIN, "other")
        for call, *arguments in (
            (self.set, "a", 9),
            (self.set, "a", UNLIMITED),
            (self.set, "domain", 4),
            (self.admin.add_project, base.ADMIN, "c", "a"),
            (self.admin.move_project, base.ADMIN, "domain", "other"),
        ):
            self.assertRaises(exceptions.LimitRefused, call, *arguments)
        for project_id in ("domain", "a"):
            self.set(project_id, UNLIMITED)


class TestMissing(LimitsTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_refused_with_the_command_that_sets_one(self) -> None:
        """Unless it is unlimited where configured."""
        command, reserve = "`set --default gpu=10`", self.quotas.reserve
        self.assertRaisesRegex(exceptions.LimitNotSet, command, reserve, self.context, {"gpu": 1})
        engine = self.make_limited(missing_is_unlimited=True)
        engine.reserve(self.context, {"gpu": 1000})
        limits = [quotas.get_usages(self.context)["gpu"].limit for quotas in (engine, self.engine)]
        self.assertEqual([UNLIMITED, 0], limits, "0: every reserve is refused")
        self.set(None, 1001)
        self.quotas.reserve(self.context, {"gpu": 1})


class TestTree(LimitsTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.set(None, UNLIMITED)

    def assert_refused(self, *cases: tuple[Any, ...]) -> None:
        """Cases: what the error says, the call, and its arguments after the context."""
        for text, call, *arguments in cases:
            error = self.assertRaises(exceptions.ProjectRefused, call, base.ADMIN, *arguments)
            self.assertIn(text, str(error))

    def test_refusals(self) -> None:
        add, move, remove = self.admin.add_project, self.admin.move_project, self.admin.remove_project
        self.assert_refused(
            ("nowhere", add, "a", "nowhere"), ("not known", move, "a", None), ("not known", remove, "a")
        )
        self.assertEqual([], self.admin.list_projects(base.ADMIN))
        self.make_tree({"x": None, **{name: parent for parent, name in itertools.pairwise([None, *"abcdefgh"])}})
        self.assert_refused(
            ("9 levels", add, "i", "h"),
            ("children", remove, "a"),
            ("9 levels; at most 8 are possible", move, "a", "x"),
            *(("below itself", move, "a", parent) for parent in ("a", "b", "c")),
        )
        for limit in (-2, True, 1.5, "3", None, 2**63):
            self.assertRaises(exceptions.InvalidRequest, self.admin.set_limit, base.ADMIN, "gpu", limit)
        self.assertRaises(exceptions.UnknownResource, self.admin.set_limit, base.ADMIN, "tpu", 1)

    def test_the_bindings_of_a_removed_project_end(self) -> None:
        self.make_tree({"a": None, "b": None})
        pods = self.quotas.pods
        pods.add(base.ADMIN, "p1", affinity={"class": "cad"})
        for affinity in (None, {"class": "cad"}):
            pods.move_binding(base.ADMIN, "a", "p1", affinity=affinity)
        self.set("a", UNLIMITED)
        (uuid,) = self.quotas.reserve(base.Context("a"), {"gpu": 1})
        self.assert_refused(("holds", self.admin.remove_project, "a"))
        self.assertEqual(2, len(pods.list_bindings(base.ADMIN)))
        self.assertRaisesRegex(exceptions.PodInUse, "`pod binding delete --pod`", pods.remove, base.ADMIN, "p1")
        self.quotas.rollback(base.Context("a"), [uuid])
        pods.move_binding(base.ADMIN, "b", "p1")
        self.admin.remove_project(base.ADMIN, "a")
        self.assertEqual(["b"], [one.project_id for _, one in pods.list_bindings(base.ADMIN)])
        ended = [one for _, one in pods.list_bindings(base.ADMIN, "a", history=True) if one.ends_at is not None]
        self.assertEqual(2, len(ended))
