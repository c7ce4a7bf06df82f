# SPDX-License-Identifier: Apache-2.0
"""The total of a resource over all projects: the usage row of the project id TOTAL, which is above all roots.

    subtree of the total = the sum of subtree over the usage rows of all roots

From the moment at which this row exists, it is in every path that is read (path_state.py): it is charged last, like any
other row. Its limit is a row of project_limits.

To set a total limit takes three steps (limits/changes.py):

1. Insert the row, in a transaction of its own.
2. Renew the generations of the rows of all roots, in batches: a charge with a path that was read before step 1, without
   the total, then matches no row. (A root that the batches do not see was inserted after step 1, and its path was read
   with the total.) From now on, each charge of the resource writes the row of the total.
3. In one transaction: lock the row of the total, set it to the sum of the roots, and write the limit. The lock makes
   the sum exact: a charge that has changed a root is committed, or waits for the total.

After a crash before step 3 there is no limit, and the same call begins again.
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
    rows = {key: row_id for key, row_id in read_rows(connection).items() if key.resource in resources}
    usage_locks.renew_rows(connection, rows, {})
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
