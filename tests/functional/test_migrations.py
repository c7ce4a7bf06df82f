# SPDX-License-Identifier: Apache-2.0
"""Upgrades of a database with data, through every revision, and upgrades that are interrupted at any statement.

The tests name no table and no revision: whatever a later revision adds is filled, interrupted and compared as well.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import alembic.command
import sqlalchemy as sa
import testscenarios
from oslo_db.sqlalchemy import test_migrations

from cyborg_quota.db import models, schema
from cyborg_quota.db.database import Database
from tests import base, fixtures, rows
from tests import revisions as next_release
from tests.faults import kill_points

load_tests = testscenarios.load_tests_apply_scenarios

ALL_REVISIONS = "CYBORG_QUOTA_TEST_ALL_REVISIONS"
"""An environment variable: if it is set, the tests take 100,000 rows, and interrupt the upgrade to every revision."""

ROWS = 100_000 if os.environ.get(ALL_REVISIONS) else 2_000
FEW_ROWS = 30
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

SLOW_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "d0d0"
down_revision = "{head}"


def upgrade():
    if not sa.inspect(op.get_bind()).has_table("slow"):
        op.execute("CREATE TABLE slow AS SELECT {slow} AS one")
"""


def revisions() -> list[str]:
    """Return all revisions, the first one first."""
    return list(reversed(schema.REVISIONS))


def interrupted_revisions() -> list[str | None]:
    """Return the revisions from which the interrupted upgrades begin. None: an empty database.

    By default, only that before the newest: a released revision does not change. With ALL_REVISIONS set: all.
    """
    before = revisions()[:-1]
    return [None, *(before if os.environ.get(ALL_REVISIONS) else before[-1:])]


