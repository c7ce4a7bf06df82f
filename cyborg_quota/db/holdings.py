# SPDX-License-Identifier: Apache-2.0
"""What projects hold, whatever the limit driver: their usage, and the limits and overrides that were set for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import limit_overrides, project_limits, projects, quota_usages
from cyborg_quota.types import Holding

_usage = quota_usages.c
_limit = project_limits.c
_override = limit_overrides.c
_HAS_NOT_ENDED: Final = _override.ends_at > clock.utc_now()


def is_known(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project is in the tree, has a usage row, or has a limit of its own or an override."""
    sources: tuple[tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]], ...] = (
        (projects.c.project_id, sa.true()),
        (_usage.project_id, sa.true()),
        (_limit.project_id, sa.true()),
        (_override.project_id, _HAS_NOT_ENDED),
    )
    return any(
        connection.execute(sa.select(column).where(column == project_id, condition).limit(1)).first()
        for column, condition in sources
    )


def holders(connection: sa.Connection, after: str, count: int) -> list[str]:
    """The first ``count`` projects with an id greater than ``after`` that have usage, a limit or an override, sorted.

    SELECT project_id FROM (SELECT DISTINCT project_id FROM quota_usages WHERE ... ORDER BY project_id LIMIT :count)
    UNION SELECT project_id FROM (the same of project_limits)
    UNION SELECT project_id FROM (the same of limit_overrides) ORDER BY project_id LIMIT :count
    """
    has_usage = sa.or_(_usage.used > 0, _usage.reserved > 0)
    parts = [
        sa.select(column).where(column > after, condition).distinct().order_by(column).limit(count).subquery()
        for column, condition in (
            (_usage.project_id, has_usage),
            (_limit.project_id, sa.true()),
            (_override.project_id, _HAS_NOT_ENDED),
        )
    ]
    union = sa.union(*(sa.select(part.c.project_id) for part in parts)).subquery()
    query = sa.select(union.c.project_id).order_by(union.c.project_id).limit(count)
    return [row.project_id for row in connection.execute(query)]


def read(connection: sa.Connection, project_ids: Collection[str]) -> list[Holding]:
    """The usage, the limits and the numbers of overrides of these projects by resource, sorted."""
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
    overrides = Counter(
        (row.project_id, row.resource)
        for row in connection.execute(
            sa.select(_override.project_id, _override.resource).where(_override.project_id.in_(some), _HAS_NOT_ENDED)
        )
    )
    return [
        Holding(*key, *usages.get(key, (0, 0)), limits.get(key), overrides[key])
        for key in sorted({*usages, *limits, *overrides})
    ]
