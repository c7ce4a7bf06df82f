# SPDX-License-Identifier: Apache-2.0
"""The table reservation_changes, which records the resizes and transfers of reservations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import sqlalchemy as sa

from cyborg_quota.db.models import reservation_changes
from cyborg_quota.db.prepared import ListStatement, any_of, insert_many
from cyborg_quota.db.reservations import Amendment

_change = reservation_changes.c


def record(connection: sa.Connection, changes: Iterable[Amendment]) -> None:
    """Record changes, in their transaction."""
    rows = [
        {
            "uuid": change.uuid,
            "reservation_id": change.row.id,
            "generation": change.row.generation + 1,
            "state": change.row.state,
            "project_before": change.row.project_id,
            "project_after": change.project_id,
            "delta_before": change.row.delta,
            "delta_after": change.delta,
        }
        for change in changes
    ]
    insert_many(connection, reservation_changes, rows)


def is_any_recorded(connection: sa.Connection, uuids: Collection[str]) -> bool:
    """Whether an earlier attempt of the call that made these UUIDs was committed."""
    query = sa.select(sa.literal(1)).where(_change.uuid.in_(sorted(uuids))).limit(1)
    return connection.execute(query).first() is not None


_DELETE = ListStatement(lambda size: sa.delete(reservation_changes).where(any_of(_change.reservation_id, size)))


def delete_of(connection: sa.Connection, reservation_ids: Sequence[int]) -> None:
    """Delete the changes of reservations that a purge deletes."""
    _DELETE.changed(connection, reservation_ids, {})