@dataclasses.dataclass
class Statements:
    """The statements and COMMITs of a database's engine are counted; ``act(number, text)`` is called after each.

    ``ends`` says for each of them whether no transaction is open after it.
    """

    act: Callable[[int, str], None]
    count: int = 0
    ends: list[bool] = dataclasses.field(default_factory=list)

    def watch(self, database: Database) -> None:
        engine = database.engine
        commit = engine.dialect.do_commit

        def executed(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
            self.ends.append(not kill_points.in_transaction(cursor.connection))
            self.note(statement)

        def commit_and_note(dbapi_connection: Any) -> None:
            commit(dbapi_connection)
            self.ends.append(True)
            self.note("COMMIT")

        sa.event.listen(engine, "after_cursor_execute", executed)
        engine.dialect.do_commit = commit_and_note  # type: ignore[method-assign]

    def note(self, statement: str) -> None:
        self.count += 1
        self.act(self.count, statement)


def start_sync(url: str, act: Callable[[int, str], None] = lambda _number, _text: None) -> int:
    """Run ``db sync`` in a child, which calls ``act`` after each statement; returns its process ID."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            database = Database(fixtures.settings(url, statement_timeout_seconds=None))
            Statements(act).watch(database)
            schema.sync(database)
            status = 0
        finally:
            os._exit(status)
    return pid


Recorded = tuple[str, Any, bool]
"""A statement, its parameters, and whether they are those of several runs."""

_complete: dict[str, dict[str, Any]] = {}
"""The shape of a complete schema on each database."""
_recorded: dict[tuple[str, str], tuple[list[sa.Table], list[Recorded]]] = {}
"""The tables of a revision on a database, and the statements that made and filled them."""


def record(
    found: list[Recorded],
    _connection: sa.Connection,
    _cursor: Any,
    statement: str,
    parameters: Any,
    _context: Any,
    has_many: bool,
) -> None:
    """Add a statement to ``found``, unless it only reads."""
    if not statement.startswith(("SELECT", "DESCRIBE", *READS)):
        found.append((statement, parameters, has_many))


def exit_status(pid: int) -> int:
    """Wait for a child; returns its exit status, or minus the number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class MigrationTestCase(base.BackendTestCase):
    """With an empty database."""

    def setUp(self) -> None:
        super().setUp()
        next_release.share_scripts(self)
        self.number = 0
        self.use(fixtures.fresh_url(self.backend, "migrated"))

    def use(self, url: str) -> None:
        self.url = url
        self.sql = sa.create_engine(url, poolclass=sa.NullPool)

    def open_database(self) -> Database:
        database = Database(fixtures.settings(self.url, statement_timeout_seconds=None))
        self.addCleanup(database.close)
        return database

    def upgrade_to(self, revision: str) -> None:
        with self.sql.begin() as connection:
            alembic.command.upgrade(schema.alembic_config(connection), revision)

    def tables(self) -> list[sa.Table]:
        with self.sql.connect() as connection:
            return rows.reflect(connection, rows.column_names(connection, without=[schema.VERSION_TABLE]))

    def fill(self, count: int) -> list[sa.Table]:
        """Fill and copy all tables; returns them."""
        tables = self.tables()
        with self.sql.begin() as connection:
            for table in tables:
                rows.fill(connection, table, count)
            rows.copy_tables(connection, tables)
        return tables

    def assert_same_data(self, tables: list[sa.Table], count: int) -> None:
        """Assert that all rows are as they were when they were copied."""
        with self.sql.begin() as connection:
            self.assertEqual({}, rows.differences(connection, tables))
            for table in tables:
                counted = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                self.assertGreaterEqual(counted, count, table.name)

    def assert_unique_keys_hold(self, tables: list[sa.Table]) -> None:
        """Assert that a second row with the same key is refused, regardless of how migrations changed the index."""
        for table in tables:
            with self.sql.connect() as connection:
                keys = rows.unique_keys(connection, table)
                self.assertNotEqual([], keys, table.name)
            for key in keys:
                columns = [table.columns[name] for name in key]
                query = sa.select(table).where(*[column.is_not(None) for column in columns]).limit(1)
                with self.sql.connect() as connection:
                    row = dict(connection.execute(query).mappings().one())
                    self.assertRaises(sa.exc.IntegrityError, connection.execute, table.insert(), row)

    def shape(self) -> dict[str, Any]:
        """Return the schema: every table's columns, keys, CHECKs and indexes, and the functions."""
        found: dict[str, Any] = {}
        with self.sql.connect() as connection:
            inspector = sa.inspect(connection)
            for look_up in (
                inspector.get_multi_columns,
                inspector.get_multi_pk_constraint,
                inspector.get_multi_unique_constraints,
                inspector.get_multi_check_constraints,
                inspector.get_multi_foreign_keys,
                inspector.get_multi_indexes,
            ):
                for (_, table), details in look_up().items():
                    if not table.startswith(rows.COPY_PREFIX):
                        texts = sorted(map(str, details)) if isinstance(details, list) else str(details)
                        found[f"{table}, {look_up.__name__}"] = texts
            if self.backend == "postgresql":
                query = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1"
                found["functions"] = connection.exec_driver_sql(query).scalars().all()
        return found


class TestUpgradeWithData(MigrationTestCase, test_migrations.ModelsMigrationsSync):
    """Every table holds ROWS rows, from the revision that creates it.

    The test is oslo.db's ``test_models_sync``: it calls ``db_sync``, and compares the result with the models.
    """

    def db_sync(self, engine: sa.Engine) -> None:
        self.addCleanup(fixtures.drop_views, self.sql)
        columns: dict[str, set[str]] = {}
        for revision in revisions():
            self.upgrade_to(revision)
            with self.sql.connect() as connection:
                before, columns = columns, rows.column_names(connection, without=[schema.VERSION_TABLE])
                changed = rows.reflect(connection, [name for name in columns if columns[name] != before.get(name)])
            # (Other tables are compared at the end only: a comparison of all tables takes seconds.)
            self.assert_same_data([table for table in changed if table.name in before], ROWS)
            self.fill_new([table for table in changed if table.name not in before], changed)
        tables = self.tables()
        self.assertEqual((schema.head(), schema.head()), schema.sync(self.open_database()))
        self.assertEqual(set(models.metadata.tables), {table.name for table in tables})
        self.assert_same_data(tables, ROWS)
        self.assert_unique_keys_hold(tables)
        with self.sql.begin() as connection:
            rows.drop_copies(connection)

    def fill_new(self, new: list[sa.Table], to_copy: list[sa.Table]) -> None:
        with self.sql.begin() as connection:
            for table in new:
                rows.fill(connection, table, ROWS)
            rows.copy_tables(connection, to_copy)

    def get_engine(self) -> sa.Engine:
        return self.sql

    def get_metadata(self) -> sa.MetaData:
        return models.metadata

    def include_object(self, object_: object, name: str, type_: str, reflected: bool, compare_to: object) -> bool:
        return not (type_ == "table" and name == schema.VERSION_TABLE)


class TestInterrupted(MigrationTestCase):
    """``db sync`` is killed with SIGKILL after any of its statements, and run again."""

    def setUp(self) -> None:
        super().setUp()
        if self.backend not in _complete:
            self.upgrade_to("head")
            _complete[self.backend] = self.shape()
        self.complete = _complete[self.backend]

    def prepare(self, revision: str | None) -> list[sa.Table]:
        """Make a new database at this revision, with rows in all tables."""
        # (With a new name: PostgreSQL does not drop a database before the session of the killed process has ended.)
        self.number += 1
        self.use(fixtures.fresh_url(self.backend, f"migrated_{self.number % 10}"))
        if revision is None:
            return []
        key = self.backend, revision
        if key not in _recorded:
            statements: list[Recorded] = []
            sa.event.listen(self.sql, "before_cursor_execute", functools.partial(record, statements))
            self.upgrade_to(revision)
            _recorded[key] = self.fill(FEW_ROWS), statements
        else:
            # Compiling the statements takes longer than running them.
            self.replay(_recorded[key][1])
        return _recorded[key][0]

    def replay(self, statements: Iterable[Recorded]) -> None:
        with self.sql.begin() as connection:
            cursor = connection.connection.cursor()
            for statement, parameters, has_many in statements:
                (cursor.executemany if has_many else cursor.execute)(statement, parameters)

    def statements(self) -> tuple[list[str], list[int]]:
        """Return the statements that an uninterrupted ``db sync`` sends, up to the end of the next revision.

        Also returns those (from 1) after which it is to be killed. A server that commits each DDL statement has many.
        """
        texts: list[str] = []
        database = self.open_database()
        statements = Statements(lambda _number, text: texts.append(text))
        statements.watch(database)
        schema.sync(database)
        database.close()
        moves = [
            number for number, text in enumerate(texts) if re.match(f"(INSERT|UPDATE).*{schema.VERSION_TABLE}", text)
        ]
        if len(moves) > 1:
            del texts[moves[0] + 1 :]
        writes = [number for number, text in enumerate(texts) if not text.startswith(READS)]
        if os.environ.get(ALL_REVISIONS):
            return texts, [number + 1 for number in writes]
        return texts, [writes[point] + 1 for point in kill_points.of([statements.ends[number] for number in writes])]

    def sync_and_die(self, at: int) -> int:
        """Run ``db sync`` in a process that kills itself after statement ``at``; returns its exit status."""

        def die(number: int, _text: str) -> None:
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)

        return exit_status(start_sync(self.url, die))

    def test_killed_after_each_statement(self) -> None:
        for before in interrupted_revisions():
            self.prepare(before)
            texts, points = self.statements()
            self.assertGreater(len(texts), 3)
            tables, start = self.prepare(before), self.committed()
            for number in points:
                text = texts[number - 1]
                self.assertEqual(-signal.SIGKILL, self.sync_and_die(number), (before, number, text))
                is_last = number == points[-1]
                when = f"killed at revision {before}, after statement {number}: {text}"
                if is_last:
                    self.assert_completes(tables, when)
                elif self.committed() != start:  # otherwise the next one is killed on the same database
                    if before is None:
                        self.assert_first_revision_completes(when)
                    else:
                        self.assert_completes(tables, when)
                    tables, start = self.prepare(before), self.committed()

    def committed(self) -> list[Any]:
        """Return a value that every committed change of the schema changes; shape() takes twenty times as long."""
        with self.sql.connect() as connection:
            if self.backend != "mariadb":
                return list(connection.exec_driver_sql(CATALOGUE[self.backend]).all())
            names = connection.exec_driver_sql("SHOW TABLES").scalars().all()
            return [connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one() for name in names]

    def assert_first_revision_completes(self, when: str) -> None:
        """Assert that the next ``db sync`` makes the same first revision. The last kill tests the others after it."""
        key = f"{self.backend}, first"
        if key not in _complete:
            url = self.url
            self.use(fixtures.fresh_url(self.backend, "migrated_first"))
            self.upgrade_to(revisions()[0])
            _complete[key] = self.shape()
            self.use(url)
        upgrade, database = alembic.command.upgrade, self.open_database()
        with mock.patch.object(alembic.command, "upgrade", lambda config, _head: upgrade(config, revisions()[0])):
            database.write(schema._upgrade)
        database.close()
        self.assertEqual(_complete[key], self.shape(), when)

    def assert_completes(self, tables: list[sa.Table], when: str) -> None:
        """Assert that ``db sync`` succeeds, and that the result is the same as without the interruption."""
        database = self.open_database()
        try:
            schema.sync(database)
        except Exception as error:
            raise AssertionError(when) from error
        database.close()
        self.assertEqual(self.complete, self.shape(), when)
        self.assert_same_data(tables, FEW_ROWS)

    def test_killed_within_a_statement(self) -> None:
        """A server completes the statement of a client that is gone; the next ``db sync`` waits for its end."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no server: a statement ends with its process")
        slow = {"mariadb": "BENCHMARK(4000000, MD5('x'))", "postgresql": "CAST(pg_sleep(1) AS TEXT)"}[self.backend]
        self.upgrade_to("head")
        with tempfile.TemporaryDirectory() as name:
            text = SLOW_REVISION.format(head=schema.head(), slow=slow)
            config = next_release.with_one_more(pathlib.Path(name), "d0d0", text)
            with mock.patch.multiple(schema, alembic_config=config, REVISIONS=("d0d0", *schema.REVISIONS)):
                first = start_sync(self.url)
                self.wait_for_session("CREATE TABLE slow%")
                os.kill(first, signal.SIGKILL)
                self.assertEqual(-signal.SIGKILL, exit_status(first))
                second = start_sync(self.url)
                self.assertEqual(0, exit_status(second))
        self.assertIn("slow", {table.name for table in self.tables()})

    def test_two_concurrently_and_one_killed(self) -> None:
        """The one that waits takes over."""
        for before in interrupted_revisions():
            self.prepare(before)
            count = len(self.statements()[0])
            tables = self.prepare(before)
            paused, pause = os.pipe()

            def stop(number: int, _text: str, at: int = count // 2, pipe: int = pause) -> None:
                if number == at:
                    os.write(pipe, b".")
                    signal.pause()

            first = start_sync(self.url, stop)
            os.read(paused, 1)
            second = start_sync(self.url)
            time.sleep(0.2)
            os.kill(first, signal.SIGKILL)
            self.assertEqual(-signal.SIGKILL, exit_status(first))
            self.assertEqual(0, exit_status(second), f"the upgrade from {before}")
            self.assert_completes(tables, f"two at once, from {before}")

    def test_the_connection_is_killed(self) -> None:
        """The server ends the session between two statements: the upgrade is retried automatically."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no connections to kill")
        for before in interrupted_revisions():
            self.prepare(before)
            count = len(self.statements()[0])
            for at in (count // 4, count // 2):
                tables = self.prepare(before)
                database = self.open_database()
                engine = database.engine
                numbers = iter(range(1, 10_000))

                def cut_off(connection: sa.Connection, *_rest: Any, at: int = at, numbers: Any = numbers) -> None:
                    if next(numbers) == at:
                        self.kill_session(connection)

                sa.event.listen(engine, "after_cursor_execute", cut_off)
                schema.sync(database)
                self.assertGreater(next(numbers), at)
                database.close()
                self.assert_completes(tables, f"disconnected at revision {before}, after statement {at}")

    def kill_session(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        with self.sql.connect() as other:
            if self.backend == "mariadb":
                other.exec_driver_sql(f"KILL CONNECTION {driver.thread_id()}")
            else:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({driver.info.backend_pid}, 5000)")

    def wait_for_session(self, statement: str) -> None:
        """Wait until a session of the database runs a statement with this text."""
        query = {
            "mariadb": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE :text",
            "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'active' AND query LIKE :text",
        }[self.backend]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with self.sql.connect() as connection:
                if connection.execute(sa.text(query), {"text": statement}).scalar_one():
                    return
            time.sleep(0.02)
        self.fail(f"no session runs {statement}")
