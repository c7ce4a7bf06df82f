# SPDX-License-Identifier: Apache-2.0
"""A whole document of limits and projects put into effect: all of it in one transaction, or nothing.

It is not split into batches: between two of them, charges would be checked against a tree that is neither the old one
nor the new one (see decision record 0028). What bounds the time for which charges wait is MOST_MOVED_ROWS.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import limits as tables
from cyborg_quota.db import moves, projects
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.limits import document
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import LimitChange

MOST_MOVED_ROWS: Final = 100_000
"""Usage rows of the projects that one import moves: charges of these projects wait while they are locked."""

_MAX_ATTEMPTS: Final = 20


def run(database: Database, limits: DatabaseLimitDriver, wanted: Document, *, dry_run: bool) -> list[LimitChange]:
    """Make everything as ``wanted`` says; returns what that changed. ``dry_run``: what it would change.

    Raises LimitRefused with every problem.
    """

    def work(connection: Connection) -> list[LimitChange]:
        if not dry_run:
            tables.serialize_tree_changes(connection)
        before = LimitTree(*tables.read_book(connection), limits.starts, projects.marked_edges(connection))
        after, changes = document.apply(before, wanted)
        found = problems(limits, after, changes) + _too_many(connection, changes)
        if found:
            raise exceptions.LimitRefused(found, changes)
        if not dry_run:
            _write(connection, before, after, changes)
        return changes

    began = time.monotonic()
    for _ in range(_MAX_ATTEMPTS):
        try:
            return database.read(work) if dry_run else database.write(work)
        except DuplicateEntry:
            continue  # a project that was to be added has just been charged for the first time, and is known now
    raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)


def _too_many(connection: Connection, changes: Iterable[LimitChange]) -> list[str]:
    moved = {str(change.project_id) for change in changes if change.action == "move project"}
    rows = moves.count_rows(connection, moved)
    if rows <= MOST_MOVED_ROWS:
        return []
    return [
        f"the {len(moved)} projects that would be moved have {rows} usage rows, and one import may move "
        f"{MOST_MOVED_ROWS}; import the tree in several files"
    ]


def _write(connection: Connection, before: LimitTree, after: LimitTree, changes: Iterable[LimitChange]) -> None:
    added, moved, overrides = {}, {}, {}
    for change in changes:
        if change.action == "add project":
            added[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.action == "move project":
            moved[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.project_id is None:
            tables.set_default(connection, str(change.resource), after.defaults.get(str(change.resource)))
        else:
            key = (change.project_id, str(change.resource))
            overrides[key] = after.overrides.get(key)
    # The usage rows are locked last: what is written before them keeps no charge waiting.
    tables.set_overrides(connection, overrides, before.overrides)
    moves.place_all(connection, added, moved)


def problems(limits: DatabaseLimitDriver, after: LimitTree, changes: Iterable[LimitChange]) -> list[str]:
    """What stands against a book, at all that was changed; once each."""
    placed = {change.project_id for change in changes if change.resource is None and change.project_id is not None}
    found = _too_deep(after, placed, limits.max_depth)
    near = placed | {child for one in placed for child in after.children_of.get(one, ())}
    found += limits.policy.problems(after, near, after.resources)
    limited: dict[str, set[str]] = {}
    for change in changes:
        if change.resource is not None:
            whose = after.projects if change.project_id is None else [change.project_id]
            limited.setdefault(change.resource, set()).update(whose)
    for resource, project_ids in sorted(limited.items()):
        found += limits.policy.problems(after, project_ids, [resource])
    return list(dict.fromkeys(found))


def _too_deep(after: LimitTree, placed: set[str], most: int) -> list[str]:
    if not placed:
        return []
    problems = []
    for project_id in after.projects:
        path = after.path(project_id)
        if len(path) == most + 1 and not placed.isdisjoint(path):
            problems.append(f"project {project_id} would lie at level {most + 1}; [limits] max_depth is {most}")
    return problems
