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

import sqlalchemy as sa

from cyborg_quota.db import path_state, usage_locks, usages
from cyborg_quota.types import TOTAL, Counters, UsageKey


def read_rows(connection: sa.Connection) -> dict[UsageKey, int]:
    """The ids of the rows of all totals."""
    return usages.row_ids(connection, [TOTAL])


def make_row(connection: sa.Connection, resource: str) -> None:
    """Insert the row of a total, if there is none. The transaction must be serialized with changes of the tree."""
    path_state.make_row(connection, UsageKey(TOTAL, resource))


def count(connection: sa.Connection, resources: Collection[str]) -> None:
    """Set these totals, whose rows exist, to what all projects hold.

    The transaction must be serialized with changes of the tree. Charges of these resources wait until it ends.
    """
    if not resources:
        return
    rows = path_state.rows_of_roots(connection, resources)
    rows |= {key: row_id for key, row_id in read_rows(connection).items() if key.resource in resources}
    usage_locks.lock(connection, usage_locks.in_lock_order(connection, rows, {}))
    usages.bump_generations_of_rows(connection, list(rows.values()))
    # (The rows are locked: this also sums what roots hold that were inserted after the first statement.)
    held = path_state.sums_of_roots(connection, resources)
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
