# SPDX-License-Identifier: Apache-2.0
"""A table to which each change of a kind adds entries: limit_changes and capacity_changes.

All changes of one kind are serialized by one row of ``fences``, which counts them. An entry has this generation, and
its number within the transaction. These two numbers order the entries; the times may come from several clocks.

A checkpoint records a complete state: entries of one generation with the action ``checkpoint``.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import scopes
from cyborg_quota.db import clock, dialects
from cyborg_quota.db.models import fences
from cyborg_quota.types import CHECKPOINT, Author

LIMITS: Final = "limits"
"""The row of ``fences`` that each change of a limit or of the tree updates first."""

CAPACITY: Final = "capacity"
"""The row of ``fences`` that each change of a provider or of an inventory updates first."""


def serialize(connection: sa.Connection, fence: str) -> None:
    """Block all other changes of this kind until the transaction ends. Call this first in a transaction."""
    bump = sa.update(fences).where(fences.c.name == fence).values(generation=fences.c.generation + 1)
    if connection.execute(bump).rowcount == 0:
        dialects.of(connection).insert_or_ignore(connection, fences, {"name": fence, "generation": 0}, {})
        connection.execute(bump)


def author_columns(author: Author) -> dict[str, str | None]:
    """The columns of an entry that name its author."""
    return {
        "user_id": author.user_id,
        "user_project_id": author.project_id,
        "request_id": author.request_id,
        "reason": author.reason,
    }


def common_fields(row: Any) -> dict[str, Any]:
    """The fields that the entries of both tables have, by the names in HistoryEntry and CapacityEntry."""
    return {
        "id": f"{row.generation}-{row.ordinal}",
        "at": row.created_at,
        "actor": row.user_id,
        "actor_project_id": row.user_project_id,
        "request_id": row.request_id,
        "action": row.action,
        "operation": row.operation,
        "resource": row.resource,
        "reason": row.reason,
    }


class ChangeLog:
    """The entries of one table. ``table`` has the columns generation, ordinal, created_at, action and resource."""

    def __init__(self, table: sa.Table, fence: str) -> None:
        self._table = table
        self._fence = fence
        self._column = table.c
        self._order = (self._column.generation, self._column.ordinal)
        self._newest_first = tuple(column.desc() for column in self._order)

    def serialize(self, connection: sa.Connection) -> None:
        """Block all other changes of this kind until the transaction ends. Call this first in a transaction."""
        serialize(connection, self._fence)

    def generation(self, connection: sa.Connection) -> int:
        """The generation of the fence row: each change adds 1. In such a change: its own."""
        query = sa.select(fences.c.generation).where(fences.c.name == self._fence)
        return int(connection.execute(query).scalar_one_or_none() or 0)

    def query(
        self,
        *,
        since: datetime.datetime | datetime.timedelta | None = None,
        limit: int | None = None,
        before: tuple[int, int] | None = None,
        resource: str | None = None,
    ) -> sa.Select[Any]:
        """The entries that match all given filters, newest first.

        ``since``: a time (naive UTC), or the greatest age by the clock of the database. ``before``: the generation and
        the number of the entry before which the list starts.
        """
        query = sa.select(self._table).order_by(*self._newest_first).limit(limit)
        if resource is not None:
            in_pod = self._column.resource.endswith(f"{scopes.SEPARATOR}{resource}", autoescape=True)
            query = query.where(sa.or_(self._column.resource == resource, in_pod))
        if isinstance(since, datetime.timedelta):
            age = since // datetime.timedelta(microseconds=1)
            query = query.where(self._column.created_at >= clock.utc_after(-age))
        elif since is not None:
            query = query.where(self._column.created_at >= since)
        if before is not None:
            is_earlier = sa.and_(self._column.generation == before[0], self._column.ordinal < before[1])
            query = query.where(sa.or_(self._column.generation < before[0], is_earlier))
        return query

    def rows_from_last_checkpoint(self, connection: sa.Connection, before: int | None = None) -> Sequence[Any]:
        """The entries from the last checkpoint on, or from the first one; oldest first. ``before``: a generation."""
        is_earlier = sa.true() if before is None else self._column.generation < before
        last = sa.select(sa.func.max(self._column.generation)).where(self._column.action == CHECKPOINT, is_earlier)
        start = connection.execute(last).scalar_one_or_none() or 0
        query = sa.select(self._table).where(self._column.generation >= start, is_earlier).order_by(*self._order)
        return connection.execute(query).all()

    def has_older(self, connection: sa.Connection, age_microseconds: int) -> bool:
        """Whether the oldest entry is older than this. Does not consider the checkpoint of an earlier purge."""
        oldest = connection.execute(sa.select(sa.func.min(self._column.generation))).scalar_one_or_none()
        if oldest is None:
            return False
        start = oldest if self._has_checkpoint(connection, oldest) else oldest - 1
        first = (
            sa.select(self._column.created_at)
            .where(self._column.generation > start)
            .order_by(*self._order)
            .limit(1)
            .subquery()
        )
        is_older = first.c.created_at <= clock.utc_after(-age_microseconds)
        return connection.execute(sa.select(sa.literal(1)).select_from(first).where(is_older)).first() is not None

    def first_kept(self, connection: sa.Connection, age_microseconds: int) -> int:
        """The first generation that a purge keeps: that of the first entry younger than ``age_microseconds``."""
        is_young = self._column.created_at > clock.utc_after(-age_microseconds)
        query = sa.select(sa.func.min(self._column.generation)).where(is_young)
        first = connection.execute(query).scalar_one_or_none()
        return self.generation(connection) if first is None else int(first)

    def last_before(self, connection: sa.Connection, number: int) -> tuple[int, datetime.datetime | None] | None:
        """The generation and time of the last change before generation ``number``.

        None if only a checkpoint is left there.
        """
        is_earlier = self._column.generation < number
        query = sa.select(self._column.generation, self._column.created_at).where(is_earlier)
        row = connection.execute(query.order_by(*self._newest_first).limit(1)).first()
        oldest = sa.select(sa.func.min(self._column.generation)).where(is_earlier)
        first = connection.execute(oldest).scalar_one_or_none()
        if row is None or (row.generation == first and self._has_checkpoint(connection, row.generation)):
            return None
        return row.generation, row.created_at

    def _has_checkpoint(self, connection: sa.Connection, number: int) -> bool:
        is_checkpoint = sa.and_(self._column.generation == number, self._column.action == CHECKPOINT)
        query = sa.select(sa.literal(1)).select_from(self._table).where(is_checkpoint).limit(1)
        return connection.execute(query).first() is not None

    def delete_before(self, connection: sa.Connection, number: int) -> int:
        """Delete the entries before generation ``number``. Returns how many there were."""
        return connection.execute(sa.delete(self._table).where(self._column.generation < number)).rowcount

    def set_time(self, connection: sa.Connection, number: int, at: datetime.datetime | None) -> None:
        """Set the time of all entries of generation ``number``."""
        change = sa.update(self._table).where(self._column.generation == number)
        connection.execute(change.values(created_at=at))
