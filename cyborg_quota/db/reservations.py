# SPDX-License-Identifier: Apache-2.0
"""reservations: one row is one resource of one claim. All SQL that reads or moves one, but for upkeep.py's bulk."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, cast

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations
from cyborg_quota.transitions import Row
from cyborg_quota.types import EXPIRED, LIVE_STATES, RESERVED, Reservation, State

_row = reservations.c


@dataclasses.dataclass(frozen=True, slots=True)
class NewReservation:
    """A row to be inserted. ``life_microseconds`` None: it does not expire (it is committed at once)."""

    uuid: str
    usage_id: int
    project_id: str
    resource: str
    delta: int
    consumer: str | None
    group: str | None
    state: State
    life_microseconds: int | None


def _insert(expire: Any) -> sa.Insert:
    return sa.insert(reservations).values(
        created_at=clock.utc_now(),
        deleted=sa.false(),
        uuid=sa.bindparam("b_uuid"),
        usage_id=sa.bindparam("b_usage_id"),
        project_id=sa.bindparam("b_project"),
        resource=sa.bindparam("b_resource"),
        delta=sa.bindparam("b_delta"),
        expire=expire,
        state=sa.bindparam("b_state"),
        consumer_id=sa.bindparam("b_consumer"),
        group_id=sa.bindparam("b_group"),
        live=1,
    )


_INSERT_EXPIRING = _insert(clock.utc_after(sa.bindparam("b_life", type_=sa.BigInteger)))
_INSERT_LASTING = _insert(sa.null())


def insert(connection: sa.Connection, rows: Sequence[NewReservation]) -> None:
    """Insert live rows (all with, or all without, an expiry). DBDuplicateEntry: a UUID or a live consumer exists."""
    expiring = rows[0].life_microseconds is not None
    parameters: list[dict[str, Any]] = [
        {
            "b_uuid": row.uuid,
            "b_usage_id": row.usage_id,
            "b_project": row.project_id,
            "b_resource": row.resource,
            "b_delta": row.delta,
            "b_state": row.state,
            "b_consumer": row.consumer,
            "b_group": row.group,
        }
        for row in rows
    ]
    if expiring:
        for row, parameter in zip(rows, parameters, strict=True):
            parameter["b_life"] = row.life_microseconds
    connection.execute(_INSERT_EXPIRING if expiring else _INSERT_LASTING, parameters)


_IS_OVERDUE = sa.and_(
    _row.state == RESERVED,
    _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)),
)
_STORED = sa.select(
    _row.id,
    _row.uuid,
    _row.usage_id,
    _row.project_id,
    _row.resource,
    _row.delta,
    _row.state,
    sa.case((_IS_OVERDUE, 1), else_=0).label("overdue"),
    _row.consumer_id,
    _row.created_at,
    _row.deleted_at,
)


def _stored(found: Any) -> Row:
    return Row(
        id=found.id,
        uuid=found.uuid,
        usage_id=found.usage_id,
        project_id=found.project_id,
        resource=found.resource,
        delta=found.delta,
        state=cast(State, found.state),
        overdue=bool(found.overdue),
        consumer=found.consumer_id,
        created_at=found.created_at,
        ended_at=found.deleted_at,
    )


_BY_UUID = _STORED.where(_row.uuid.in_(sa.bindparam("b_uuids", expanding=True)))
_BY_CONSUMER = _STORED.where(_row.project_id == sa.bindparam("b_project"), _row.consumer_id == sa.bindparam("b_name"))
_BY_GROUP = _STORED.where(_row.project_id == sa.bindparam("b_project"), _row.group_id == sa.bindparam("b_name"))


def by_uuids(connection: sa.Connection, uuids: Sequence[str], project_id: str | None, grace: int) -> list[Row]:
    """The rows of these UUIDs, in the order given; of ``project_id`` alone unless None. ``grace``: microseconds."""
    found = connection.execute(_BY_UUID, {"b_uuids": list(uuids), "b_grace": grace})
    rows = {row.uuid: _stored(row) for row in found if project_id is None or row.project_id == project_id}
    return [rows[uuid] for uuid in dict.fromkeys(uuids) if uuid in rows]


def by_consumer(connection: sa.Connection, project_id: str, consumer: str, grace: int) -> list[Row]:
    """Every row this consumer of the project ever had (that is not purged)."""
    found = connection.execute(_BY_CONSUMER, {"b_project": project_id, "b_name": consumer, "b_grace": grace})
    return [_stored(row) for row in found]


def by_group(connection: sa.Connection, project_id: str, group: str, grace: int) -> list[Row]:
    """Every row of this group of the project (that is not purged)."""
    found = connection.execute(_BY_GROUP, {"b_project": project_id, "b_name": group, "b_grace": grace})
    return [_stored(row) for row in found]


_LIVE = _STORED.where(
    _row.project_id == sa.bindparam("b_project"),
    _row.consumer_id.in_(sa.bindparam("b_consumers", expanding=True)),
    _row.live == 1,
)


def live_of(connection: sa.Connection, project_id: str, consumers: Collection[str], grace: int) -> list[Row]:
    """What these consumers hold now (the overdue included)."""
    names = sorted(consumers)
    found = connection.execute(_LIVE, {"b_project": project_id, "b_consumers": names, "b_grace": grace})
    return [_stored(row) for row in found]


_HAS_LIVE = (
    sa.select(sa.literal(1))
    .where(
        _row.project_id == sa.bindparam("b_project"),
        _row.consumer_id.in_(sa.bindparam("b_consumers", expanding=True)),
        _row.live == 1,
    )
    .limit(1)
)


def any_live(connection: sa.Connection, project_id: str, consumers: Collection[str]) -> bool:
    """Whether one of these consumers holds something now."""
    names = sorted(consumers)
    return connection.execute(_HAS_LIVE, {"b_project": project_id, "b_consumers": names}).first() is not None


_OVERDUE = _STORED.where(_IS_OVERDUE).order_by(_row.expire, _row.id).limit(sa.bindparam("b_limit", type_=sa.Integer))


def overdue(connection: sa.Connection, limit: int, grace: int) -> list[Row]:
    """The next ``limit`` overdue rows, longest overdue first."""
    return [_stored(row) for row in connection.execute(_OVERDUE, {"b_limit": limit, "b_grace": grace})]


_IDS = _row.id.in_(sa.bindparam("b_ids", expanding=True))
_NOT_OVERDUE = sa.or_(
    _row.expire.is_(None),
    _row.expire > clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)),
)
_LIVE_TO_LIVE = (
    sa.update(reservations)
    .where(_IDS, _row.state == sa.bindparam("b_before"), _NOT_OVERDUE)
    .values(state=sa.bindparam("b_after"), updated_at=clock.utc_now())
)
_END = (
    sa.update(reservations)
    .where(_IDS, _row.state == sa.bindparam("b_before"))
    .values(
        state=sa.bindparam("b_after"),
        updated_at=clock.utc_now(),
        deleted_at=clock.utc_now(),
        deleted=sa.true(),
        live=sa.null(),
    )
)
_EXPIRE = _END.where(_IS_OVERDUE)


def move(connection: sa.Connection, ids: Sequence[int], before: State, after: State, grace: int) -> bool:
    """Take rows from one state to another: all of them, or (False) roll back, for somebody else moved one.

    A row is committed only while it is not overdue, and expired only when it is, on the clock of this statement.
    """
    parameters: dict[str, Any] = {"b_ids": sorted(ids), "b_before": before, "b_after": after}
    if after in LIVE_STATES:
        statement, parameters["b_grace"] = _LIVE_TO_LIVE, grace
    elif after == EXPIRED:
        statement, parameters["b_grace"] = _EXPIRE, grace
    else:
        statement = _END
    return connection.execute(statement, parameters).rowcount == len(ids)


_EXTEND = (
    sa.update(reservations)
    .where(_IDS, _row.state == RESERVED, _NOT_OVERDUE)
    .values(
        expire=clock.utc_after(sa.bindparam("b_life", type_=sa.BigInteger)),
        updated_at=clock.utc_now(),
    )
)


def extend(connection: sa.Connection, ids: Sequence[int], life_microseconds: int, grace: int) -> bool:
    """Give rows in flight a new expiry, counted from now: all of them, or (False) roll back."""
    parameters = {"b_ids": sorted(ids), "b_life": life_microseconds, "b_grace": grace}
    return connection.execute(_EXTEND, parameters).rowcount == len(ids)


_LINK = (
    sa.update(reservations)
    .where(
        _row.project_id == sa.bindparam("b_project"),
        _row.resource == sa.bindparam("b_resource"),
        _row.live == 1,
    )
    .values(usage_id=sa.bindparam("b_usage_id"))
)


def link(connection: sa.Connection, usage_id: int, project_id: str, resource: str) -> None:
    """Tie a project's live reservations to the usage row that was made anew for them."""
    connection.execute(_LINK, {"b_usage_id": usage_id, "b_project": project_id, "b_resource": resource})


