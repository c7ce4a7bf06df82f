# SPDX-License-Identifier: Apache-2.0
"""The schema that ``db sync`` makes is that of the models, also after an interruption at any statement."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import alembic.command
import sqlalchemy as sa
from oslo_db.sqlalchemy import test_migrations

from cyborg_quota.db import models, schema
from cyborg_quota.db.database import Database
from tests import fixtures, forked, hooks
from tests.faults import kill_points
from tests.functional import test_connections, test_schema
from tests.servers import machine

CREATE = "\nCREATE TABLE"
"""How a statement that creates a table begins."""

_numbers = itertools.count()


def shape(sql: sa.Engine) -> dict[str, Any]:
    """Return the schema: every table's columns, keys, CHECKs and indexes, and the functions."""
    found: dict[str, Any] = fixtures.schema_of(sql)
    if sql.dialect.name == "postgresql":
        query = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1"
        with sql.connect() as connection:
            found["functions"] = connection.exec_driver_sql(query).scalars().all()
    return found


@functools.cache
def complete_shape(backend: str) -> dict[str, Any]:
    """The shape of a complete schema."""
    url = fixtures.fresh_url(backend, "complete")
    fixtures.create_schema(url)
    return shape(sa.create_engine(url, poolclass=sa.NullPool))


class TestModels(test_schema.SchemaTestCase, test_migrations.ModelsMigrationsSync):
    """oslo.db's ``test_models_sync`` calls ``db_sync``, and compares the result with the models."""

    def db_sync(self, engine: sa.Engine) -> None:
        self.addCleanup(fixtures.drop_views, self.sql)
        schema.sync(self.database)

    def get_engine(self) -> sa.Engine:
        return self.sql

    def get_metadata(self) -> sa.MetaData:
        return models.metadata

    def include_object(self, object_: object, name: str, type_: str, reflected: bool, compare_to: object) -> bool:
        return not (type_ == "table" and name == schema.VERSION_TABLE)


class TestInterrupted(test_schema.SchemaTestCase):
    """``db sync`` is killed with SIGKILL after one of its statements, in CI after every third, and run again."""

    def prepare(self) -> None:
        """Make a new empty database."""
        # (With a new name: PostgreSQL does not drop a database before the session of the killed process has ended.)
        self.url = fixtures.fresh_url(self.backend, f"migrated_{next(_numbers) % 10}")
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool)

    def sync_and_die(self, at: int | None = None) -> list[bool] | None:
        """Run ``db sync`` in a process that kills itself after its write or COMMIT ``at``: see kill_points.run."""
        make_engine = functools.partial(fixtures.make_engine, self.url, statement_timeout_seconds=None)
        with mock.patch.object(schema, "check"):  # before the first use
            return kill_points.run(make_engine, lambda engine: schema.sync(hooks.database_of(engine)), at)

    def start_sync(self, number: int = 0, act: Callable[[], object] = lambda: None) -> int:
        """Run ``db sync`` in a process that calls ``act`` after it has created a table; returns its process ID.

        ``number``: that of the table, from 0.
        """

        def sync() -> None:
            database = Database(fixtures.settings(self.url, statement_timeout_seconds=None))
            self.useFixture(hooks.BeforeStatement(database.engine, number, act, text=CREATE, after=True))
            schema.sync(database)

        return forked.start(sync)

    def test_killed_after_a_statement(self) -> None:
        self.prepare()
        points = kill_points.of(self.sync_and_die() or ())
        self.assertGreater(len(points), 1)
        for at in [*points[:: 1 if fixtures.MORE > 1 else 3], points[-1]]:
            self.prepare()
            self.assertIsNone(self.sync_and_die(at), at)
            self.assert_completes(f"killed after write {at}")

    def assert_completes(self, when: str) -> None:
        """Assert that ``db sync`` succeeds, and that the result is the same as without the interruption."""
        try:
            fixtures.create_schema(self.url)
        except Exception as error:
            raise AssertionError(when) from error
        self.assertEqual(complete_shape(self.backend), shape(self.sql), when)

    def test_killed_within_a_statement(self) -> None:
        """A server completes the statement of a client that is gone; the next ``db sync`` waits for its end."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no server: a statement ends with its process")
        slow = {"mariadb": "BENCHMARK(4000000, MD5('x'))", "postgresql": "CAST(pg_sleep(1) AS TEXT)"}[self.backend]
        real_upgrade = alembic.command.upgrade
        self.prepare()

        def upgrade(config: Any, revision: str) -> None:
            config.attributes["connection"].exec_driver_sql(f"CREATE TABLE slow AS SELECT {slow} AS one")
            real_upgrade(config, revision)

        with mock.patch.object(alembic.command, "upgrade", upgrade):
            first = self.start_sync()
        machine.wait_until(lambda: bool(self.sessions("CREATE TABLE slow%")), 60)
        os.kill(first, signal.SIGKILL)
        self.assertEqual((-signal.SIGKILL, 0), (forked.wait(first), forked.wait(self.start_sync())))
        self.assertEqual(0, self.sessions("CREATE TABLE slow%"))

    def test_two_concurrently_and_one_killed(self) -> None:
        """The one that waits takes over."""
        self.prepare()
        paused, pause = os.pipe()

        def stop() -> None:
            os.write(pause, b".")
            signal.pause()

        first = self.start_sync(5, stop)
        os.read(paused, 1)
        second = self.start_sync()
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        self.assertEqual((-signal.SIGKILL, 0), (forked.wait(first), forked.wait(second)))
        self.assert_completes("two at once")

    def test_the_connection_is_killed(self) -> None:
        """The server ends the session between two statements: the upgrade is retried automatically."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no connections to kill")
        for number in (3, 9):
            self.prepare()
            database = fixtures.open_database(self, self.url, statement_timeout_seconds=None)
            kill = functools.partial(test_connections.kill_all, self.url)
            with hooks.BeforeStatement(database.engine, number, kill, text=CREATE, after=True) as killed:
                schema.sync(database)
            self.assertTrue(killed.happened)
            self.assert_completes(f"disconnected after table {number}")

    def sessions(self, statement: str) -> int:
        """How many sessions of the database run a statement with this text."""
        query = {
            "mariadb": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE :text",
            "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'active' AND query LIKE :text",
        }[self.backend]
        with self.sql.connect() as connection:
            return int(connection.execute(sa.text(query), {"text": statement}).scalar_one())
