# SPDX-License-Identifier: Apache-2.0
"""Edges of the project tree that a limit driver's source made, and the limits after a switch of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.limits.book import Starts
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.policies.strict_hierarchy import StrictHierarchy
from tests import base, fixtures

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
        self.by_database = self.checked(DatabaseLimitDriver(StrictHierarchy(), Starts()))
        self.administration = self.by_database.administration

    def checked(self, limits: object) -> QuotaEngine:
        engine = fixtures.make_engine(self.url, limits)  # type: ignore[arg-type]
        self.addCleanup(engine.close)
        return fixtures.Checked(engine, self.url)  # type: ignore[return-value]

    def charge_by_domain(self) -> None:
        for project_id in ("p1", "p2"):
            self.by_domain.reserve(base.Context(project_id), {"gpu": 2})

    def origins(self) -> dict[str, tuple[str | None, str | None]]:
        """(parent, origin) of each project that has one or the other."""
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
        shown = {one.project_id: one.usage.limit for one in self.by_database.list_usages(base.ADMIN)}
        self.assertEqual({"p1": 3, "p2": 3, "dom": 3}, shown)
        self.assertEqual(["p1"], [row.project_id for row in self.administration.path(base.ADMIN, "p1")])
        self.assertEqual({0}, {row.depth for row in self.administration.tree(base.ADMIN)})
