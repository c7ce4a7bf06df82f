# SPDX-License-Identifier: Apache-2.0
"""Reads all limits and the project tree as they are at one moment.

That takes several statements, and at READ COMMITTED each of them sees what was committed before it. If an import is
committed between two of them, one shows the limits before the import, and the other the overrides after it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Final, TypeVar

from cyborg_quota.db import change_log, overrides
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.limits import tables
from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.types import LimitOverride, TotalLimit

T = TypeVar("T")

_MAX_ATTEMPTS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class StoredLimits:
    """All limits and projects, the overrides that have not ended, the total limits, and the database's time."""

    tree: LimitTree
    overrides: list[LimitOverride]
    totals: list[TotalLimit]
    now: datetime.datetime


def at_one_moment(database: Database, work: Callable[[Connection], T]) -> T:
    """Return what ``work`` reads, with no change of limits or of the tree between its statements.

    Each such change increments the generation of the fence row: ``work`` is repeated if that has changed meanwhile.
    After _MAX_ATTEMPTS attempts, changes wait until another one has ended.
    """

    def attempt(connection: Connection) -> tuple[T, bool]:
        before = change_log.generation(connection)
        found = work(connection)
        return found, change_log.generation(connection) == before

    for _ in range(_MAX_ATTEMPTS):
        found, is_unchanged = database.read(attempt)
        if is_unchanged:
            return found

    def serialized(connection: Connection) -> T:
        change_log.serialize(connection)
        return work(connection)

    return database.write(serialized)


def read_all(database: Database, initial_limits: InitialLimits) -> StoredLimits:
    """All limits that are set."""
    return at_one_moment(
        database,
        lambda connection: StoredLimits(
            LimitTree(*tables.read_limits(connection), initial_limits),
            overrides.read(connection)[0],
            tables.read_totals(connection),
            overrides.now(connection),
        ),
    )
