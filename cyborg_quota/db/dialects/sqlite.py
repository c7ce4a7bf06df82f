# SPDX-License-Identifier: Apache-2.0
"""SQLite: the database runs inside this process. One writer at a time, over all processes.

There is no network round trip, so the portable form (several statements) is fast enough.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.settings import DatabaseSettings

_READS: Final = "cyborg_quota_reads"
"""Key in ``connection.info``: the next transaction only reads."""

_IS_CYBORG_QUOTA_FILE: Final = (
    "SELECT COUNT(*) = 0 OR SUM(name LIKE 'cyborg\\_quota\\_%' ESCAPE '\\') > 0 FROM sqlite_master"
)
"""Whether the file is empty, or contains a table of this project."""


_CLOCK_FUNCTION: Final = "cyborg_quota_utc_after"


class SQLite(Dialect):
    name = "sqlite"
    driver = "pysqlite"
    has_server = False
    max_writers = 1
    update_locks_in_order = True
    insert = staticmethod(sqlite.insert)
    # The functions of SQLite have a resolution of milliseconds; the connection's Python function has microseconds.
    now = f"{_CLOCK_FUNCTION}(0)"
    now_plus = f"{_CLOCK_FUNCTION}({{}})"
    # Without the fraction: strftime rounds it to milliseconds, and then a second could begin before its time.
    second = f"(CAST(strftime('%s', substr({now}, 1, 19)) AS INTEGER) - strftime('%s', '2020-01-01'))"

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "connect_args": {"timeout": settings.sqlite_busy_timeout_seconds, "check_same_thread": False}
        }
        if url.database in (None, "", ":memory:"):
            # Each connection has its own in-memory database, so all threads must share one connection.
            arguments.update(pool_size=1, max_overflow=0)
        return arguments

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        synchronous = "FULL" if settings.sqlite_synchronous else "OFF"

        @sa.event.listens_for(engine, "connect")
        def set_up(dbapi_connection: Any, _record: Any) -> None:
            dbapi_connection.isolation_level = None  # this module sends BEGIN
            # This changes the file permanently: do not do it to a file of another application.
            if dbapi_connection.execute(_IS_CYBORG_QUOTA_FILE).fetchone()[0]:
                dbapi_connection.execute("PRAGMA journal_mode = WAL")
            dbapi_connection.execute(f"PRAGMA synchronous = {synchronous}")
            # A batch of expiry changes more pages than the default cache of 2 MiB holds, so SQLite wrote pages several
            # times. 32 MiB expires a third more rows a second. (A larger wal_autocheckpoint would gain as much again,
            # but could fill a small disk.)
            dbapi_connection.execute("PRAGMA cache_size = -32768")
            dbapi_connection.create_function(_CLOCK_FUNCTION, 1, _host_utc_after)

        def begin(dbapi_connection: Any) -> None:
            # A writer takes the write lock at BEGIN: a transaction that first reads and then writes fails if another
            # one writes in between.
            dbapi_connection.execute("BEGIN" if dbapi_connection.info.pop(_READS, False) else "BEGIN IMMEDIATE")

        engine.dialect.do_begin = begin  # type: ignore[method-assign]

    def read_only_next(self, connection: sa.Connection) -> None:
        """It begins without the write lock, so that it does not wait for writers."""
        connection.info[_READS] = True


def _host_utc_after(microseconds: int) -> str:
    moment = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    if microseconds:
        moment += datetime.timedelta(microseconds=microseconds)
    return moment.isoformat(" ", "microseconds")  # as SQLAlchemy stores a DateTime in SQLite
