# SPDX-License-Identifier: Apache-2.0
"""What the calls of a project's user read does not grow with the cloud. Rows are counted; no time is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import testscenarios

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.config import ConfigLimitDriver
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from tests import base, clouds, fixtures
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

SMALL, LARGE = 200, 20_000
MOST_MORE_ROWS = 60
"""The number of additional rows (on SQLite: steps) that a query may read in the large cloud."""

Call = Callable[[QuotaEngine], object]


def in_flight(engine: QuotaEngine) -> list[str]:
    claim = Claim("consumer", {"gpu": 1})
    return engine.reserve_many(base.Context("p7"), [claim], group="group")


def refused(engine: QuotaEngine) -> None:
    with contextlib.suppress(exceptions.OverQuota):
        engine.reserve(base.Context("p7"), {"gpu": 2})


OWN: dict[str, Call] = {
    "get_usages": lambda engine: engine.get_usages(base.Context("p7")),
    "headroom": lambda engine: engine.headroom(base.Context("p7")),
    "check": lambda engine: engine.check(base.Context("p7"), {"gpu": 1, "fpga": 1}),
    "check that finds a limit": lambda engine: engine.check(base.Context("p7"), {"gpu": 2}),
    "reserve, refused": refused,
    "reserve": in_flight,
    "reserve, again": in_flight,
    "extend": lambda engine: engine.extend(base.Context("p7"), expire=9, consumer="consumer"),
    "commit": lambda engine: engine.commit(base.Context("p7"), group="group"),
    "release": lambda engine: engine.release(base.Context("p7"), consumer="consumer"),
    "list_usages": lambda engine: engine.list_usages(base.ADMIN, "p7"),
    "list_reservations": lambda engine: engine.list_reservations(base.ADMIN, "p7"),
    "list_reservations, first": lambda engine: engine.list_reservations(base.ADMIN, "p7", limit=1),
    "list_reservations, state": lambda engine: engine.list_reservations(base.ADMIN, "p7", state="released", limit=5),
    "list_reservations, consumer": lambda engine: engine.list_reservations(base.ADMIN, "p7", consumer="consumer"),
    "list_reservations, group": lambda engine: engine.list_reservations(base.ADMIN, "p7", group="group", limit=5),
    "list_reservations, uuid": lambda engine: engine.list_reservations(base.ADMIN, reservations=["ended-7-0"]),
    "list_reservations, next": lambda engine: engine.list_reservations(base.ADMIN, "p7", limit=5, after="ended-7-0"),
    "list_limits": lambda engine: engine.administration.list_limits(base.ADMIN, "p7"),
    "path": lambda engine: engine.administration.path(base.ADMIN, "p7"),
    "get_detail": lambda engine: engine.get_detail(base.Context("p7")),
    "get_parent": lambda engine: engine.get_parent(base.ADMIN, "p7"),
    "get_parent of no project": lambda engine: engine.get_parent(base.ADMIN, "nothing"),
    "list_children": lambda engine: engine.list_children(base.ADMIN, "mid0", count=5),
    "default_limits": lambda engine: engine.default_limits(base.Context("p7")),
    "list_overrides": lambda engine: engine.administration.list_overrides(base.ADMIN, "p7"),
    "limit_history": lambda engine: engine.administration.limit_history(base.Context("p7"), limit=5),
    "set_limit": lambda engine: engine.administration.set_limit(base.ADMIN, "gpu", 1, "p7"),
    "unset_limit": lambda engine: engine.administration.unset_limit(base.ADMIN, "gpu", "p7"),
    "set_limit, new": lambda engine: engine.administration.set_limit(base.ADMIN, "gpu", 1, "p7"),
}
"""The calls of a project's user, of the administrator of its parent, and those that an admin makes for one project."""


class TestCost(test_limits.LimitsTestCase):
    def make_limited(self, *, statement_timeout_seconds: int = 8, **changes: object) -> QuotaEngine:
        how = fixtures.settings(self.url, statement_timeout_seconds=statement_timeout_seconds)
        limits = DatabaseLimitDriver(self.policy(), InitialLimits(child=None))
        engine = QuotaEngine(DbQuotaDriver(DriverSettings(database=how), limits))
        engine.register_resources(["fpga", "gpu"])
        self.addCleanup(engine.close)
        return engine

    def read(self) -> dict[str, list[int]]:
        """Return the rows that each query of each call reads, in an engine with empty caches."""
        engine = self.make_limited()
        engine.list_usages(base.ADMIN, "nobody")  # (connects, and checks the schema)
        found = {}
        for name, call in OWN.items():
            with clouds.captured() as statements:
                call(engine)
            found[name] = [self.rows_read(*query) for query in clouds.queries(statements)]
        return found

    def rows_read(self, statement: str, parameters: Any) -> int:
        return self.database.read(lambda connection: clouds.rows_read(connection, statement, parameters))

    def test_every_call_reads_the_same_in_a_large_cloud(self) -> None:
        self.admin.set_limits(base.ADMIN, {"gpu": 1, "fpga": 5})
        clouds.add_projects(self.sql, 0, SMALL, history=3)
        small = self.read()
        clouds.add_projects(self.sql, SMALL, LARGE, history=1)
        large = self.read()
        grown = {
            name: (small[name], rows)
            for name, rows in large.items()
            if len(rows) != len(small[name]) or sum(rows) > sum(small[name]) + MOST_MORE_ROWS
        }
        self.assertEqual({}, grown)

    def test_get_usages_is_one_statement(self) -> None:
        self.admin.set_limits(base.ADMIN, {"gpu": 1, "fpga": 5})
        clouds.add_projects(self.sql, 0, SMALL)
        config = fixtures.make_engine(self.url, ConfigLimitDriver({"gpu": 3}))
        self.addCleanup(config.close)
        for engine, limit in ((self.engine, 1), (config, 3)):
            engine.get_usages(self.context)
            with clouds.captured() as statements:
                usages = engine.get_usages(base.Context("p7"))
            self.assertEqual(limit, usages["gpu"].limit)
            self.assertEqual(1, len(clouds.queries(statements)), statements)

    def test_headroom_is_one_statement(self) -> None:
        self.admin.set_limits(base.ADMIN, {"gpu": 1, "fpga": 5})
        clouds.add_projects(self.sql, 0, SMALL)
        self.deepen("p7", 8)
        engine = self.make_limited()
        engine.reserve(base.Context("deep8"), {"fpga": 2}, consumer="open")
        config = fixtures.make_engine(self.url, ConfigLimitDriver({"fpga": 6}))
        self.addCleanup(config.close)
        for quotas, fits in ((engine, 3), (config, 4)):
            quotas.headroom(base.ADMIN, "deep8")
            with clouds.captured() as statements:
                headroom = quotas.headroom(base.Context("deep8"))
            self.assertEqual(fits, headroom["fpga"].fits)
            self.assertEqual(1, len(statements), statements)

    def deepen(self, project_id: str, levels: int) -> None:
        """Add ``levels`` levels below a project: deep1, deep2, ..."""
        for level in range(1, levels + 1):
            self.execute(
                "INSERT INTO projects (project_id, parent_id, generation) VALUES (:p, :above, 0)",
                p=f"deep{level}",
                above=project_id if level == 1 else f"deep{level - 1}",
            )
