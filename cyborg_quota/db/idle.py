# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy's connections, kept open from one transaction to the next.

Its pool keeps the driver's connections, and wraps and unwraps them for each transaction: a fifth of what a short
transaction costs the client. Here the wrapped ones are kept too. They count as checked out, so that none is kept
while the pool has opened more than its size: whoever waits for one waits at the pool.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from cyborg_quota.db import silence


class Idle:
    """Connections that nobody uses now. Shared by threads: each step is one operation of a list."""

    def __init__(self, engine: sa.Engine, recycle_seconds: int, *, may_keep: bool) -> None:
        self._engine = engine
        self._recycle_seconds = recycle_seconds
        self._may_keep = may_keep
        self._kept: list[tuple[sa.Connection, float]] = []

    def take(self) -> tuple[sa.Connection, float]:
        """A connection, and when it was taken from the pool."""
        now = time.monotonic()
        while self._kept:
            try:
                connection, since = self._kept.pop()
            except IndexError:  # another thread was quicker
                break
            if now - since < self._recycle_seconds:
                silence.begin(connection)
                return connection, since
            connection.close()  # and the pool opens another one when this one is too old
        return self._engine.connect(), now

    def give_back(self, connection: sa.Connection, since: float) -> None:
        """Keep it, or give it to the pool."""
        pool = self._engine.pool
        if (
            self._may_keep
            and not connection.invalidated
            and not connection.in_transaction()
            and isinstance(pool, sa.QueuePool)
            and pool.overflow() <= 0
        ):
            silence.end(connection)
            self._kept.append((connection, since))
        else:
            connection.close()

    def close(self) -> None:
        """Give all to the pool."""
        while self._kept:
            self._kept.pop()[0].close()
