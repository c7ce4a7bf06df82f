# SPDX-License-Identifier: Apache-2.0
"""Kills a process after one of the statements of a call that write, or after one of its COMMITs.

A transaction takes effect as a whole: of the kills inside it, those after its first and after its last write stand for
all others. So each call is made once without a kill, to find where its transactions end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from tests import hooks

READS = ("SELECT", "SET ", "SHOW", "PRAGMA", "PREPARE", "DEALLOCATE")
BEGIN = ("BEGIN", "BEGIN IMMEDIATE")
"""A kill after one of these has the same effect as a kill after the statement before it."""
ATOMIC = "-- COMMIT"
"""The end of a statement that is a transaction of its own, whatever its first word is."""
_IN_TRANSACTION = 1
"""The bit of MariaDB's status flags for an open transaction."""


def is_write(statement: str) -> bool:
    """Whether it can change something."""
    return statement.endswith(ATOMIC) or not (statement.startswith(READS) or statement in BEGIN)


def in_transaction(connection: Any) -> bool:
    """Whether a connection of PyMySQL, sqlite3 or psycopg2 has an open transaction."""
    if hasattr(connection, "server_status"):
        return bool(connection.server_status & _IN_TRANSACTION)
    if hasattr(connection, "in_transaction"):
        return bool(connection.in_transaction)
    return bool(connection.info.transaction_status)


class _Watch:
    """Calls ``act(number)`` after each write and each COMMIT of a transaction that wrote, numbered from 0.

    ``ends`` says for each of them whether no transaction is open after it.
    """

    def __init__(self, act: Callable[[int], object], *, is_naive: bool) -> None:
        self.ends: list[bool] = []
        self._act = act
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
        if is_write(statement):
            self._note(is_end=not in_transaction(cursor.connection))

    def _note(self, *, is_end: bool) -> None:
        self.ends.append(is_end)
        self._act(len(self.ends) - 1)


def of(ends: Sequence[bool]) -> list[int]:
    """Return the numbers at which a process is to be killed, for the answer of ``run`` without a kill.

    For each transaction, they are those of its first write, of its last one, and of its end. (The last transaction may
    have no end.)
    """
    points, first = set(), 0
    for number, is_end in enumerate(ends):
        if is_end or number == len(ends) - 1:
            points |= {first, max(first, number - 1), number}
            first = number + 1
    return sorted(points)


def add(points: list[int | None], ends: Sequence[bool] | None) -> None:
    """Add the numbers of a run that was not killed. (A first run may send other statements than the later ones.)"""
    points += [point for point in of(ends or ()) if point not in points]


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
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            watch = _Watch(lambda number: _die_if(number == at), is_naive=is_naive)
            engine = make_engine()
            watch.watch(hooks.database_of(engine).engine)
            call(engine)
            os.write(writer, json.dumps(watch.ends).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGKILL:
        return None
    if status:
        raise AssertionError(f"the call failed, with status {status}, before statement {at}")
    ends: list[bool] = json.loads(text)
    return ends


def _die_if(condition: bool) -> None:
    if condition:
        os.kill(os.getpid(), signal.SIGKILL)
