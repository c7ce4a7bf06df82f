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

The usage in a moved project's subtree, without that of descendants that are moved too, is subtracted from the totals of
all its old ancestors, and added to those of all its new ones. The totals over all projects (db/charges.py) stay.
A row that would be negative has drifted, and is recounted, as at a release.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import charges, projects, usages
from cyborg_quota.db.charges import Edges, ancestors
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.types import UsageKey


def set_parents(connection: sa.Connection, added: Edges, moved: Edges) -> None:
    """Insert the projects ``added``, and move the existing projects ``moved``, below their parents (None: roots).

    The transaction must already be serialized with other tree changes (see limits.py). Raises DBDuplicateEntry if an
    added project was inserted concurrently, ConcurrentChange if an edge changed concurrently, and
    ProjectRefused if a project would be its own ancestor.
    """
    projects.insert(connection, added)
    placed = {**added, **moved}
    above = set(moved).union(parent_id for parent_id in placed.values() if parent_id is not None)
    before = projects.edges_above(connection, above)
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
    if any(now.get(project_id) != before.get(project_id) for project_id in touched):
        raise ConcurrentChange
    present = usages.row_ids(connection, touched)
    rows = _insert_missing_rows(connection, present, moved, new_ancestors)
    projects.set_parents(connection, moved)
    # (The rows that were just inserted are zero, so their usage need not move.)
    plan = _plan(rows, [key for key in present if key.project_id in moved], old_ancestors, new_ancestors)
    changing = {part.usage_id for part in plan}.union(*([*part.leaves, *part.enters] for part in plan))
    changed = {key: usage_id for key, usage_id in rows.items() if usage_id in changing}
    order = charges.in_lock_order(connection, changed, before)
    # From here on, charges of these projects wait.
    subtrees = charges.lock(connection, order)
    amounts = _totals(plan, subtrees)
    drifted = {usage_id for usage_id, amount in amounts.items() if subtrees[usage_id] + amount < 0}
    usages.add_to_subtrees(connection, {key: amount for key, amount in amounts.items() if key not in drifted})
    usages.renew_generations(connection, [part.usage_id for part in plan])
    charges.recount_upwards(connection, [key for key, usage_id in rows.items() if usage_id in drifted])


def _insert_missing_rows(
    connection: sa.Connection, rows: Mapping[UsageKey, int], moved: Collection[str], above: Mapping[str, Sequence[str]]
) -> dict[UsageKey, int]:
    """Insert the usage rows that rule 3 requires at the new ancestors. (Rule 2 excludes concurrent inserts.)"""
    moving = [key for key in rows if key.project_id in moved]
    needed = {key._replace(project_id=ancestor) for key in moving for ancestor in above[key.project_id]}
    missing = sorted(needed - set(rows))
    usages.insert_zeros(connection, missing)
    return {**rows, **usages.row_ids(connection, {key.project_id for key in missing})}


@dataclasses.dataclass(slots=True)
class _Part:
    """A usage row of a moved project, by id, and the ids of the rows from and to whose totals its usage moves.

    ``carrier`` is the row of the nearest old ancestor that is moved too. The usage of this row is subtracted from what
    moves with the carrier, so that it is not counted twice.
    """

    usage_id: int
    carrier: int | None
    leaves: list[int]
    enters: list[int]


def _plan(
    rows: Mapping[UsageKey, int],
    moving: Iterable[UsageKey],
    old_ancestors: Mapping[str, Sequence[str]],
    new_ancestors: Mapping[str, Sequence[str]],
) -> list[_Part]:
    plan = []
    for key in moving:
        project_id = key.project_id
        carrier = next((above for above in old_ancestors[project_id] if above in old_ancestors), None)
        # The total of an ancestor on both paths does not change.
        old, new = set(old_ancestors[project_id]), set(new_ancestors[project_id])
        left = (key._replace(project_id=above) for above in old - new)
        plan.append(
            _Part(
                rows[key],
                None if carrier is None else rows.get(key._replace(project_id=carrier)),
                # (These rows exist, unless one was deleted by hand; heal recreates it.)
                [rows[above] for above in left if above in rows],
                [rows[key._replace(project_id=above)] for above in new - old],
            )
        )
    return plan


def _totals(plan: Sequence[_Part], subtrees: Mapping[int, int]) -> dict[int, int]:
    """The changes of ``subtree`` that the moves cause, by the id of the usage row."""
    amounts = Counter({part.usage_id: subtrees[part.usage_id] for part in plan})
    for part in plan:
        if part.carrier is not None:
            amounts[part.carrier] -= subtrees[part.usage_id]
    changes: Counter[int] = Counter()
    for part in plan:
        amount = amounts[part.usage_id]
        if amount:
            for usage_id in part.leaves:
                changes[usage_id] -= amount
            for usage_id in part.enters:
                changes[usage_id] += amount
    return {usage_id: amount for usage_id, amount in changes.items() if amount}