def read(
    connection: sa.Connection,
    *,
    project_id: str | None = None,
    state: State | None = None,
    uuids: Collection[str] | None = None,
    consumer: str | None = None,
    group: str | None = None,
    limit: int | None = None,
) -> list[Reservation]:
    """Reservations that match everything given, oldest first."""
    query = sa.select(
        _row.uuid,
        _row.project_id,
        _row.resource,
        _row.delta,
        _row.state,
        _row.consumer_id,
        _row.group_id,
        _row.expire,
        _row.created_at,
        _row.deleted_at,
    ).order_by(_row.id)
    for column, value in (
        (_row.project_id, project_id),
        (_row.state, state),
        (_row.consumer_id, consumer),
        (_row.group_id, group),
    ):
        if value is not None:
            query = query.where(column == value)
    if uuids is not None:
        query = query.where(_row.uuid.in_(sorted(uuids)))
    if limit is not None:
        query = query.limit(limit)
    return [
        Reservation(
            uuid=found.uuid,
            project_id=found.project_id,
            resource=found.resource,
            delta=found.delta,
            state=found.state,
            consumer=found.consumer_id,
            group=found.group_id,
            expire=found.expire,
            created_at=found.created_at,
            ended_at=found.deleted_at,
        )
        for found in connection.execute(query)
    ]
