# SPDX-License-Identifier: Apache-2.0
"""Changes limits: serialize all such changes, read the limit tree, change the copy, check the enforcement model, write.

Such changes are rare and run one at a time. Thus two administrators who set limits of two siblings at the same time
cannot exceed the limit of their parent.

An import (a document of limits and projects) is one transaction. It is not split into batches: between two batches,
charges would be checked against a tree that is neither the old nor the new one (see decision record 0028).
MOST_MOVED_ROWS limits the time for which charges wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db import limits as tables
from cyborg_quota.db import moves, path_state, projects, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger.project_tree import Tree
from cyborg_quota.limits import document
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import Counters, LimitChange

Key = TypeVar("Key")

MOST_MOVED_ROWS: Final = 100_000
"""The maximum number of usage rows that one import moves. Charges of these projects wait while they are locked."""

BATCH_PROJECTS: Final = 500
"""The number of edges that one transaction of OriginClearing changes."""

_MAX_ATTEMPTS: Final = 20


class LimitKeeper:
    """Sets limits, and adds and moves projects, as the enforcement model allows."""

    def __init__(self, database: Database, tree: Tree, limits: DatabaseLimitDriver) -> None:
        self._database = database
        self._tree = tree
        self._limits = limits

    def tree(self) -> LimitTree:
        """All limits and projects, read in one transaction."""
        return self._database.read(self._read)

    def path(self, project_id: str) -> tuple[PathState, LimitTree]:
        """The usage and edges of a project and its ancestors, read in one transaction; and their limits."""
        state = self._database.read(lambda connection: path_state.read(connection, project_id, self._limits.origin))
        return state, self._limits.tree_of_path(state)

    def counters(self) -> dict[tuple[str, str], Counters]:
        """The counters of all usage rows, by (project_id, resource)."""
        return self._database.read(usages.read)

    def set_defaults(self, limits: Mapping[str, int | None]) -> None:
        """Set the defaults of these resources, all or none. None removes a default. Raises LimitRefused."""

        def work(connection: Connection) -> None:
            tables.serialize_tree_changes(connection)
            tree = self._read(connection)
            for resource, limit in sorted(limits.items()):
                _set_or_remove(tree.defaults, resource, limit)
                tables.set_default(connection, resource, limit)
            self._refuse(tree, tree.projects, list(limits))

        self._database.write(work)

    def set_limits(
        self, project_id: str, limits: Mapping[str, int | None], allow: Callable[[str | None], None]
    ) -> None:
        """Set limits of a project, all or none. None removes a limit. Raises LimitRefused, DatabaseUnavailable.

        ``allow`` is called with the parent of the project, and raises if the caller may not set these limits. It may
        read files; therefore it runs before the transaction, and again if the project has moved by then.
        """

        def work(connection: Connection) -> bool:
            tables.serialize_tree_changes(connection)
            tree = LimitTree(*tables.read_family(connection, project_id), self._limits.initial_limits)
            if tree.parents.get(project_id) != parent_id:
                return False
            for resource, limit in sorted(limits.items()):
                _set_or_remove(tree.overrides, (project_id, resource), limit)
                tables.set_override(connection, project_id, resource, limit)
            self._refuse(tree, [project_id], list(limits))
            return True

        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            parent_id = self._database.read(lambda connection: projects.parent_of(connection, project_id))
            allow(parent_id)
            if self._database.write(work):
                return
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def set_parent(self, project_id: str, parent_id: str | None, *, is_new: bool) -> None:
        """Add a project to the tree (``is_new``), or move it. Raises ProjectRefused, LimitRefused."""

        def check(connection: Connection) -> None:
            tree = self._read(connection)
            if parent_id is not None and parent_id not in tree.parents:
                raise exceptions.ProjectRefused(parent_id, "is not known; add it first")
            if is_new and tree.parents.get(project_id) is not None:
                raise exceptions.ProjectRefused(project_id, f"is already in the tree, below {tree.parents[project_id]}")
            if not is_new and project_id not in tree.parents:
                raise exceptions.ProjectRefused(project_id, "is not known; add it first")
            tree.set_parent(project_id, parent_id)
            self.check_depth(tree, project_id)
            self._refuse(tree, [project_id, *tree.children_of.get(project_id, ())], tree.resources)

        self._tree.set_parent(project_id, parent_id, check)

    def remove(self, project_id: str) -> None:
        """Remove a project that holds no resources and has no children. Raises ProjectRefused."""
        self._tree.remove(project_id)

    def apply(self, wanted: Document, *, dry_run: bool) -> list[LimitChange]:
        """Apply a document of limits and projects. ``dry_run``: only return the changes. Raises LimitRefused."""
        changes = import_document(self._database, self._limits, wanted, dry_run=dry_run)
        self._tree.forget_paths()
        return changes

    def check_depth(self, tree: LimitTree, project_id: str) -> None:
        """Raise ProjectRefused if the tree would be deeper than [limits] max_depth."""
        levels = len(tree.path(project_id)) - 1 + tree.height(project_id)
        if levels > self._limits.max_depth:
            raise exceptions.ProjectRefused(
                project_id, f"would make a tree of {levels} levels; [limits] max_depth is {self._limits.max_depth}"
            )

    def _refuse(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> None:
        problems = self._limits.model.problems(tree, projects, resources)
        if problems:
            raise exceptions.LimitRefused(problems)

    def _read(self, connection: Connection) -> LimitTree:
        return LimitTree(*tables.read_book(connection), self._limits.initial_limits)


def _set_or_remove(limits: dict[Key, int], key: Key, limit: int | None) -> None:
    if limit is None:
        limits.pop(key, None)
    else:
        limits[key] = limit


def import_document(
    database: Database, limits: DatabaseLimitDriver, wanted: Document, *, dry_run: bool
) -> list[LimitChange]:
    """Make limits and projects equal to ``wanted``. Returns the changes. ``dry_run``: write nothing.

    Raises LimitRefused with all problems, DatabaseUnavailable.
    """

    def work(connection: Connection) -> list[LimitChange]:
        if not dry_run:
            tables.serialize_tree_changes(connection)
        before = LimitTree(*tables.read_book(connection), limits.initial_limits, projects.marked_edges(connection))
        after, changes = document.apply(before, wanted)
        reasons = find_problems(limits, after, changes) + _too_many(connection, changes)
        if reasons:
            raise exceptions.LimitRefused(reasons, changes)
        if not dry_run:
            _write(connection, before, after, changes)
        return changes

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
    # Lock the usage rows last, so that charges do not wait for the writes before.
    tables.set_overrides(connection, overrides, before.overrides)
    moves.place_all(connection, added, moved)


def find_problems(limits: DatabaseLimitDriver, after: LimitTree, changes: Iterable[LimitChange]) -> list[str]:
    """The violations of the enforcement model and of max_depth by these changes; each once."""
    placed = {change.project_id for change in changes if change.resource is None and change.project_id is not None}
    reasons = _too_deep(after, placed, limits.max_depth)
    affected = placed | {child for project_id in placed for child in after.children_of.get(project_id, ())}
    reasons += limits.model.problems(after, affected, after.resources)
    limited: dict[str, set[str]] = {}
    for change in changes:
        if change.resource is not None:
            project_ids = after.projects if change.project_id is None else [change.project_id]
            limited.setdefault(change.resource, set()).update(project_ids)
    for resource, limited_ids in sorted(limited.items()):
        reasons += limits.model.problems(after, limited_ids, [resource])
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


class OriginClearing:
    """Clears the origin of edges of the project tree: makes their projects roots, or gives the edges to the operator.

    It runs in batches of BATCH_PROJECTS, each in its own transaction: a charge of one of these projects waits for one
    batch at most, and an interrupted run can be continued. Making projects roots does not change the limits, because an
    ignored edge has no effect. With ``keep``, the limits of each project change when its batch is committed.
    """

    def __init__(self, database: Database, limits: LimitDriver, origin: str, *, keep: bool) -> None:
        self._database = database
        self._limits = limits
        self._origin = origin
        self._keep = keep

    def find(self) -> list[tuple[str, str]]:
        """The edges that ``run`` would change: (project_id, parent_id). Raises LimitRefused if ``run`` would."""

        def work(connection: Connection) -> dict[str, str]:
            edges = projects.marked_edges(connection, self._origin)
            self._refuse(connection, edges)
            return edges

        return sorted(self._database.read(work).items())

    def run(self, progress: Callable[[int], None]) -> list[tuple[str, str]]:
        """Change all edges and return them.

        Raises LimitRefused: before the first write, or in a later batch if limits or projects change during the run.
        """
        if self._keep:
            self.find()
        changed: dict[str, str] = {}
        while batch := self._database.write(self._batch):
            changed.update(batch)
            progress(len(batch))
        return sorted(changed.items())

    def _batch(self, connection: Connection) -> dict[str, str]:
        tables.serialize_tree_changes(connection)
        edges = projects.marked_edges(connection, self._origin, BATCH_PROJECTS)
        self._refuse(connection, edges)
        moves.place_all(connection, {}, edges if self._keep else dict.fromkeys(edges))
        return edges

    def _refuse(self, connection: Connection, edges: Mapping[str, str]) -> None:
        """Raise LimitRefused if the enforcement model does not allow these edges to take effect (``keep`` only)."""
        if not self._keep or not isinstance(self._limits, DatabaseLimitDriver):
            return
        limit_tree = LimitTree(*tables.read_book(connection), self._limits.initial_limits)
        for project_id, parent_id in edges.items():
            limit_tree.set_parent(project_id, parent_id)
        changes = [
            LimitChange("move project", project_id, None, parent_id, parent_id)
            for project_id, parent_id in edges.items()
        ]
        problems = find_problems(self._limits, limit_tree, changes)
        if problems:
            raise exceptions.LimitRefused(problems, changes)
