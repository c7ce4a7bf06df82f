# SPDX-License-Identifier: Apache-2.0
"""The table ``changes``: the history of limits, overrides, the project tree and capacity.

A transaction that changes one of them calls ``serialize`` first and ``record`` before it locks usage rows. Each entry
has the generation of the fence row in that transaction, and its number within the transaction. These two numbers order
the history, because only one such transaction can run at a time; the times may come from several clocks.

What is in use, here or elsewhere, is not part of the history: reservations record claims, and ``used_elsewhere`` is a
measurement.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, paging, prepared
from cyborg_quota.db.models import changes, fences
from cyborg_quota.types import (
    Author,
    HistoryEntry,
    RecordedChange,
    RecordedChanges,
    Value,
)
from cyborg_quota.types.limits import HistoryFilter, reason_of

FENCE: Final = "changes"
"""The row of ``fences`` that each change updates first."""

_PURGED_GENERATIONS: Final = 1000
_column = changes.c
_OBJECT: Final = tuple(
    field.name for field in dataclasses.fields(RecordedChange) if field.name in _column and field.name != "action"
)
"""The columns that say what has changed: fields of RecordedChange and of HistoryEntry."""
_AUTHOR: Final = ("user_id", "user_project_id", "request_id", "operation")
_COMPARED: Final = ("action", "subject", *_OBJECT, "override_id", "value_before", "value_after", "reason", *_AUTHOR)
_FILTERS: Final = tuple(
    field.name for field in dataclasses.fields(HistoryFilter) if field.name in _column and field.name != "provider"
)
_newest_first = (_column.generation.desc(), _column.ordinal.desc())


def serialize(connection: sa.Connection) -> None:
    """Block all other changes until the transaction ends. Call this first in a transaction."""
    bump = sa.update(fences).where(fences.c.name == FENCE).values(generation=fences.c.generation + 1)
    if connection.execute(bump).rowcount == 0:
        dialects.of(connection).insert_or_ignore(connection, fences, {"name": FENCE, "generation": 0}, {})
        connection.execute(bump)


def generation(connection: sa.Connection) -> int:
    """The generation of the fence row: each change adds 1. In such a change: its own."""
    query = sa.select(fences.c.generation).where(fences.c.name == FENCE)
    return int(connection.execute(query).scalar_one_or_none() or 0)


def latest(connection: sa.Connection, project_id: str) -> int:
    """The generation of the last change of the project's own limits; 0: the history has none."""
    is_own = sa.and_(_column.project_id == project_id, _column.subject == "limit")
    query = sa.select(_column.generation).where(is_own).order_by(*_newest_first).limit(1)
    return int(connection.execute(query).scalar_one_or_none() or 0)


def record(
    connection: sa.Connection, author: Author, made: Sequence[RecordedChange], *, operation: str | None = None
) -> RecordedChanges | None:
    """Add the changes of this transaction to the history. None: there are no changes."""
    if not made:
        return None
    recorded = RecordedChanges(generation(connection), author, operation, made)
    prepared.insert_many(connection, changes, _rows(recorded))
    return recorded


def has(connection: sa.Connection, recorded: RecordedChanges) -> bool:
    """Whether the history has these changes, of a transaction whose COMMIT was not answered.

    (Another transaction may have got the generation of one that was rolled back.)
    """
    query = sa.select(*(_column[name] for name in _COMPARED)).where(_column.generation == recorded.generation)
    rows = connection.execute(query.order_by(_column.ordinal)).mappings()
    return [dict(row) for row in rows] == [{name: row[name] for name in _COMPARED} for row in _rows(recorded)]


def _rows(recorded: RecordedChanges) -> list[dict[str, Any]]:
    author = recorded.author
    of_all = {
        "generation": recorded.generation,
        "user_id": author.user_id,
        "user_project_id": author.project_id,
        "request_id": author.request_id,
        "operation": recorded.operation,
    }
    return [
        {
            **of_all,
            "ordinal": ordinal,
            "action": change.action.partition(" ")[0],
            "subject": change.action.partition(" ")[2],
            **{name: getattr(change, name) for name in _OBJECT},
            "override_id": None if override is None else override.id,
            # (Prepared statements take no dates: see prepared.py.)
            "starts_at": None if override is None else override.starts_at.isoformat(" ", "microseconds"),
            "ends_at": None if override is None else override.until.isoformat(" ", "microseconds"),
            "value_before": _text(change.before),
            "value_after": _text(change.after),
            "reason": reason_of(author, change),
        }
        for ordinal, change in enumerate(recorded.changes)
        for override in [change.override]
    ]


def _text(value: Value) -> str | None:
    if value is None:
        return None
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, separators=(",", ":"))


def read(
    connection: sa.Connection,
    wanted: HistoryFilter,
    *,
    limit: int | None = None,
    marker: tuple[int, int] | None = None,
    oldest_first: bool = False,
) -> list[HistoryEntry]:
    """The entries that match, newest first. ``marker``: the generation and the number of the entry after which the list
    begins. Raises MarkerNotFound if there is no such entry; one of another project is not known either (I8).
    """
    conditions = paging.given(*((_column[name], getattr(wanted, name)) for name in _FILTERS))
    order = (_column.generation, _column.ordinal) if oldest_first else _newest_first
    query = sa.select(changes).where(*conditions).order_by(*order).limit(limit)
    if wanted.provider is not None:
        query = query.where(sa.or_(_column.provider == wanted.provider, _column.provider_uuid == wanted.provider))
    for moment, compare in ((wanted.since, operator.ge), (wanted.until, operator.lt)):
        if moment is not None:
            query = query.where(compare(_column.created_at, moment))
    if marker is not None:
        generation, ordinal = marker
        is_entry = sa.and_(_column.generation == generation, _column.ordinal == ordinal)
        # (An entry of another project is not known.)
        is_known = sa.and_(is_entry, *paging.given((_column.project_id, wanted.project_id)))
        paging.require(connection, changes, is_known, (f"{generation}-{ordinal}",))
        follows = operator.gt if oldest_first else operator.lt
        is_next = sa.and_(_column.generation == generation, follows(_column.ordinal, ordinal))
        query = query.where(sa.or_(follows(_column.generation, generation), is_next))
    return [
        HistoryEntry(
            id=f"{row.generation}-{row.ordinal}",
            at=row.created_at,
            action=f"{row.action} {row.subject}",
            **{name: getattr(row, name) for name in (*_OBJECT, *_AUTHOR, "override_id", "starts_at", "reason")},
            until=row.ends_at,
            before=None if row.value_before is None else json.loads(row.value_before),
            after=None if row.value_after is None else json.loads(row.value_after),
        )
        for row in connection.execute(query)
    ]


def purge(connection: sa.Connection, age_microseconds: int) -> int:
    """Delete entries older than this, of at most _PURGED_GENERATIONS transactions. Returns how many there were.

    Those of an override are kept until it has ended that long ago.
    """
    end = clock.utc_after(-age_microseconds)
    is_old = sa.and_(_column.created_at <= end, sa.or_(_column.ends_at.is_(None), _column.ends_at <= end))
    query = sa.select(_column.generation).distinct().where(is_old).order_by(_column.generation)
    generations = connection.scalars(query.limit(_PURGED_GENERATIONS)).all()
    return connection.execute(sa.delete(changes).where(_column.generation.in_(generations), is_old)).rowcount
