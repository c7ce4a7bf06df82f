# SPDX-License-Identifier: Apache-2.0
"""SQLAlchemy's connections, kept open from one transaction to the next.

Its pool keeps the driver's connections, and wraps and unwraps them for each transaction: a fifth of what a short
transaction costs the client. Here the wrapped ones are kept too. They count as checked out, so that none is kept
while the pool has opened more than its size: whoever waits for one waits at the pool.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import scripts


class Kept(NamedTuple):
    """A connection, and when it was taken from the pool."""

    connection: sa.Connection
    since: float


class Idle:
    """Connections that nobody uses now. Shared by threads: each step is one operation of a list."""

    def __init__(self, engine: sa.Engine, recycle_seconds: int, *, may_keep: bool) -> None:
        self._engine = engine
        self._recycle_seconds = recycle_seconds
        self._may_keep = may_keep
        self._kept: list[Kept] = []

    def take(self) -> Kept | None:
        """One of those kept, if there is any."""
        while self._kept:
            try:
                kept = self._kept.pop()
            except IndexError:  # another thread was quicker
                break
            if time.monotonic() - kept.since < self._recycle_seconds:
                return kept
            _put_away(kept.connection)  # and the pool opens another one when this one is too old
        return None

    def open(self) -> Kept:
        """One of the pool's."""
        return Kept(self._engine.connect(), time.monotonic())

    def give_back(self, kept: Kept) -> None:
        """Keep it, or give it to the pool."""
        connection = kept.connection
        pool: Any = self._engine.pool
        if (
            self._may_keep
            and not connection.invalidated
            and (scripts.is_alone(connection) or not connection.in_transaction())
            and pool.overflow() <= 0
        ):
            self._kept.append(kept)
        else:
            _put_away(connection)

    def close(self) -> None:
        """Give all to the pool."""
        while self._kept:
            _put_away(self._kept.pop().connection)


def _put_away(connection: sa.Connection) -> None:
    if scripts.is_alone(connection):
        with contextlib.suppress(Exception):  # it is broken, and the pool will see that
            scripts.end_alone(connection)
    connection.close()
