# SPDX-License-Identifier: Apache-2.0
"""Add and move projects, with their usage, in one transaction.

The cost depends on the projects, and on their old and new ancestors; not on the size of the tree: a reserve moves a
project if Keystone has another parent. The rules are those of projects.py. The transaction has two parts:

1.  Lock the rows of ``projects``, sorted by id, and change them; insert the missing usage rows of the new ancestors.
    Charges continue: they lock no row of ``projects``, except to insert the first usage row of a resource.
2.  Lock the usage rows of the moved projects, and of the old and new ancestors whose totals change, in the lock order
    of charges; then read and change their counters, and commit. Charges of these projects wait meanwhile. Therefore
    everything possible is computed before this part, and it consists of few statements: each locks or changes
    ROWS_PER_STATEMENT rows (prepared.py).

What a moved project passes on to the rows above it, without that of descendants that are moved too, is subtracted from
all its old ancestors, and added to all its new ones. The totals over all projects (db/charges.py) stay, unless a
minimum (db/minimums.py) makes a row pass on more than it holds. A row that would be negative has drifted, and is
recounted, as at a release.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import charges, minimums, projects, reservations, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.projects import Edges, ancestors
from cyborg_quota.types import MAX_COUNTED, TOTAL, UsageKey

Refuse = Callable[[sa.Connection, minimums.Growth], None]
"""Raises LimitRefused if one of these rows would exceed its limit after a move of projects with minimums."""


def set_parents(connection: sa.Connection, added: Edges, moved: Edges, refuse: Refuse | None = None) -> None:
    """Insert the projects ``added``, and move the existing projects ``moved``, below their parents (None: roots).

    The transaction must already be serialized with other tree changes (see limits.py). Raises DBDuplicateEntry if an
    added project was inserted concurrently, ConcurrentChange if an edge changed concurrently, and
    ProjectRefused if a project would be its own ancestor.
    """
    projects.insert(connection, added)
    # (A project that was removed keeps the rows of what it has used: if it is added again, they move from a root.)
    below = [name for name, parent_id in added.items() if parent_id is not None]
    returned = {key.project_id for key in usages.row_ids(connection, below)}
    moved = {**moved, **{name: added[name] for name in returned}}
    placed = {**added, **moved}
    above = set(moved).union(parent_id for parent_id in placed.values() if parent_id is not None)
    stored = projects.edges_above(connection, above)
    before = {**stored, **dict.fromkeys(returned)}
    after = {**before, **placed}
    for project_id in placed:
        if project_id in ancestors(project_id, after):
            raise exceptions.ProjectRefused(project_id, "cannot lie below itself")
    if not moved:
        return
    new_ancestors = {project_id: ancestors(project_id, after) for project_id in moved}
    old_ancestors = {project_id: ancestors(project_id, before) for project_id in moved}
    touched = set(moved).union(*new_ancestors.values(), *old_ancestors.values())
    projects.lock_many(connection, set(moved).union(*new_ancestors.values()) - set(added))
    now = projects.edges_above(connection, above)
    if any(now.get(project_id) != stored.get(project_id) for project_id in touched):
        raise ConcurrentChange
    present = usages.row_ids(connection, touched)
    # (The rows that are inserted below are zero, so their usage need not move.)
    moving = [key for key in present if key.project_id in moved]
    # Rule 3 requires these rows at the new ancestors. (Rule 2 excludes concurrent inserts.)
    needed = {key._replace(project_id=name) for key in moving for name in new_ancestors[key.project_id]}
    missing = sorted(needed - set(present))
    usages.insert_zeros(connection, missing)
    rows = {**present, **usages.row_ids(connection, {key.project_id for key in missing})}
    projects.set_parents(connection, moved)
    keeping = usages.keeping(connection, touched, {key.resource for key in moving})
    with_minimum = {key.resource_key for key, counters in keeping.items() if counters.minimum}
    changing = set(moving)
    rows.update(usages.row_ids(connection, [TOTAL]))
    for key in moving:
        # (The rows of both parents change, also if one is above the other: see charges.moved.)
        edges = (before.get(key.project_id), after.get(key.project_id))
        changing |= {key._replace(project_id=parent_id or TOTAL) for parent_id in edges}
        old, new = (
            {key._replace(project_id=name) for name in (*above[key.project_id], TOTAL)}
            for above in (old_ancestors, new_ancestors)
        )
        # A row on both paths counts as much as before, unless a row below it has a minimum.
        changing |= old | new if key.resource_key in with_minimum else old ^ new
    # (These rows exist, unless one was deleted by hand; heal recreates it.)
    changed = {key: rows[key] for key in changing if key in rows}
    _move_usage(connection, changed, moving, (before, after), refuse)


def _move_usage(
    connection: sa.Connection,
    rows: Mapping[UsageKey, int],
    moving: Collection[UsageKey],
    trees: tuple[Edges, Edges],
    refuse: Refuse | None,
) -> None:
    """Move what the rows ``moving`` count from the rows above them to others. Charges of these projects wait.

    ``rows``: the ids of all rows that change. ``trees``: the edges before and after.
    """
    locked = charges.lock(connection, charges.in_lock_order(connection, rows, trees[0]))
    at = reservations.time_of(connection)  # (after the wait for the locks: not before what was reserved meanwhile)
    now = {key: locked[row_id] for key, row_id in rows.items() if row_id in locked}
    then = charges.moved(now, moving, *trees, at)
    for key, row in then.items():
        if (growth := row.counted - now[key].counted) > 0 and row.counted > MAX_COUNTED:
            # (The error names a project that moves: the caller of a charge may not know those above it, I8.)
            movers = sorted(one.project_id for one in moving if one.resource_key == key.resource_key)
            below = [name for name in movers if key.project_id in (name, TOTAL, *ancestors(name, trees[1]))]
            raise exceptions.MeterOverflow((below or movers)[0], key.resource, growth)
    growing = minimums.growth_of_move(now, then, moving)
    if refuse is not None and growing:
        refuse(connection, growing)
    drifted = charges.write_moved(connection, rows, now, then, at)
    usages.renew_generations(connection, [rows[key] for key in moving])
    charges.recount_upwards(connection, drifted)
