# SPDX-License-Identifier: Apache-2.0
"""A clock of the database that a test sets, also backwards: a test of months takes seconds."""

from __future__ import annotations

import datetime
import types
from typing import Any, Final

import fixtures
import sqlalchemy as sa

from cyborg_quota.db import calendar
from cyborg_quota.db.dialects import sqlite
from tests import fixtures as our_fixtures

_HELD: Final = "held_clock"
"""Key in ``connection.info``: the time that the session has."""
_IN_ERROR: Final = 3
"""libpq's status of a session whose transaction has failed."""
_FUNCTIONS: Final = "DROP SCHEMA IF EXISTS held CASCADE; CREATE SCHEMA held;" + "".join(
    f"CREATE FUNCTION held.{name}() RETURNS timestamptz LANGUAGE sql STABLE AS"
    " $$ SELECT current_setting('held.now')::timestamptz $$;"
    for name in ("statement_timestamp", "clock_timestamp")
)


class HeldClock(fixtures.Fixture):
    """All engines of this process but that of ``fixtures.plain_engine`` see the time ``now`` (UTC, without a zone).

    A fork inherits the clock, and can set its own. MariaDB has no time after 2038-01-19.
    """

    def __init__(self, url: str, now: datetime.datetime) -> None:
        super().__init__()
        self._url = url
        self.now = now

    def _setUp(self) -> None:
        if self._url.startswith("postgresql"):
            with our_fixtures.plain_engine(self._url).begin() as connection:
                connection.exec_driver_sql(_FUNCTIONS)
        sa.event.listen(sa.Engine, "before_cursor_execute", self._hold)
        self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", self._hold)
        host = types.SimpleNamespace(now=lambda _zone: self.now.replace(tzinfo=datetime.timezone.utc))
        parts = types.SimpleNamespace(datetime=host, timezone=datetime.timezone, timedelta=datetime.timedelta)
        self.useFixture(fixtures.MockPatchObject(sqlite, "datetime", parts))

    @property
    def second(self) -> int:
        """The time in the unit of a meter: whole seconds since 2020-01-01."""
        return (self.now - calendar.date_of(0)) // datetime.timedelta(seconds=1)

    @second.setter
    def second(self, second: int) -> None:
        self.now = calendar.date_of(0) + datetime.timedelta(seconds=second)

    def _hold(self, connection: sa.Connection, cursor: Any, *_statement: object) -> None:
        if connection.engine is our_fixtures.plain_engine(self._url):
            return
        session = cursor.connection
        if connection.dialect.name == "postgresql" and session.info.transaction_status != _IN_ERROR:
            # (At each statement, because a rollback takes it back.)
            with session.cursor() as setting:
                setting.execute(f"SET search_path = held, pg_catalog, public; SET held.now = '{self.now}+00'")
        elif connection.dialect.name == "mysql" and connection.info.get(_HELD) != self.now:
            with session.cursor() as setting:
                setting.execute(f"SET SESSION timestamp = {self.now.replace(tzinfo=datetime.timezone.utc).timestamp()}")
            connection.info[_HELD] = self.now
