# SPDX-License-Identifier: Apache-2.0
"""A cache of SQLAlchemy connections, which stay checked out of the pool between transactions.

SQLAlchemy's pool keeps the driver's connections, and wraps and unwraps one for each transaction. That takes a fifth
of the client's time for a short transaction. This cache keeps the wrapped connections; for the pool they are checked
out. A thread that finds the cache empty waits at the pool. Therefore the cache keeps no connection while a thread
waits there, or while the pool has overflow connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import dialects
from cyborg_quota.db.settings import DatabaseSettings


@dataclasses.dataclass(slots=True, eq=False)
class CachedConnection:
    """A connection, the time of its checkout from the pool, and whether it is in autocommit mode."""

    connection: sa.Connection
    since: float
    autocommit: bool = False

    def enter_autocommit(self) -> None:
        """See Dialect.enter_autocommit."""
        dialects.of(self.connection).enter_autocommit(self.connection)
        self.autocommit = True

    def leave_autocommit(self, *, is_failed: bool = False) -> None:
        """See Dialect.leave_autocommit. If it fails, the connection is invalidated."""
        try:
            dialects.of(self.connection).leave_autocommit(self.connection, is_failed=is_failed)
            self.autocommit = False
        except BaseException:  # the server had closed it, or a signal interrupted this method
            self.connection.invalidate()
            raise


class ConnectionCache:
    """The idle connections. Thread-safe without a lock, because each step is one atomic operation of a list."""

    def __init__(self, engine: sa.Engine, settings: DatabaseSettings) -> None:
        self._engine = engine
        self._recycle_seconds = settings.pool_recycle_seconds
        pool: Any = engine.pool
        self._enabled = pool._max_overflow != 0  # (otherwise, threads must share the connections of the pool)
        self._cached: list[CachedConnection] = []
        self._waiting: list[None] = []
        """One entry for each thread that waits at the pool."""

    def take(self) -> CachedConnection | None:
        """An idle connection from the cache, or None."""
        while self._cached:
            try:
                cached = self._cached.pop()
            except IndexError:  # another thread took the last one
                break
            if time.monotonic() - cached.since < self._recycle_seconds:
                return cached
            _return_to_pool(cached)  # the pool replaces a connection that is too old
        return None

    def open(self) -> CachedConnection:
        """A connection from the pool, or one that was just put back. Raises sqlalchemy.exc.TimeoutError."""
        self._waiting.append(None)
        try:
            # (put() adds a connection before it checks for waiting threads, so that no waiting thread misses it.)
            if (cached := self.take()) is not None:
                return cached
            connection = self._engine.connect()
        finally:
            self._waiting.pop()
        # If a signal interrupted the previous user, the connection may still be in autocommit.
        dialects.of(connection).reset_autocommit(connection)
        return CachedConnection(connection, time.monotonic())

    def put(self, cached: CachedConnection) -> None:
        """Put a connection back into the cache, or return it to the pool."""
        connection = cached.connection
        pool: Any = self._engine.pool
        if (
            self._enabled
            and not connection.invalidated
            and (cached.autocommit or not connection.in_transaction())
            and pool.overflow() <= 0
        ):
            self._cached.append(cached)
            if self._waiting and (other := self.take()) is not None:
                _return_to_pool(other)
        else:
            _return_to_pool(cached)

    def close(self) -> None:
        """Return all connections to the pool."""
        while self._cached:
            _return_to_pool(self._cached.pop())


def _return_to_pool(cached: CachedConnection) -> None:
    if cached.autocommit and not cached.connection.invalidated:
        with contextlib.suppress(Exception):  # leave_autocommit has invalidated it
            cached.leave_autocommit()
    cached.connection.close()
