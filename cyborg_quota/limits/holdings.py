# SPDX-License-Identifier: Apache-2.0
"""What projects hold, whatever the limit driver: their usage, and the limits and overrides that were set for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from cyborg_quota.db import overrides, projects, usages
from cyborg_quota.limits import tables as limits
from cyborg_quota.types import UsageKey
from cyborg_quota.types.limits import Holding


def is_known(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project is in the tree, has a usage row, or has a limit of its own or an override."""
    if projects.edges(connection, [project_id]) or limits.of_projects(connection, [project_id]):
        return True
    queries = (usages.of_project_query(project_id), overrides.of_projects_query([project_id]))
    return any(connection.execute(query.limit(1)).first() for query in queries)


def holders(connection: sa.Connection, after: str, count: int) -> list[str]:
    """The first ``count`` projects with an id greater than ``after`` that have usage, a limit or an override, sorted.

    SELECT project_id FROM (SELECT DISTINCT project_id FROM quota_usages WHERE ... ORDER BY project_id LIMIT :count)
    UNION SELECT project_id FROM (the same of project_limits)
    UNION SELECT project_id FROM (the same of limit_overrides) ORDER BY project_id LIMIT :count
    """
    parts = [
        query.subquery()
        for query in (
            usages.holders_query(after, count),
            limits.holders_query(after, count),
            overrides.holders_query(after, count),
        )
    ]
    union = sa.union(*(sa.select(part.c.project_id) for part in parts)).subquery()
    query = sa.select(union.c.project_id).order_by(union.c.project_id).limit(count)
    return [row.project_id for row in connection.execute(query)]


def read(connection: sa.Connection, project_ids: Collection[str]) -> list[Holding]:
    """The usage, all limits and the numbers of overrides of these projects, sorted by their keys."""
    some = sorted(project_ids)
    own_limits = limits.of_projects(connection, some)
    held = _held(connection, some)
    if not all(key.is_whole for key in own_limits):
        parts = _held(connection, some, whole=False)
        held |= {key: parts[key] for key in own_limits if key in parts}
    rows = connection.execute(overrides.of_projects_query(some))
    numbers = Counter(UsageKey(row.project_id, row.resource) for row in rows)
    return [
        Holding(key, *held.get(key, (0, 0)), own_limits.get(key), numbers[key])
        for key in sorted({*held, *own_limits, *numbers})
    ]


def sums(connection: sa.Connection, resources: Collection[str]) -> dict[str, int]:
    """used + reserved of all projects, by resource; without those of which nothing is held.

    SELECT resource, SUM(used), SUM(reserved) FROM quota_usages WHERE ... GROUP BY resource
    """
    row = usages.held_query(None).subquery().c
    query = sa.select(row.resource, sa.func.sum(row.used), sa.func.sum(row.reserved)).group_by(row.resource)
    rows = connection.execute(query.where(row.resource.in_(sorted(resources))))
    return {resource: int(used) + int(reserved) for resource, used, reserved in rows}


def _held(connection: sa.Connection, some: Sequence[str], *, whole: bool = True) -> dict[UsageKey, tuple[int, int]]:
    rows = connection.execute(usages.held_query(some, whole=whole))
    return {UsageKey(*key): (used, reserved) for *key, used, reserved in rows}
