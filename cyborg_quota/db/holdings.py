# SPDX-License-Identifier: Apache-2.0
"""What projects hold, whatever the limit driver: their usage, and the limits that were set for them."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from cyborg_quota.db.models import project_limits, projects, quota_usages
from cyborg_quota.types import Holding

_usage = quota_usages.c
_limit = project_limits.c


def is_known(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project is in the tree, has a usage row, or has a limit of its own."""
    return any(
        connection.execute(sa.select(table.c.project_id).where(table.c.project_id == project_id).limit(1)).first()
        for table in (projects, quota_usages, project_limits)
    )


def holders(connection: sa.Connection, after: str, count: int) -> list[str]:
    """The first ``count`` projects with an id greater than ``after`` that have usage or a limit, in the order of ids.

    SELECT project_id FROM (SELECT DISTINCT project_id FROM quota_usages WHERE ... ORDER BY project_id LIMIT :count)
    UNION SELECT project_id FROM (the same of project_limits) ORDER BY project_id LIMIT :count
    """
    has_usage = sa.or_(_usage.used > 0, _usage.reserved > 0)
    parts = [
        sa.select(column).where(column > after, condition).distinct().order_by(column).limit(count).subquery()
        for column, condition in ((_usage.project_id, has_usage), (_limit.project_id, sa.true()))
    ]
    union = sa.union(*(sa.select(part.c.project_id) for part in parts)).subquery()
    query = sa.select(union.c.project_id).order_by(union.c.project_id).limit(count)
    return [row.project_id for row in connection.execute(query)]


def read(connection: sa.Connection, project_ids: Collection[str]) -> list[Holding]:
    """The usage and the limits of these projects by resource, sorted."""
    some = sorted(project_ids)
    limits = {
        (row.project_id, row.resource): row.most
        for row in connection.execute(
            sa.select(_limit.project_id, _limit.resource, _limit.most).where(_limit.project_id.in_(some))
        )
    }
    usages = {
        (row.project_id, row.resource): (row.used, row.reserved)
        for row in connection.execute(
            sa.select(_usage.project_id, _usage.resource, _usage.used, _usage.reserved).where(
                _usage.project_id.in_(some), sa.or_(_usage.used > 0, _usage.reserved > 0)
            )
        )
    }
    return [Holding(*key, *usages.get(key, (0, 0)), limits.get(key)) for key in sorted(usages.keys() | limits.keys())]
