# SPDX-License-Identifier: Apache-2.0
"""The headroom: which limit binds, under every limit driver; what a project's own user sees; the list of all projects.

tests/model/test_headroom_model.py compares it with reserves on random trees.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fixtures import MonkeyPatch

from cyborg_quota import Headroom, QuotaEngine, exceptions
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.limits.sources.config import ConfigLimitDriver, NoopLimitDriver
from cyborg_quota.types import MAX_AMOUNT, Usage
from tests import base, clouds, fixtures
from tests.functional import test_limits, test_tree_source

UNLIMITED = Headroom(None)


def detail(quotas: QuotaEngine, project_id: str) -> dict[str, tuple[Usage, Headroom | None]]:
    records = quotas.get_detail(base.Context(project_id))
    assert {record.project_id for record in records} == {project_id}
    return {record.resource: (record.usage, record.headroom) for record in records}


def detail_of_two_calls(quotas: QuotaEngine, project_id: str) -> dict[str, tuple[Usage, Headroom | None]]:
    """The same from get_usages and headroom."""
    headrooms = quotas.headroom(base.Context(project_id))
    usages = quotas.get_usages(base.Context(project_id))
    return {resource: (usage, headrooms.get(resource, Headroom(0))) for resource, usage in usages.items()}


class TestTree(test_limits.LimitsTestCase):
    """``physics`` may hold 30, its children 15 and 15; below ``higgs`` there is one more level."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        limits = {"physics": 30, "higgs": 15, "web": 15, "decays": 15}
        self.import_tree(
            {"physics": None, "higgs": "physics", "decays": "higgs", "web": "physics"},
            {name: {"gpu": limit, "fpga": -1} for name, limit in limits.items()},
            gpu=0,
            fpga=-1,
        )

    def headroom(self, project_id: str, resource: str = "gpu") -> Headroom:
        found = self.quotas.headroom(base.ADMIN, project_id)[resource]
        self.assertEqual(found, self.quotas.headroom(base.Context(project_id))[resource])
        self.assertEqual(detail(self.quotas, project_id), detail_of_two_calls(self.quotas, project_id))
        return found

    def test_which_limit_binds(self) -> None:
        """Of equal bounds the nearest. What the children hold counts: ``available`` is 25, but only 5 fit."""
        self.assertEqual(Headroom(15, "decays", "subtree", 15), self.headroom("decays"))
        for project_id, amount in (("physics", 5), ("decays", 10), ("web", 10)):
            self.hold(project_id, amount)
        self.assertEqual(25, self.quotas.get_usages(base.ADMIN, "physics")["gpu"].available)
        self.assertEqual(Headroom(5, "physics", "subtree", 30), self.headroom("physics"))
        self.assertEqual((["physics"], []), (self.blockers("physics", 6), self.blockers("physics", 5)))
        self.hold("physics", 2)
        self.assertEqual(Headroom(3, "physics", "subtree", 30), self.headroom("decays"))
        self.set("decays", 4)
        self.assertEqual(-6, self.quotas.get_usages(base.ADMIN, "decays")["gpu"].available)
        self.assertEqual(Headroom(0, "decays", "subtree", 4), self.headroom("decays"))
        for project_id in ("decays", "unknown"):
            self.assertEqual(UNLIMITED, self.headroom(project_id, "fpga"))

    def test_a_user_sees_only_the_project_that_binds(self) -> None:
        """The usage of the siblings and of the parent, and the limits of other projects, are not in the result (I8)."""
        self.hold("web", 11)
        self.hold("physics", 10)
        found = self.quotas.headroom(base.Context("decays"))
        self.assertEqual({"fpga": UNLIMITED, "gpu": Headroom(9, "physics", "subtree", 30)}, found)
        for context in (base.Context("decays"), base.Context("web"), base.Context(None)):
            self.assertRaises(exceptions.NotAuthorized, self.quotas.headroom, context, "higgs")
        self.assertRaises(exceptions.InvalidName, self.quotas.headroom, base.Context(None))

    def test_a_resource_that_is_not_registered_does_not_fit(self) -> None:
        self.hold("web", 1)
        engine = fixtures.open_engine(self, self.url, NoopLimitDriver())
        engine._resources.clear()
        engine.register_resource("fpga")
        self.assertEqual({"fpga"}, engine.headroom(base.ADMIN, "web").keys())
        self.assertEqual({"fpga", "gpu"}, detail(engine, "web").keys())
        self.assertEqual(detail(engine, "web"), detail_of_two_calls(engine, "web"))
        self.assertEqual(
            {Headroom(0)}, {record.headroom for record in engine.list_usages(base.ADMIN, with_headroom=True)}
        )

    def test_the_list_is_read_in_batches(self) -> None:
        clouds.add_projects(self.sql, 0, 60)
        self.engine.list_usages(base.ADMIN, with_headroom=True)  # connects
        with clouds.captured() as statements:
            plain = self.engine.list_usages(base.ADMIN)
        self.useFixture(MonkeyPatch("cyborg_quota.db.path_state.MAX_PROJECTS", 16))
        with clouds.captured() as more:
            records = self.engine.list_usages(base.ADMIN, with_headroom=True)
        self.assertEqual((len(plain), 64), (len(records), len({record.project_id for record in records})))
        self.assertEqual(len(clouds.queries(statements)) + 4, len(clouds.queries(more)))
        found = {(record.project_id, record.resource): record.headroom for record in records}
        self.assertEqual(Headroom(1, "p7", "subtree", 1), found["p7", "gpu"])


