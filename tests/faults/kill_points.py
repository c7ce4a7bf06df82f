# SPDX-License-Identifier: Apache-2.0
"""Kills a process after one of the statements of a call that write, or after one of its COMMITs.

A transaction takes effect as a whole: of the kills inside it, that after its last write stands for all others. So each
call is made once without a kill, to find where its transactions end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from tests import base, forked, hooks

READS = ("SELECT", "SET ", "SHOW", "PRAGMA", "PREPARE", "DEALLOCATE")
BEGIN = ("BEGIN", "BEGIN IMMEDIATE")
"""A kill after one of these has the same effect as a kill after the statement before it."""
ATOMIC = "-- COMMIT"
"""The end of a statement that is a transaction of its own, whatever its first word is."""
_IN_TRANSACTION = 1
"""The bit of MariaDB's status flags for an open transaction."""


def in_transaction(connection: Any) -> bool:
    """Whether a connection of PyMySQL, sqlite3 or psycopg2 has an open transaction."""
    if hasattr(connection, "server_status"):
        return bool(connection.server_status & _IN_TRANSACTION)
    if hasattr(connection, "in_transaction"):
        return bool(connection.in_transaction)
    return bool(connection.info.transaction_status)


class _Watch:
    """Notes each write and each COMMIT of a transaction that wrote, and kills the process after number ``at`` (from 0).

    ``ends`` says for each of them whether no transaction is open after it.
    """

    def __init__(self, at: int | None, *, is_naive: bool) -> None:
        self.ends: list[bool] = []
        self._at = at
        self._is_naive = is_naive

    def watch(self, sql: sa.Engine) -> None:
        commit = sql.dialect.do_commit

        def do_commit(connection: Any) -> None:
            commit(connection)
            if self.ends and not self.ends[-1]:
                self._note(is_end=True)

        sa.event.listen(sql, "after_cursor_execute", self._executed)
        sql.dialect.do_commit = do_commit  # type: ignore[method-assign]

    def _executed(self, _connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if self._is_naive:
            cursor.connection.commit()
        if statement.endswith(ATOMIC) or not (statement.startswith(READS) or statement in BEGIN):
            self._note(is_end=not in_transaction(cursor.connection))

    def _note(self, *, is_end: bool) -> None:
        self.ends.append(is_end)
        if len(self.ends) - 1 == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def of(ends: Sequence[bool]) -> list[int]:
    """Return the numbers at which a process is to be killed, for the answer of ``run`` without a kill.

    For each transaction, they are those of its last write and of its end. (The last transaction may have no end.)
    """
    points, first = set(), 0
    for number, is_end in enumerate(ends):
        if is_end or number == len(ends) - 1:
            points |= {max(first, number - 1), number}
            first = number + 1
    return sorted(points)


def run(
    make_engine: Callable[[], QuotaEngine],
    call: Callable[[QuotaEngine], object],
    at: int | None = None,
    *,
    is_naive: bool = False,
) -> list[bool] | None:
    """Make a call in a process that kills itself after its write or COMMIT number ``at`` (from 0). Returns None then.

    Without ``at``, or if there is no such number, returns for each of them whether it ended a transaction.
    ``is_naive``: each statement is committed at once. Raises AssertionError if the call fails.
    """

    def program() -> None:
        watch = _Watch(at, is_naive=is_naive)
        engine = make_engine()
        watch.watch(hooks.database_of(engine).engine)
        call(engine)
        print(json.dumps(watch.ends))

    ended = forked.run(program)
    if ended.status == -signal.SIGKILL:
        return None
    if ended.status:
        raise AssertionError(f"the call failed before statement {at}: {ended.err}")
    ends: list[bool] = json.loads(ended.out)
    return ends


class Kill(NamedTuple):
    """One run of a call: its point (None: it was to end), and whether it has changed a table."""

    at: int | None
    has_effect: bool


class KillTestCase(base.LedgerTestCase):
    """A call is made in processes that are killed at its points, in turn."""

    def engine_of_process(self) -> QuotaEngine:
        return self.make_engine()

    def kills(
        self,
        prepare: Callable[[], object],
        call: Callable[[QuotaEngine], object],
        *,
        first: Sequence[int] = (),
        is_naive: bool = False,
    ) -> Iterator[Kill]:
        """Make the call without a kill, and then killed at each of its points.

        ``prepare`` is called before each run but those that find the tables as ``prepare`` left them. ``first``: points
        of a run before all others. (A first use may send other statements than the later ones.)
        """
        content = None
        points: list[int | None] = [*first, None]
        for at in points:
            if content is None:
                prepare()
                content = hooks.tables(self.sql)
            if self.backend == "sqlite":  # which allows no open connection during a fork
                self.engine.close()
            ends = run(self.engine_of_process, call, at, is_naive=is_naive)
            points += [point for point in of(ends or ()) if point not in points]
            kill = Kill(at, hooks.tables(self.sql) != content)
            if kill.has_effect:
                content = None
            yield kill
        self.assertGreater(len(points), len(first) + 1, "no statement was sent")
