# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy's connections, kept open from one transaction to the next.

Its pool keeps the driver's connections, and wraps and unwraps them for each transaction: a fifth of what a short
transaction costs the client. Here the wrapped ones are kept too. They count as checked out. A thread that
finds none here waits at the pool, so none is kept while a thread waits there, or while the pool has opened more than
its size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import prepared_transaction


@dataclasses.dataclass(slots=True, eq=False)
class CachedConnection:
    """A connection, when it was taken from the pool, and whether each of its statements is a transaction of its own."""

    connection: sa.Connection
    since: float
    autocommit: bool = False

    def enter_autocommit(self) -> None:
        """See scripts.begin_alone."""
        prepared_transaction.enter_autocommit(self.connection)
        self.autocommit = True

    def leave_autocommit(self, *, is_failed: bool = False) -> None:
        """See scripts.end_alone. Where it fails, nobody uses the connection again."""
        try:
            prepared_transaction.leave_autocommit(self.connection, is_failed=is_failed)
            self.autocommit = False
        except BaseException:  # it is closed, and nobody has noticed yet; or somebody was killed half way
            self.connection.invalidate()
            raise


class ConnectionCache:
    """Connections that nobody uses now. Shared by threads: each step is one operation of a list."""

    def __init__(self, engine: sa.Engine, recycle_seconds: int, *, can_cache: bool) -> None:
        self._engine = engine
        self._recycle_seconds = recycle_seconds
        self._enabled = can_cache
        self._cached: list[CachedConnection] = []
        self._waiting: list[None] = []
        """An entry for each thread that is at the pool."""

    def take(self) -> CachedConnection | None:
        """One of those kept, if there is any."""
        while self._cached:
            try:
                cached = self._cached.pop()
            except IndexError:  # another thread was quicker
                break
            if time.monotonic() - cached.since < self._recycle_seconds:
                return cached
            _return_to_pool(cached)  # and the pool opens another one when this one is too old
        return None

    def open(self) -> CachedConnection:
        """One of the pool's, or one that was given back meanwhile. Raises sqlalchemy.exc.TimeoutError."""
        self._waiting.append(None)
        try:
            # (give_back adds a connection before it looks for waiting threads, so one of the two sees the other.)
            if (cached := self.take()) is not None:
                return cached
            connection = self._engine.connect()
        finally:
            self._waiting.pop()
        # Who had it may have been killed between two hands; then it came to the pool by itself, as it was.
        prepared_transaction.disable_driver_autocommit(connection)
        return CachedConnection(connection, time.monotonic())

    def put(self, cached: CachedConnection) -> None:
        """Keep it, or give it to the pool."""
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
        """Give all to the pool."""
        while self._cached:
            _return_to_pool(self._cached.pop())


def _return_to_pool(cached: CachedConnection) -> None:
    if cached.autocommit and not cached.connection.invalidated:
        with contextlib.suppress(Exception):  # it is broken, and will not be used again
            cached.leave_autocommit()
    cached.connection.close()
