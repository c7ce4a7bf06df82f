# SPDX-License-Identifier: Apache-2.0
"""List reservations with all public attributes, by any combination of filters."""

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
    resource: str | None = None,
) -> list[Reservation]:
    """The reservations that match all filters, oldest first, after the UUID ``after``. Raises ReservationNotFound."""
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
        (_row.resource, resource),
    ):
        if value is not None:
            query = query.where(column == value)
    if uuids is not None:
        query = query.where(_row.uuid.in_(sorted(uuids)))
    if after is not None:
        after_id = connection.scalar(sa.select(_row.id).where(_row.uuid == after))
        if after_id is None:
            raise exceptions.ReservationNotFound(after)  # purged: an empty page would mean the end of the list
        query = query.where(_row.id > after_id)
    if limit is not None:
        query = query.limit(limit)
    return [
        Reservation(
            uuid=row.uuid,
            project_id=row.project_id,
            resource=row.resource,
            delta=row.delta,
            state=row.state,
            consumer=row.consumer_id,
            group=row.group_id,
            expire=row.expire,
            created_at=row.created_at,
            ended_at=row.deleted_at,
            source=row.source,
        )
        for row in connection.execute(query)
    ]
