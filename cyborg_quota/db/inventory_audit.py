# SPDX-License-Identifier: Apache-2.0
"""Compares the counters of inventories with the reservations that name their providers (C1), and corrects them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg_quota.capacity_types import CapacityDrift
from cyborg_quota.db import clock, reservations, resource_providers
from cyborg_quota.db.inventories import ELSEWHERE, Key
from cyborg_quota.db.models import inventories

_row = inventories.c


def _audit_query() -> sa.CompoundSelect[Any]:
    """Compare counters with sums in one statement, and find reservations whose inventory does not exist."""
    sums = reservations.claimed_sums()
    is_same = sa.and_(sums.c.provider_id == _row.provider_id, sums.c.resource == _row.resource)
    expected = sa.func.coalesce(sums.c.expected, 0)
    drifted = (
        sa.select(_row.provider_id, _row.resource, _row.used.label("used"), expected.label("expected"))
        .select_from(sa.outerjoin(inventories, sums, is_same))
        .where(sa.or_(_row.used != expected, _row.free != _row.capacity - _row.used - ELSEWHERE))
    )
    missing = (
        sa.select(sums.c.provider_id, sums.c.resource, sa.null(), sums.c.expected)
        .select_from(sa.outerjoin(sums, inventories, is_same))
        .where(_row.id.is_(None))
    )
    return sa.union_all(drifted, missing)


_AUDIT = _audit_query()


def audit(connection: sa.Connection) -> dict[Key, CapacityDrift]:
    """Every inventory whose counters differ from its reservations (C1)."""
    rows = connection.execute(_AUDIT).all()
    names = resource_providers.names(connection, [row.provider_id for row in rows])
    return {
        (row.provider_id, row.resource): CapacityDrift(
            provider=names.get(row.provider_id, str(row.provider_id)),
            resource=row.resource,
            recorded=row.used,
            expected=int(row.expected),
        )
        for row in sorted(rows, key=lambda row: (row.provider_id, row.resource))
    }


def recount(connection: sa.Connection, key: Key) -> tuple[int, int] | None:
    """Set the counters of one inventory to the sum of its reservations. Returns ``used`` before and after.

    The first statement locks the row; the second one then sees all that the transactions which held it have committed.
    None: there is no such inventory.
    """
    provider_id, resource = key
    is_row = sa.and_(_row.provider_id == provider_id, _row.resource == resource)
    if connection.execute(sa.update(inventories).where(is_row).values(used=_row.used)).rowcount == 0:
        return None
    used = int(connection.execute(reservations.claimed_query(provider_id, resource)).scalar_one())
    before = int(connection.execute(sa.select(_row.used).where(is_row)).scalar_one())
    connection.execute(
        sa.update(inventories)
        .where(is_row)
        .values(used=used, free=_row.capacity - used - ELSEWHERE, updated_at=clock.utc_now())
    )
    return before, used
