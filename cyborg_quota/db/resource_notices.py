# SPDX-License-Identifier: Apache-2.0
"""The table resource_notices: the threshold of the capacity of a resource, at all providers, that was last reported."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.db import dialects
from cyborg_quota.db.models import resource_notices

_row = resource_notices.c
_CLAIM = (
    sa.update(resource_notices)
    .where(_row.resource == sa.bindparam("b_resource"), _row.notified_level == sa.bindparam("b_before"))
    .values(notified_level=sa.bindparam("b_now"))
)


def levels(connection: sa.Connection) -> dict[str, int]:
    """The level of each resource that was last reported. A resource that is not contained has the level 0."""
    return {row.resource: row.notified_level for row in connection.execute(sa.select(resource_notices))}


def claim_level(connection: sa.Connection, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    if before == 0:
        values = {"resource": sa.bindparam("b_resource"), "notified_level": 0}
        dialects.of(connection).insert_or_ignore(connection, resource_notices, values, {"b_resource": resource})
    return connection.execute(_CLAIM, {"b_resource": resource, "b_before": before, "b_now": now}).rowcount == 1
