# SPDX-License-Identifier: Apache-2.0
"""Reservations as people look at them: all there is to know, by whatever is asked for."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db.models import reservations
from cyborg_quota.types import Reservation, State

_row = reservations.c


def read(
    connection: sa.Connection,
    *,
    project_id: str | None = None,
    state: State | None = None,
    uuids: Collection[str] | None = None,
    consumer: str | None = None,
    group: str | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> list[Reservation]:
    """Reservations that match everything given, oldest first; made later than ``after``. Raises ReservationNotFound."""
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
        _row.source,
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
    if after is not None:
        place = connection.scalar(sa.select(_row.id).where(_row.uuid == after))
        if place is None:
            raise exceptions.ReservationNotFound(after)  # purged since: no rows would read as the end
        query = query.where(_row.id > place)
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
            source=found.source,
        )
        for found in connection.execute(query)
    ]