class TestPlan(test_limits.LimitsTestCase):
    scenarios = [one for one in fixtures.SCENARIOS if one[0] == "postgresql"]

    def test_the_statement_is_not_compiled(self) -> None:
        """JIT took a second: with sequential scans off, reading all default limits costs more than its threshold."""
        self.set(None, 5)
        for call in (self.engine.headroom, self.engine.get_usages):
            with clouds.captured() as statements:
                call(self.context)
            self.assertNotIn("JIT", self.explain(*statements[-1]))
        if self.database.read(lambda connection: connection.exec_driver_sql("SELECT pg_jit_available()").scalar()):
            self.assertIn("JIT", self.explain(*statements[-1], "SET LOCAL jit = on"))  # the set-up of this test

    def explain(self, statement: str, parameters: Any, before: str = "SELECT 1") -> str:
        def work(connection: sa.Connection) -> str:
            connection.exec_driver_sql(before)
            return str(connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).all())

        return self.database.read(work)


class TestDrivers(base.LedgerTestCase):
    """Limits that are not in the database."""

    scenarios = fixtures.ON_SQLITE

    def use(self, limits: LimitDriver) -> QuotaEngine:
        return fixtures.Checked(fixtures.open_engine(self, self.url, limits), self.url)  # type: ignore[return-value]

    def test_config_and_noop(self) -> None:
        self.engine.reserve(self.context, {"gpu": 2})
        for limits, left in (
            (ConfigLimitDriver({"gpu": 5, "fpga": -1}), Headroom(3, "p1", "project", 5)),
            (NoopLimitDriver(), Headroom(MAX_AMOUNT - 2, "p1", "counter", MAX_AMOUNT)),
        ):
            quotas = self.use(limits)
            self.assertEqual({"fpga": UNLIMITED, "gpu": left, "gpu.A100": UNLIMITED}, quotas.headroom(self.context))
            self.assertEqual(detail(quotas, "p1"), detail_of_two_calls(quotas, "p1"))

    def test_a_project_that_its_next_reserve_moves(self) -> None:
        """The source of limits reports a domain, in which no charge has put the project yet. Its usage goes along."""
        self.engine.reserve(base.Context("p1"), {"gpu": 4})
        source = test_tree_source.DomainLimits({"p1": "dom", "p2": "dom"})
        source.subtree_limits["dom", "gpu"] = 10
        quotas = self.use(source)
        quotas.reserve(base.Context("p2"), {"gpu": 3})
        self.assertEqual(Headroom(3, "dom", "subtree", 10), quotas.headroom(base.Context("p1"))["gpu"])
        self.assertEqual(detail(quotas, "p1"), detail_of_two_calls(quotas, "p1"))
        self.assertRaises(exceptions.OverQuota, quotas.reserve, base.Context("p1"), {"gpu": 4})
        self.assertEqual(Headroom(3, "dom", "subtree", 10), quotas.headroom(base.Context("p1"))["gpu"])
        quotas.reserve(base.Context("p1"), {"gpu": 3})
        self.assertEqual(Headroom(0, "dom", "subtree", 10), quotas.headroom(base.Context("p2"))["gpu"])
