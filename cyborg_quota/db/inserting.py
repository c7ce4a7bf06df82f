# SPDX-License-Identifier: Apache-2.0
"""reservations: making them. One row is one resource of one claim."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations
from cyborg_quota.db.statements import Statement
from cyborg_quota.types import State

_row = reservations.c


class NewReservation(NamedTuple):
    """A row to be inserted. ``life_microseconds`` None: it does not expire (it is committed at once).

    ``place`` counts the rows of a consumer's claim from 1, in the order of their resources; None without a consumer.
    """

    uuid: str
    usage_id: int
    project_id: str
    resource: str
    delta: int
    consumer: str | None
    group: str | None
    state: State
    life_microseconds: int | None
    place: int | None = None


_MOST_ROWS: Final = 64
"""So many rows at most go into one INSERT."""


@functools.cache
def _insert_of(size: int, *, is_expiring: bool) -> Statement:
    """INSERT of ``size`` rows, each with parameters of its own; what they share is bound once."""
    shared: dict[str, Any] = {
        "created_at": clock.utc_now(),
        "deleted": sa.false(),
        "project_id": sa.bindparam("b_project"),
        "expire": clock.utc_after(sa.bindparam("b_life", type_=sa.BigInteger)) if is_expiring else sa.null(),
        "state": sa.bindparam("b_state"),
        "live": sa.literal_column("1"),
    }
    own = ("uuid", "usage_id", "resource", "delta", "consumer_id", "group_id", "place")
    rows = [
        {**shared, **{name: sa.bindparam(f"b_{name}_{index}", type_=_row[name].type) for name in own}}
        for index in range(size)
    ]
    return Statement(sa.insert(reservations).values(rows if size > 1 else rows[0]))


def _insert_if_free() -> Statement:
    """INSERT INTO reservations (...) SELECT ... WHERE NOT EXISTS (a live row of the consumer)"""
    holder = reservations.alias("holder")
    values = {
        "created_at": clock.utc_now(),
        "deleted": sa.false(),
        "uuid": sa.bindparam("b_uuid", type_=_row.uuid.type),
        "usage_id": sa.bindparam("b_usage_id", type_=_row.usage_id.type),
        "project_id": sa.bindparam("b_project", type_=_row.project_id.type),
        "resource": sa.bindparam("b_resource", type_=_row.resource.type),
        "delta": sa.bindparam("b_delta", type_=_row.delta.type),
        "expire": clock.utc_after(sa.bindparam("b_life", type_=sa.BigInteger)),
        "state": sa.bindparam("b_state", type_=_row.state.type),
        "consumer_id": sa.bindparam("b_consumer", type_=_row.consumer_id.type),
        "group_id": sa.bindparam("b_group", type_=_row.group_id.type),
        "live": sa.literal_column("1"),
        "place": sa.literal_column("1"),
    }
    held = sa.exists().where(
        holder.c.project_id == values["project_id"],
        holder.c.consumer_id == values["consumer_id"],
        holder.c.live == sa.literal_column("1"),
    )
    one = sa.select(sa.literal_column("1").label("one")).subquery("one")
    return Statement(
        sa.insert(reservations).from_select(list(values), sa.select(*values.values()).select_from(one).where(~held))
    )


_INSERT_IF_FREE = _insert_if_free()


def insert_if_free(connection: sa.Connection, row: NewReservation) -> bool:
    """Insert the one row of a claim, in one statement with the question whether its consumer holds something.

    False: it does, and nothing was inserted.
    """
    parameters = {
        "b_uuid": row.uuid,
        "b_usage_id": row.usage_id,
        "b_project": row.project_id,
        "b_resource": row.resource,
        "b_delta": row.delta,
        "b_life": row.life_microseconds,
        "b_state": row.state,
        "b_consumer": row.consumer,
        "b_group": row.group,
    }
    return _INSERT_IF_FREE(connection, parameters).rowcount == 1


def insert(connection: sa.Connection, rows: Sequence[NewReservation]) -> None:
    """Insert live rows of one project, one state and one life.

    Raises DBDuplicateEntry where a UUID or a live consumer exists.
    """
    first = rows[0]
    shared: dict[str, Any] = {"b_project": first.project_id, "b_state": first.state}
    is_expiring = first.life_microseconds is not None
    if is_expiring:
        shared["b_life"] = first.life_microseconds
    begin = 0
    while begin < len(rows):
        size = 1
        while size * 2 <= min(len(rows) - begin, _MOST_ROWS):
            size *= 2
        parameters = dict(shared)
        for index, row in enumerate(rows[begin : begin + size]):
            parameters[f"b_uuid_{index}"] = row.uuid
            parameters[f"b_usage_id_{index}"] = row.usage_id
            parameters[f"b_resource_{index}"] = row.resource
            parameters[f"b_delta_{index}"] = row.delta
            parameters[f"b_consumer_id_{index}"] = row.consumer
            parameters[f"b_group_id_{index}"] = row.group
            parameters[f"b_place_{index}"] = row.place
        _insert_of(size, is_expiring=is_expiring)(connection, parameters)
        begin += size
