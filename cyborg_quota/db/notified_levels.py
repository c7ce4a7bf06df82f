# SPDX-License-Identifier: Apache-2.0
"""The column quota_usages.told: the last notified threshold, so that each crossing is notified once."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.db.database import Connection
from cyborg_quota.db.models import quota_usages
from cyborg_quota.types import Counters

_usage = quota_usages.c
_READ = sa.select(
    _usage.project_id, _usage.resource, _usage.used, _usage.reserved, _usage.subtree, _usage.told
).order_by(_usage.project_id, _usage.resource)
_CLAIM = (
    sa.update(quota_usages)
    .where(
        _usage.project_id == sa.bindparam("b_project"),
        _usage.resource == sa.bindparam("b_resource"),
        _usage.told == sa.bindparam("b_before"),
    )
    .values(told=sa.bindparam("b_now"))
)


def read(connection: Connection) -> dict[tuple[str, str], tuple[Counters, int]]:
    """The counters and the last notified level of every usage row."""
    return {
        (row.project_id, row.resource): (Counters(row.used, row.reserved, row.subtree), row.told)
        for row in connection.execute(_READ)
    }


def claim(connection: Connection, project_id: str, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    parameters = {"b_project": project_id, "b_resource": resource, "b_before": before, "b_now": now}
    return connection.execute(_CLAIM, parameters).rowcount == 1
