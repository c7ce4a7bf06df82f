# SPDX-License-Identifier: Apache-2.0
"""A read locks nothing, and waits for no lock: somebody who reads much or slowly cannot delay a reserve."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from cyborg_quota import QuotaEngine, exceptions
from tests import base, clouds, hooks
from tests.functional import test_cost, test_limits

READS = (
    "get_usages",
    "headroom",
    "check",
    "list_usages",
    "list_reservations",
    "list_limits",
    "path",
    "get_detail",
    "get_parent",
    "tree_page",
    "default_limits",
    "list_overrides",
    "history",
)
"""The reads of the REST API for one project; all are calls of test_cost.OWN."""


class TestReads(test_limits.LimitsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.admin.set_limits(base.ADMIN, {"gpu": 10, "fpga": 10})
        clouds.add_projects(self.sql, 0, 20)
        self.set("p7", 10)
        # A statement that meets a lock fails after a second.
        self.impatient = self.make_engine(retry_seconds=0.1, sqlite_busy_timeout_seconds=1.0)
        self.useFixture(hooks.ShortLockWaits(self.impatient))
        self.impatient.reserve(base.Context("p7"), {"gpu": 1})

    def call_each(self, engine: QuotaEngine) -> None:
        for name in READS:
            test_cost.OWN[name](engine)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the rows that a reserve changes, in another session, while the block runs."""
        with self.sql.begin() as connection:
            connection.exec_driver_sql("UPDATE quota_usages SET generation = generation")
            yield

    def test_a_read_does_not_wait(self) -> None:
        self.call_each(self.engine)  # fills the caches
        engine = self.make_limited()
        with self.locked():
            self.call_each(engine)

    def test_nobody_waits_for_a_read(self) -> None:
        with clouds.captured() as statements:
            self.call_each(self.engine)
        queries = clouds.queries(statements)
        self.assertGreaterEqual(len(queries), len(READS))

        def read_then_reserve(connection: sa.Connection) -> None:
            for statement, parameters in queries:
                connection.exec_driver_sql(statement, parameters).all()
            self.impatient.reserve(base.Context("p7"), {"gpu": 1})

        self.database.read(read_then_reserve)
        with self.locked():  # what the test would notice
            self.assertRaises(exceptions.DatabaseUnavailable, self.impatient.reserve, base.Context("p7"), {"gpu": 1})

    def test_a_list_that_takes_too_long(self) -> None:
        """A list over all projects has no timeout; after limit_scans it has one, and is not retried."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no timeout of a statement.")
        engine = self.make_engine()
        engine.list_reservations(base.ADMIN, limit=1)
        lock = {"mariadb": "LOCK TABLES reservations WRITE", "postgresql": "LOCK TABLE reservations"}[self.backend]
        with self.sql.connect() as connection:
            connection.exec_driver_sql(lock)
            engine.limit_scans(1)
            self.assertRaises(exceptions.StatementTimeout, engine.list_reservations, base.ADMIN, limit=1)
            if self.backend == "mariadb":
                connection.exec_driver_sql("UNLOCK TABLES")
        self.assertEqual(1, len(engine.list_reservations(base.ADMIN, limit=1)))
