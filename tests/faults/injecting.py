# SPDX-License-Identifier: Apache-2.0
"""Injects errors between SQLAlchemy and the driver: before or after a statement, before or after a COMMIT."""

from __future__ import annotations

import collections
import random
import sqlite3
from typing import Any

import fixtures

from cyborg_quota import QuotaEngine
from tests import hooks

BEFORE, BEHIND, BEFORE_COMMIT, BEHIND_COMMIT = "before", "behind", "before COMMIT", "behind COMMIT"


def _refusal(backend: str, rng: random.Random) -> Exception:
    """The transaction is refused, and the connection stays usable."""
    if backend == "mariadb":
        import pymysql

        refusals = [
            (1213, "Deadlock found when trying to get lock; try restarting transaction"),
            (1205, "Lock wait timeout exceeded; try restarting transaction"),
            (1047, "WSREP has not yet prepared node for application use"),
        ]
        return pymysql.err.OperationalError(*rng.choice(refusals))
    if backend == "postgresql":
        import psycopg2.errors

        kinds = [(psycopg2.errors.DeadlockDetected, "40P01"), (psycopg2.errors.SerializationFailure, "40001")]
        kind, code = rng.choice(kinds)
        # (For a real error, libpq sets the code.)
        error: Exception = type(kind.__name__, (kind,), {"pgcode": code})("refused")
        return error
    return sqlite3.OperationalError("database is locked")


class Injected(fixtures.Fixture):
    """While this fixture is in use, each statement boundary fails with ``probability``, drawn from ``rng`` only.

    Every injected error is a transient one: the engine must retry it so that the caller does not notice. ``counts`` has
    the number of errors of each kind.
    """

    def __init__(self, engine: QuotaEngine, backend: str, rng: random.Random, probability: float) -> None:
        super().__init__()
        self._dialect = hooks.database_of(engine).engine.dialect
        self._backend = backend
        self._rng = rng
        self._probability = probability
        self.counts: collections.Counter[str] = collections.Counter()
        self.is_on = False

    def _setUp(self) -> None:
        execute, commit = self._dialect.do_execute, self._dialect.do_commit

        def do_execute(*args: Any, **kwargs: Any) -> None:
            self._strike(BEFORE)
            execute(*args, **kwargs)
            self._strike(BEHIND)

        def do_commit(connection: Any) -> None:
            self._strike(BEFORE_COMMIT)
            commit(connection)
            self._strike(BEHIND_COMMIT)

        self.useFixture(fixtures.MockPatchObject(self._dialect, "do_execute", do_execute))
        self.useFixture(fixtures.MockPatchObject(self._dialect, "do_commit", do_commit))

    def _strike(self, where: str) -> None:
        if not self.is_on or self._rng.random() >= self._probability:
            return
        self.counts[where] += 1
        # A committed transaction cannot be refused any more; only the answer can be lost.
        if where == BEHIND_COMMIT or self._rng.random() < 0.5:
            raise hooks.disconnect(self._backend)
        raise _refusal(self._backend, self._rng)
