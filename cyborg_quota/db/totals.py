# SPDX-License-Identifier: Apache-2.0
"""The total of a resource over all projects: a usage row above the roots, and its limit in limit_totals.

The row of a total has the project id TOTAL. ``counted_in_total`` is 1 in the usage row of each root whose subtree it
counts:

    subtree of the total = the sum of subtree over the rows with counted_in_total = 1

In the row of the total itself, ``counted_in_total`` is 1 while it is open: roots are to be counted. It is NULL while it
is being removed. To count a root, or to count it no longer, changes the generation of its row, as a move does (rule 1
in projects.py), and to open or close a total changes that of the total's row. A charge that has read the path before
therefore matches no row, and reads the path again.

Every reader of a path sees the row of the total in the same statement (path_state.py). If it is open and does not count
the root, a reserve counts the root before it charges. A root that was inserted by a transaction that did not see the
total is thus counted by the scan that follows the opening, or by the first reserve that sees the total.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, path_state, recounts, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import limit_totals
from cyborg_quota.db.prepared import ListStatement
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.types import TOTAL, ResourceKey, TotalLimit, UsageKey

_limit = limit_totals.c
_SUBTREES: Final = ListStatement(usages.subtrees_query)


# --- The rows ---


def open_row(connection: sa.Connection, resource: str) -> None:
    """Insert the row of a total, or open it again. The transaction must be serialized with changes of the tree."""
    path_state.make_row(connection, UsageKey(TOTAL, resource))
    usages.set_open(connection, resource, is_open=True)


def close_row(connection: sa.Connection, resource: str) -> None:
    """Close a total: no root is counted any more. Does nothing if it is closed, or has no row."""
    usages.set_open(connection, resource, is_open=False)


def count_root(connection: sa.Connection, path: ProjectPath, keys: Collection[ResourceKey]) -> None:
    """Count the root of ``path`` in the open totals of these resources. path_state.make_rows must have run before."""
    if uncounted := path.uncounted(keys):
        roots = [(path.nodes(key) or ())[-1] for key in uncounted]
        set_counted(connection, roots, {key.resource: path.totals[key].node for key in uncounted}, is_counted=True)


def set_counted(
    connection: sa.Connection, roots: Iterable[usages.Node], totals: Mapping[str, usages.Node], *, is_counted: bool
) -> None:
    """Count these roots in the totals of their resources, or count them no longer.

    ``totals`` must have been read in this transaction. It must exclude moves of the roots. Raises ConcurrentChange if a
    row has changed since it was read.
    """
    roots = list(roots)
    by_id = dialects.of(connection).locks_by_id
    for node in sorted([*roots, *totals.values()], key=lambda one: one.usage_id if by_id else one.lock_order):
        if node.project_id == TOTAL:
            is_unchanged = usages.lock_usage_row(connection, node)
        else:
            is_unchanged = usages.set_counted(connection, node, is_counted=is_counted)
        if not is_unchanged:
            raise ConcurrentChange
    # The rows are locked: this reads what the transactions that held them have committed.
    ids = sorted(root.usage_id for root in roots)
    subtrees = {row.id: row.subtree for row in _SUBTREES.rows(connection, ids, {})}
    for resource, total in totals.items():
        held = sum(subtrees[root.usage_id] for root in roots if root.resource == resource)
        # Also if nothing is held: Galera certifies the change of the row against a concurrent close, but no lock.
        if not usages.charge(connection, usages.Change(total, subtree=held if is_counted else -held)):
            recounts.recount(connection, total)  # it has drifted, and would be negative


# --- The limits ---


def read_limits(connection: sa.Connection) -> list[TotalLimit]:
    """All total limits, by resource, with what is counted so far."""
    query = sa.select(_limit.resource, _limit.hard_limit, _limit.is_enforced).order_by(_limit.resource)
    rows = connection.execute(query).all()
    held = {key.resource: counters.subtree for key, counters in usages.read(connection, [TOTAL]).items()}
    return [TotalLimit(row.resource, row.hard_limit, held.get(row.resource, 0), bool(row.is_enforced)) for row in rows]


def set_limit(connection: sa.Connection, resource: str, limit: int) -> None:
    """Set a total limit. A new one is not enforced yet."""
    values = {"hard_limit": limit, "updated_at": clock.utc_now()}
    if not connection.execute(sa.update(limit_totals).where(_limit.resource == resource).values(values)).rowcount:
        new = {"resource": resource, "hard_limit": limit, "is_enforced": 0, "created_at": clock.utc_now()}
        connection.execute(sa.insert(limit_totals).values(new))


def enforce(connection: sa.Connection, resource: str) -> bool:
    """Begin to enforce a total limit. False: it was removed."""
    values = {"is_enforced": 1, "updated_at": clock.utc_now()}
    return connection.execute(sa.update(limit_totals).where(_limit.resource == resource).values(values)).rowcount == 1


def delete_limit(connection: sa.Connection, resource: str) -> None:
    """Remove a total limit."""
    connection.execute(sa.delete(limit_totals).where(_limit.resource == resource))
