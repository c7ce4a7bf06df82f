# SPDX-License-Identifier: Apache-2.0
"""The total of a resource over all projects: the usage row of the project id TOTAL, which is above all roots.

    subtree of the total = the sum of subtree over the usage rows of all roots

From the moment at which this row exists, it is in every path that is read (path_state.py): it is charged last, like any
other row. Its limit is a row of project_limits.

To set a total limit takes two transactions. The first inserts the row. Both ``count``: lock the rows of all roots and
of the total, set the total to the sum of the roots, and renew all their generations, so that a charge with a path that
was read before, without the total, matches no row. The first transaction does not see a root that is inserted at the
same moment, and whose path was read without the total. The second one does: a root that it does not see was inserted
after the first, so that its path has the total, and its charges wait for the total's row. So the sum is exact. After a
crash between the two transactions there is no limit yet, and the same call sets it; heal corrects the sum.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import limits, path_state, usage_locks, usages
from cyborg_quota.db.models import project_limits, quota_usages
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.types import TOTAL, Counters, TotalLimit, UsageKey

_usage = quota_usages.c
_limit = project_limits.c
_IS_TOTAL: Final = _usage.project_id == sa.literal_column(f"'{TOTAL}'")


def _of_roots(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The query for the usage rows of roots that count whole resources, and of the totals."""
    source = sa.outerjoin(quota_usages, projects_table, projects_table.c.project_id == _usage.project_id)
    query = sa.select(*columns).select_from(source)
    return query.where(usages.COUNTS_WHOLE, projects_table.c.parent_id.is_(None))


def make_row(connection: sa.Connection, resource: str) -> None:
    """Insert the row of a total, if there is none. The transaction must be serialized with changes of the tree."""
    path_state.make_row(connection, UsageKey(TOTAL, resource))


def have_rows(connection: sa.Connection, resources: Collection[str]) -> bool:
    """Whether the rows of these totals exist."""
    query = sa.select(_usage.resource).where(_IS_TOTAL)
    return set(resources) <= set(connection.execute(query).scalars())


def count(connection: sa.Connection, resources: Collection[str]) -> None:
    """Set these totals, whose rows exist, to what all projects hold.

    The transaction must be serialized with changes of the tree. Charges of these resources wait until it ends.
    """
    of_resources = _usage.resource.in_(sorted(resources))
    found = connection.execute(_of_roots(_usage.id, _usage.project_id, _usage.resource).where(of_resources))
    rows = {UsageKey(row.project_id, row.resource): row.id for row in found}
    if not rows:
        return
    usage_locks.lock(connection, usage_locks.in_lock_order(connection, rows, {}))
    usages.bump_generations_of_rows(connection, list(rows.values()))
    # (The rows are locked: this also sums what roots hold that were inserted after the first statement.)
    sums = _of_roots(_usage.resource, sa.func.sum(_usage.subtree)).where(of_resources, ~_IS_TOTAL)
    held = {resource: int(subtree) for resource, subtree in connection.execute(sums.group_by(_usage.resource))}
    for resource in resources:
        usages.set_counters(connection, rows[UsageKey(TOTAL, resource)], Counters(subtree=held.get(resource, 0)))


def restore(connection: sa.Connection, resource: str) -> tuple[Counters, Counters]:
    """Make the row of a total if there is none, and set it to what all projects hold. See ``count``.

    Returns the counters before and after.
    """
    key = UsageKey(TOTAL, resource)
    before = usages.read(connection, [TOTAL], [key.resource_key]).get(key, Counters())
    make_row(connection, resource)
    count(connection, [resource])
    return before, usages.read(connection, [TOTAL], [key.resource_key])[key]


def read_limits(connection: sa.Connection) -> list[TotalLimit]:
    """All total limits, by resource, with what all projects hold."""
    query = sa.select(_limit.resource, _limit.hard_limit).where(_limit.project_id == TOTAL)
    limits_set = dict(connection.execute(query.order_by(_limit.resource)).tuples().all())
    held = {key.resource: counters.subtree for key, counters in usages.read(connection, [TOTAL]).items()}
    return [TotalLimit(resource, limit, held.get(resource, 0)) for resource, limit in limits_set.items()]


def delete(connection: sa.Connection, resource: str) -> None:
    """Remove a total: its limit and its row. A charge that has read the row matches none, and reads the path again."""
    limits.set_limit(connection, UsageKey(TOTAL, resource), None)
    connection.execute(sa.delete(quota_usages).where(_IS_TOTAL, _usage.resource == resource))
