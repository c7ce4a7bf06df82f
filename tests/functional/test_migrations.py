# SPDX-License-Identifier: Apache-2.0
"""The schema that ``db sync`` makes is that of the models, also after an interruption at any statement."""

from __future__ import annotations

import dataclasses
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
from tests import fixtures, forked
from tests.faults import kill_points
from tests.functional import test_schema
from tests.servers import machine

READS = ("SELECT pg_catalog", "SELECT name FROM", "SHOW ", "PRAGMA ")
"""How the statements of a reflection begin. A kill next to one is as good as a kill next to its neighbours."""

CATALOGUE = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master ORDER BY name",
    "postgresql": " UNION ALL ".join(
        f"SELECT '{table}' AS name, {identity}::oid, xmin::text FROM {table}"
        f" WHERE {identity} IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)"
        for table, identity in (("pg_class", "oid"), ("pg_attribute", "attrelid"), ("pg_index", "indexrelid"))
    )
    + "".join(
        f" UNION ALL SELECT '{table}', oid, xmin::text FROM {table} WHERE {space} = current_schema()::regnamespace"
        for table, space in (("pg_constraint", "connamespace"), ("pg_proc", "pronamespace"))
    )
    + " ORDER BY 1, 2, 3",
}
"""What each committed change of the schema changes."""


@dataclasses.dataclass
class Statements:
    """The statements and COMMITs of a database's engine are counted; ``act(number, text)`` is called after each.

    ``ends`` says for each of them whether no transaction is open after it.
    """

    act: Callable[[int, str], None]
    ends: list[bool] = dataclasses.field(default_factory=list)

    def watch(self, database: Database) -> None:
        engine = database.engine
        commit = engine.dialect.do_commit

        def executed(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
            self.note(statement, not kill_points.in_transaction(cursor.connection))

        def commit_and_note(dbapi_connection: Any) -> None:
            commit(dbapi_connection)
            self.note("COMMIT", True)

        sa.event.listen(engine, "after_cursor_execute", executed)
        engine.dialect.do_commit = commit_and_note  # type: ignore[method-assign]

    def note(self, statement: str, is_end: bool) -> None:
        self.ends.append(is_end)
        self.act(len(self.ends), statement)


def start_sync(url: str, act: Callable[[int, str], None] = lambda _number, _text: None) -> int:
    """Run ``db sync`` in a child, which calls ``act`` after each statement; returns its process ID."""

    def sync() -> None:
        database = Database(fixtures.settings(url, statement_timeout_seconds=None))
        Statements(act).watch(database)
        schema.sync(database)

    return forked.start(sync)


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

    def open_database(self) -> Database:
        return fixtures.open_database(self, self.url, statement_timeout_seconds=None)

    def statements(self) -> tuple[list[str], list[int]]:
        """Return the statements of an uninterrupted ``db sync``, and the numbers (from 1) of those to kill it after."""
        texts: list[str] = []
        database = self.open_database()
        statements = Statements(lambda _number, text: texts.append(text))
        statements.watch(database)
        schema.sync(database)
        database.close()
        writes = [number for number, text in enumerate(texts) if not text.startswith(READS)]
        points = kill_points.of([statements.ends[number] for number in writes])
        return texts, [writes[point] + 1 for point in [*points[:: 1 if fixtures.MORE > 1 else 3], points[-1]]]

    def sync_and_die(self, at: int) -> int:
        """Run ``db sync`` in a process that kills itself after statement ``at``; returns its exit status."""

        def die(number: int, _text: str) -> None:
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)

        return forked.wait(start_sync(self.url, die))

    def test_killed_after_a_statement(self) -> None:
        self.prepare()
        texts, points = self.statements()
        self.assertGreater(len(texts), 3)
        self.prepare()
        start = self.committed()
        for number in points:
            text = texts[number - 1]
            self.assertEqual(-signal.SIGKILL, self.sync_and_die(number), (number, text))
            if number == points[-1] or self.committed() != start:
                # (Otherwise the next one is killed on the same database.)
                self.assert_completes(f"killed after statement {number}: {text}")
                self.prepare()
                start = self.committed()

    def committed(self) -> list[Any]:
        """Return a value that every committed change of the schema changes; shape() takes twenty times as long."""
        with self.sql.connect() as connection:
            if self.backend != "mariadb":
                return list(connection.exec_driver_sql(CATALOGUE[self.backend]).all())
            names = connection.exec_driver_sql("SHOW TABLES").scalars().all()
            return [connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one() for name in names]

    def assert_completes(self, when: str) -> None:
        """Assert that ``db sync`` succeeds, and that the result is the same as without the interruption."""
        database = self.open_database()
        try:
            schema.sync(database)
        except Exception as error:
            raise AssertionError(when) from error
        database.close()
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
            first = start_sync(self.url)
        machine.wait_until(lambda: bool(self.sessions("CREATE TABLE slow%")), 60)
        os.kill(first, signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, forked.wait(first))
        self.assertEqual(0, forked.wait(start_sync(self.url)))
        self.assertEqual(0, self.sessions("CREATE TABLE slow%"))

    def test_two_concurrently_and_one_killed(self) -> None:
        """The one that waits takes over."""
        self.prepare()
        count = len(self.statements()[0])
        self.prepare()
        paused, pause = os.pipe()

        def stop(number: int, _text: str) -> None:
            if number == count // 2:
                os.write(pause, b".")
                signal.pause()

        first = start_sync(self.url, stop)
        os.read(paused, 1)
        second = start_sync(self.url)
        time.sleep(0.2)
        os.kill(first, signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, forked.wait(first))
        self.assertEqual(0, forked.wait(second))
        self.assert_completes("two at once")

    def test_the_connection_is_killed(self) -> None:
        """The server ends the session between two statements: the upgrade is retried automatically."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no connections to kill")
        self.prepare()
        count = len(self.statements()[0])
        for at in (count // 4, count // 2):
            self.prepare()
            database = self.open_database()
            numbers = iter(range(1, 10_000))

            def cut_off(connection: sa.Connection, *_rest: Any, at: int = at, numbers: Any = numbers) -> None:
                if next(numbers) == at:
                    self.kill_session(connection)

            sa.event.listen(database.engine, "after_cursor_execute", cut_off)
            schema.sync(database)
            self.assertGreater(next(numbers), at)
            database.close()
            self.assert_completes(f"disconnected after statement {at}")

    def kill_session(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        with self.sql.connect() as other:
            if self.backend == "mariadb":
                other.exec_driver_sql(f"KILL CONNECTION {driver.thread_id()}")
            else:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({driver.info.backend_pid}, 5000)")

    def sessions(self, statement: str) -> int:
        """How many sessions of the database run a statement with this text."""
        query = {
            "mariadb": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE :text",
            "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'active' AND query LIKE :text",
        }[self.backend]
        with self.sql.connect() as connection:
            return int(connection.execute(sa.text(query), {"text": statement}).scalar_one())
