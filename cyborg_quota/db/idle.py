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

from cyborg_quota.db import scripts


@dataclasses.dataclass(slots=True, eq=False)
class Kept:
    """A connection, when it was taken from the pool, and whether each of its statements is a transaction of its own."""

    connection: sa.Connection
    since: float
    is_alone: bool = False

    def begin_alone(self) -> None:
        """See scripts.begin_alone."""
        scripts.begin_alone(self.connection)
        self.is_alone = True

    def end_alone(self, *, is_failed: bool = False) -> None:
        """See scripts.end_alone. Where it fails, nobody uses the connection again."""
        try:
            scripts.end_alone(self.connection, is_failed=is_failed)
            self.is_alone = False
        except BaseException:  # it is closed, and nobody has noticed yet; or somebody was killed half way
            self.connection.invalidate()
            raise


class Idle:
    """Connections that nobody uses now. Shared by threads: each step is one operation of a list."""

    def __init__(self, engine: sa.Engine, recycle_seconds: int, *, may_keep: bool) -> None:
        self._engine = engine
        self._recycle_seconds = recycle_seconds
        self._may_keep = may_keep
        self._kept: list[Kept] = []
        self._waiting: list[None] = []
        """An entry for each thread that is at the pool."""

    def take(self) -> Kept | None:
        """One of those kept, if there is any."""
        while self._kept:
            try:
                kept = self._kept.pop()
            except IndexError:  # another thread was quicker
                break
            if time.monotonic() - kept.since < self._recycle_seconds:
                return kept
            _put_away(kept)  # and the pool opens another one when this one is too old
        return None

    def open(self) -> Kept:
        """One of the pool's, or one that was given back meanwhile. Raises sqlalchemy.exc.TimeoutError."""
        self._waiting.append(None)
        try:
            # (give_back adds a connection before it looks for waiting threads, so one of the two sees the other.)
            if (kept := self.take()) is not None:
                return kept
            connection = self._engine.connect()
        finally:
            self._waiting.pop()
        # Who had it may have been killed between two hands; then it came to the pool by itself, as it was.
        scripts.make_ordinary(connection)
        return Kept(connection, time.monotonic())

    def give_back(self, kept: Kept) -> None:
        """Keep it, or give it to the pool."""
        connection = kept.connection
        pool: Any = self._engine.pool
        if (
            self._may_keep
            and not connection.invalidated
            and (kept.is_alone or not connection.in_transaction())
            and pool.overflow() <= 0
        ):
            self._kept.append(kept)
            if self._waiting and (other := self.take()) is not None:
                _put_away(other)
        else:
            _put_away(kept)

    def close(self) -> None:
        """Give all to the pool."""
        while self._kept:
            _put_away(self._kept.pop())


def _put_away(kept: Kept) -> None:
    if kept.is_alone and not kept.connection.invalidated:
        with contextlib.suppress(Exception):  # it is broken, and will not be used again
            kept.end_alone()
    kept.connection.close()
