# SPDX-License-Identifier: Apache-2.0
"""The table resource_notices: the threshold of the capacity of a resource, at all providers, that was last reported."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.capacity import free_capacity
from cyborg_quota.db import dialects
from cyborg_quota.db.models import resource_notices
from cyborg_quota.types.capacity import CapacityNotice

_row = resource_notices.c
_CLAIM = (
    sa.update(resource_notices)
    .where(_row.resource == sa.bindparam("b_resource"), _row.notified_level == sa.bindparam("b_before"))
    .values(notified_level=sa.bindparam("b_now"))
)


def read(connection: sa.Connection) -> list[CapacityNotice]:
    """The use of each resource at all providers together, and the level that was last reported. Sorted by resource."""
    levels = {row.resource: row.notified_level for row in connection.execute(sa.select(resource_notices))}
    sums = free_capacity.sums_by_resource(connection)
    return [
        CapacityNotice(None, name, capacity, capacity - free, levels.get(name, 0), levels.get(name, 0))
        for name in sorted(sums.keys() | levels.keys())
        for capacity, free in (sums.get(name, (0, 0)),)
    ]


def claim_level(connection: sa.Connection, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    if before == 0:
        values = {"resource": sa.bindparam("b_resource"), "notified_level": 0}
        dialects.of(connection).insert_or_ignore(connection, resource_notices, values, {"b_resource": resource})
    return connection.execute(_CLAIM, {"b_resource": resource, "b_before": before, "b_now": now}).rowcount == 1
