# SPDX-License-Identifier: Apache-2.0
"""The table limit_overrides: limits that apply between a start and an end time, by the clock of the database.

Where overrides of one limit overlap, the one made last applies: the one with the highest generation of the fence row
under which it was made, and then the highest number within that transaction. No time decides that.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, paging
from cyborg_quota.db.models import limit_overrides
from cyborg_quota.db.prepared import chunks
from cyborg_quota.types import LimitOverride, UsageKey

KEPT_SECONDS: Final = 86400
"""An ended override is deleted by a later change, and not before this time: the clocks of a cluster differ."""

_ID: Final = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})", re.ASCII)
_column = limit_overrides.c
_KEY: Final = (_column.project_id, _column.resource)

HAS_NOT_ENDED: Final = _column.ends_at > clock.utc_now()
IS_ACTIVE: Final = sa.and_(_column.starts_at <= clock.utc_now(), HAS_NOT_ENDED)
"""The condition of an override that applies at this moment, by the clock of the database."""


def latest(rows: Iterable[tuple[UsageKey, int, int, int, Any]]) -> dict[UsageKey, tuple[int, Any]]:
    """The limit that applies and its end, by its key. ``rows``: key, limit, generation, number, end of overrides."""
    return {key: (limit, end) for key, limit, _, _, end in sorted(rows, key=lambda row: row[2:4])}


def read(
    connection: sa.Connection, project_ids: Collection[str] | None = None
) -> tuple[list[LimitOverride], datetime.datetime | None]:
    """The overrides that have not ended, in the order in which they were made; and the database's time.

    The time is None if there are no such overrides.
    """
    if project_ids is None:
        return _rows(connection, sa.true())
    overrides: list[LimitOverride] = []
    now = None
    for names in chunks(sorted(project_ids)):
        rows, at = _rows(connection, _column.project_id.in_(names), is_sorted=False)
        overrides += rows
        now = now or at
    return sorted(overrides, key=lambda override: override.made), now


def read_page(
    connection: sa.Connection, project_id: str | None, page: tuple[int | None, tuple[int, int] | None, str | None]
) -> tuple[list[LimitOverride], datetime.datetime | None]:
    """Like ``read``, of one project or of all, but only one page: (limit, after, resource).

    ``limit``: the maximum number (None: all). ``after``: the generation and the number of the override after which the
    page begins, which may have ended. ``resource``: only of this one.
    """
    limit, after, resource = page
    conditions = [sa.true(), *paging.given((_column.project_id, project_id), (_column.resource, resource))]
    if after is not None:
        is_later = sa.or_(_column.generation > after[0], _column.ordinal > after[1])
        conditions += [_column.generation >= after[0], is_later]
    return _rows(connection, sa.and_(*conditions), limit)


def find(connection: sa.Connection, override_id: str) -> LimitOverride | None:
    """The override with this id; None if there is none that has not ended."""
    parts = _ID.fullmatch(override_id)
    generation, ordinal = (int(part) for part in parts.groups()) if parts else (-1, -1)
    if not 0 <= max(generation, ordinal) < 2**31:
        return None
    overrides, _ = _rows(connection, sa.and_(_column.generation == generation, _column.ordinal == ordinal))
    return overrides[0] if overrides else None


def _rows(
    connection: sa.Connection, condition: sa.ColumnElement[bool], limit: int | None = None, *, is_sorted: bool = True
) -> tuple[list[LimitOverride], datetime.datetime | None]:
    """``is_sorted`` False: the caller sorts. (SQLite would read all rows in that order, rather than by the names.)"""
    now = sa.type_coerce(clock.utc_now(), sa.DateTime()).label("now")
    query = sa.select(limit_overrides, now).where(condition, HAS_NOT_ENDED).limit(limit)
    if is_sorted:
        query = query.order_by(_column.generation, _column.ordinal)
    rows = connection.execute(query).all()
    overrides = [
        LimitOverride(
            made=(row.generation, row.ordinal),
            project_id=row.project_id,
            resource=row.resource,
            limit=row.hard_limit,
            starts_at=row.starts_at,
            until=row.ends_at,
            reason=row.reason,
        )
        for row in rows
    ]
    return overrides, rows[0].now if rows else None


def now(connection: sa.Connection) -> datetime.datetime:
    """The time of the database, as naive UTC."""
    moment = connection.execute(sa.select(sa.type_coerce(clock.utc_now(), sa.DateTime()))).scalar_one()
    assert isinstance(moment, datetime.datetime)
    return moment


def insert(connection: sa.Connection, made: Sequence[LimitOverride]) -> None:
    """Store new overrides, and delete those that ended long ago."""
    connection.execute(sa.delete(limit_overrides).where(_column.ends_at < clock.utc_after(-KEPT_SECONDS * 1_000_000)))
    rows = [
        {
            "generation": override.made[0],
            "ordinal": override.made[1],
            "project_id": override.project_id,
            "resource": override.resource,
            "hard_limit": override.limit,
            "starts_at": override.starts_at,
            "ends_at": override.until,
            "reason": override.reason,
        }
        for override in made
    ]
    if rows:
        connection.execute(sa.insert(limit_overrides).values(created_at=clock.utc_now()), rows)


def delete(connection: sa.Connection, cancelled: Iterable[LimitOverride]) -> None:
    """Delete these overrides."""
    for override in cancelled:
        is_this = sa.and_(_column.generation == override.made[0], _column.ordinal == override.made[1])
        connection.execute(sa.delete(limit_overrides).where(is_this))


# Queries for limits/tables.py.


HOLDING: Final = (_column.project_id, HAS_NOT_ENDED)
"""The projects of this table, and the condition of an override that has not ended."""


def of_projects_query(project_ids: Sequence[str]) -> sa.Select[Any]:
    """The query for the overrides of these projects that have not ended; ``is_active``: 1 for those that have begun."""
    is_active = sa.case((_column.starts_at <= clock.utc_now(), 1), else_=0).label("is_active")
    return sa.select(*_KEY, is_active).where(_column.project_id.in_(project_ids), HAS_NOT_ENDED)
