# SPDX-License-Identifier: Apache-2.0
"""Errors put between SQLAlchemy and the driver: before a statement, behind it, before a COMMIT, behind it."""

from __future__ import annotations

import collections
import random
import sqlite3
from typing import Any

import fixtures

from cyborg_quota import QuotaEngine
from tests import hooks

BEFORE, BEHIND, BEFORE_COMMIT, BEHIND_COMMIT = "before", "behind", "before COMMIT", "behind COMMIT"


def _refusal(backend: str, chance: random.Random) -> Exception:
    """The transaction is refused, on a connection that goes on."""
    if backend == "mariadb":
        import pymysql

        number, words = chance.choice(
            [
                (1213, "Deadlock found when trying to get lock; try restarting transaction"),
                (1205, "Lock wait timeout exceeded; try restarting transaction"),
                (1047, "WSREP has not yet prepared node for application use"),
            ]
        )
        return pymysql.err.OperationalError(number, words)
    if backend == "postgresql":
        import psycopg2.errors

        kind, words, code = chance.choice(
            [
                (psycopg2.errors.DeadlockDetected, "deadlock detected", "40P01"),
                (psycopg2.errors.SerializationFailure, "could not serialize access", "40001"),
            ]
        )
        # (libpq alone sets the code of one that is real.)
        error: Exception = type(kind.__name__, (kind,), {"pgcode": code})(words)
        return error
    return sqlite3.OperationalError("database is locked")


class Injected(fixtures.Fixture):
    """While it is in use, each boundary of a statement fails with ``probability``, drawn from ``chance`` alone.

    Every such error is one that passes: the engine must make it good, unseen. ``counts`` says where they struck.
    """

    def __init__(self, engine: QuotaEngine, backend: str, chance: random.Random, probability: float) -> None:
        super().__init__()
        self._dialect = hooks.database_of(engine).engine.dialect
        self._backend = backend
        self._chance = chance
        self._probability = probability
        self.counts: collections.Counter[str] = collections.Counter()
        self.is_on = False

    def _setUp(self) -> None:
        for name in ("do_execute", "do_commit"):
            self.addCleanup(setattr, self._dialect, name, getattr(self._dialect, name))
        execute, commit = self._dialect.do_execute, self._dialect.do_commit

        def do_execute(*args: Any, **kwargs: Any) -> None:
            self._strike(BEFORE)
            execute(*args, **kwargs)
            self._strike(BEHIND)

        def do_commit(connection: Any) -> None:
            self._strike(BEFORE_COMMIT)
            commit(connection)
            self._strike(BEHIND_COMMIT)

        self._dialect.do_execute = do_execute
        self._dialect.do_commit = do_commit

    def _strike(self, where: str) -> None:
        if not self.is_on or self._chance.random() >= self._probability:
            return
        self.counts[where] += 1
        # What has been committed is never refused any more; only the word of it can get lost.
        if where == BEHIND_COMMIT or self._chance.random() < 0.5:
            raise hooks.disconnect(self._backend)
        raise _refusal(self._backend, self._chance)
