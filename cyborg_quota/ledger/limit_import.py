# SPDX-License-Identifier: Apache-2.0
"""Applies a document of limits and projects in one transaction.

It is not split into batches: between two batches, charges would be checked against a tree that is neither the old nor
the new one (see decision record 0028). MOST_MOVED_ROWS limits the time for which charges wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import limit_history, moves, projects
from cyborg_quota.db import limits as tables
from cyborg_quota.db import overrides as override_tables
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.ledger import overrides
from cyborg_quota.limits import document, timeline
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import Author, LimitChange, LimitOverride, RecordedChanges

MOST_MOVED_ROWS: Final = 100_000
"""The maximum number of usage rows that one import moves. Charges of these projects wait while they are locked."""

_MAX_ATTEMPTS: Final = 20


def run(
    database: Database, limits: DatabaseLimitDriver, wanted: Document, author: Author, *, dry_run: bool
) -> tuple[list[LimitChange], RecordedChanges | None]:
    """Make limits and projects equal to ``wanted``. Returns the changes, and the recorded ones.

    ``dry_run``: write nothing.

    Raises LimitRefused with all problems, DatabaseUnavailable.
    """

    def work(connection: Connection) -> tuple[list[LimitChange], RecordedChanges | None]:
        if not dry_run:
            tables.serialize_tree_changes(connection)
        before = LimitTree(*tables.read_book(connection), limits.starts, projects.marked_edges(connection))
        after, changes = document.apply(before, wanted)
        live, now = override_tables.read(connection)
        new: list[LimitOverride] = []
        if wanted.new_overrides:
            now = override_tables.now(connection)
            generation = limit_history.generation(connection)
            new = overrides.made_by_import(wanted.new_overrides, live, now, (generation, len(changes)))
            changes += [overrides.made(one) for one in new]
        reasons = problems(limits, Timeline(after, [*live, *new], now), changes) + _too_many(connection, changes)
        if reasons:
            raise exceptions.LimitRefused(reasons, changes)
        if dry_run:
            return changes, None
        # Before the moves, which lock usage rows.
        recorded = limit_history.record(connection, author, changes, operation="import")
        override_tables.insert(connection, new)
        _write(connection, before, after, changes)
        return changes, recorded

    began = time.monotonic()
    for _ in range(_MAX_ATTEMPTS):
        try:
            return database.read(work) if dry_run else database.write(work)
        except DuplicateEntry:
            continue  # a project to be added was charged for the first time meanwhile, which added it
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
    added, moved, changed = {}, {}, {}
    for change in changes:
        if change.action == "add project":
            added[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.action == "move project":
            moved[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.override is not None:
            continue
        elif change.project_id is None:
            tables.set_default(connection, str(change.resource), after.defaults.get(str(change.resource)))
        else:
            key = (change.project_id, str(change.resource))
            changed[key] = after.overrides.get(key)
    # Lock the usage rows last, so that charges do not wait for the writes before.
    tables.set_overrides(connection, changed, before.overrides)
    moves.place_all(connection, added, moved)


def problems(limits: DatabaseLimitDriver, after: Timeline, changes: Iterable[LimitChange]) -> list[str]:
    """The violations of the enforcement model and of max_depth by these changes, now or in the future; each once."""
    tree = after.tree
    placed = {change.project_id for change in changes if change.resource is None and change.project_id is not None}
    reasons = _too_deep(tree, placed, limits.max_depth)
    affected = placed | {child for project_id in placed for child in tree.children_of.get(project_id, ())}
    reasons += timeline.problems(limits.policy, after, affected, after.resources)
    limited: dict[str, set[str]] = {}
    for change in changes:
        if change.resource is not None:
            project_ids = tree.projects if change.project_id is None else [change.project_id]
            limited.setdefault(change.resource, set()).update(project_ids)
    for resource, limited_ids in sorted(limited.items()):
        reasons += timeline.problems(limits.policy, after, limited_ids, [resource])
    return list(dict.fromkeys(reasons))


def _too_deep(after: LimitTree, placed: set[str], max_depth: int) -> list[str]:
    if not placed:
        return []
    problems = []
    for project_id in after.projects:
        path = after.path(project_id)
        if len(path) == max_depth + 1 and not placed.isdisjoint(path):
            problems.append(
                f"project {project_id} would lie at level {max_depth + 1}; [limits] max_depth is {max_depth}"
            )
    return problems
