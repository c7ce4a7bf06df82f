# SPDX-License-Identifier: Apache-2.0
"""Hooks into the middle of a transaction: lost answers, and calls that run between two statements."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import fixtures
import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from cyborg_quota.db import models
from cyborg_quota.db.database import Database


def database_of(engine: QuotaEngine) -> Database:
    """Return the database on which an engine works."""
    return engine._driver.database


def disconnect(backend: str) -> Exception:
    """Return the driver's error for a broken connection (on SQLite, which has no connection: for a locked file)."""
    lost = (2013, "Lost connection to MySQL server during query")
    return _driver_error(backend, lost, "server closed the connection unexpectedly", "database is locked")


def refuse_commit(backend: str) -> Exception:
    """Return the driver's error for a refused COMMIT on a connection that works."""
    return _driver_error(backend, (1180, "Got error 28 during COMMIT"), "could not write to the log", "disk I/O error")


def _driver_error(backend: str, mariadb: tuple[int, str], postgresql: str, sqlite: str) -> Exception:
    if backend == "mariadb":
        import pymysql

        return pymysql.err.OperationalError(*mariadb)
    if backend == "postgresql":
        import psycopg2

        return psycopg2.OperationalError(postgresql)
    return sqlite3.OperationalError(sqlite)


class LostCommits(fixtures.Fixture):
    """COMMITs of transactions that wrote ``table`` succeed, but their answers are lost, ``times`` of them.

    ``lost`` counts them, so that a test can assert that some were lost.
    """

    def __init__(self, engine: QuotaEngine, backend: str, times: int = 1, *, table: str = "reservations") -> None:
        super().__init__()
        self._sql = database_of(engine).engine
        self._backend = backend
        self._writes = (f"INSERT INTO {table}", f"UPDATE {table}", f"DELETE FROM {table}")
        self._times = times
        self.lost = 0

    def _setUp(self) -> None:
        dialect = self._sql.dialect
        commit = dialect.do_commit
        writers: set[int] = set()

        def note(connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            if statement.startswith(self._writes):
                writers.add(id(connection.connection.dbapi_connection))

        def lose(_connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            """Handle a statement that is a transaction of its own."""
            if statement.endswith("-- COMMIT") and self.lost < self._times:
                self.lost += 1
                raise disconnect(self._backend)

        def commit_and_lose(dbapi_connection: Any) -> None:
            commit(dbapi_connection)
            inner = getattr(dbapi_connection, "dbapi_connection", dbapi_connection)
            if id(inner) in writers and self.lost < self._times:
                self.lost += 1
                writers.discard(id(inner))
                raise disconnect(self._backend)
            writers.discard(id(inner))

        sa.event.listen(self._sql, "before_cursor_execute", note)
        self.addCleanup(sa.event.remove, self._sql, "before_cursor_execute", note)
        sa.event.listen(self._sql, "after_cursor_execute", lose)
        self.addCleanup(sa.event.remove, self._sql, "after_cursor_execute", lose)
        dialect.do_commit = commit_and_lose
        self.addCleanup(setattr, dialect, "do_commit", commit)


class BeforeStatement(fixtures.Fixture):
    """Calls ``act()`` once, immediately before (or ``after``) the statement with this number (from 0) on ``sql``.

    Only statements that start with ``text`` count. ``happened`` is False if fewer were sent: a test that tries every
    number ends there.
    """

    def __init__(
        self, sql: sa.Engine, number: int, act: Callable[[], object], *, text: str = "", after: bool = False
    ) -> None:
        super().__init__()
        self._sql = sql
        self._left = number
        self._act = act
        self._text = text
        self._event = "after_cursor_execute" if after else "before_cursor_execute"
        self.happened = False

    def _setUp(self) -> None:
        def call_act(_connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            self._left -= statement.startswith(self._text)
            if self._left < 0 and not self.happened:
                self.happened = True
                self._act()

        sa.event.listen(self._sql, self._event, call_act)
        self.addCleanup(sa.event.remove, self._sql, self._event, call_act)


class Interleaved(BeforeStatement):
    """Calls ``act()`` once, immediately before (or ``after``) the first statement that starts with ``text``.

    It fails if no such statement was sent.
    """

    def __init__(self, engine: QuotaEngine, text: str, act: Callable[[], object], *, after: bool = False) -> None:
        super().__init__(database_of(engine).engine, 0, act, text=text, after=after)

    def _setUp(self) -> None:
        super()._setUp()
        self.addCleanup(self._assert_happened)

    def _assert_happened(self) -> None:
        assert self.happened, f"no statement began with {self._text!r}"


class Meanwhile(fixtures.Fixture):
    """Calls ``act()`` once, immediately before (or ``after``) the next call of the function ``owner.name``.

    ``count`` is the number of calls of the function.
    """

    def __init__(self, owner: Any, name: str, act: Callable[[], object], *, after: bool = False) -> None:
        super().__init__()
        self._owner = owner
        self._name = name
        self._acts = (lambda: None, act) if after else (act, lambda: None)
        self.count = 0

    def _setUp(self) -> None:
        function = getattr(self._owner, self._name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            before, after = self._acts if self.count == 1 else (lambda: None,) * 2
            before()
            answer = function(*arguments, **named)
            after()
            return answer

        self.useFixture(fixtures.MockPatchObject(self._owner, self._name, call))


class ShortLockWaits(fixtures.Fixture):
    """On connections that the engine opens from now on, a statement waits one second for a row lock.

    The statement timeout stays: on a busy machine, a shorter one would also end statements that wait for no lock.
    """

    _STATEMENTS: Final = {"mysql": "SET SESSION innodb_lock_wait_timeout = 1", "postgresql": "SET lock_timeout = '1s'"}

    def __init__(self, engine: QuotaEngine) -> None:
        super().__init__()
        self._sql = database_of(engine).engine

    def _setUp(self) -> None:
        text = self._STATEMENTS.get(self._sql.dialect.name)
        if text is None:  # (SQLite has its own option.)
            return

        def shorten(dbapi_connection: Any, _record: Any) -> None:
            with dbapi_connection.cursor() as cursor:
                cursor.execute(text)
            dbapi_connection.commit()

        sa.event.listen(self._sql, "connect", shorten)
        self.addCleanup(sa.event.remove, self._sql, "connect", shorten)


def row_locks(sql: sa.Engine) -> sa.Engine:
    """Return the engine for a transaction that holds the locks of the rows that it selects, and of no others.

    With MariaDB's default isolation level, REPEATABLE READ, a statement that scans a table keeps the locks of all rows
    that it has read, and of a small table the optimizer may prefer a scan.
    """
    return sql.execution_options(isolation_level="READ COMMITTED") if sql.dialect.name == "mysql" else sql


@contextlib.contextmanager
def recorded_statements(engine: QuotaEngine) -> Iterator[list[str]]:
    """Record the statements that the engine sends while the block runs, except PREPARE."""
    sent: list[str] = []

    def record(_connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("PREPARE"):
            sent.append(statement)

    sql = database_of(engine).engine
    sa.event.listen(sql, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        sa.event.remove(sql, "before_cursor_execute", record)


def tables(sql: sa.Engine, *, without: str | None = None) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables of the database, for a later comparison; ``without`` one column, if given."""
    content = {}
    with sql.connect() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        cursor = connection.connection.cursor()  # by the driver alone, which takes a third of the processor time
        for name in names:
            cursor.execute(f"SELECT * FROM {name}")
            kept = [number for number, column in enumerate(cursor.description) if column[0] != without]
            content[name] = sorted((tuple(row[number] for number in kept) for row in cursor.fetchall()), key=repr)
        cursor.close()
    return content


class SavedRows:
    """The rows of some tables, to be put back: that takes a fraction of the calls that have made them."""

    def __init__(self, sql: sa.Engine, names: Sequence[str]) -> None:
        self._sql = sql
        self._tables = [models.metadata.tables[name] for name in names]
        with sql.connect() as connection:
            self._rows = [connection.execute(table.select()).mappings().all() for table in self._tables]

    def put_back(self) -> None:
        with self._sql.begin() as connection:
            for table, rows in zip(self._tables, self._rows, strict=True):
                connection.execute(table.delete())
                if rows:
                    connection.execute(table.insert(), [dict(row) for row in rows])
