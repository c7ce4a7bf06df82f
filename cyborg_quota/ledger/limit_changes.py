# SPDX-License-Identifier: Apache-2.0
"""Changes limits: serialize all such changes, read the limit tree, change the copy, check the enforcement model, write.

Such changes are rare and run one at a time. Thus two administrators who set limits of two siblings at the same time
cannot exceed the limit of their parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db import limit_history, overrides, path_state, projects, usages
from cyborg_quota.db import limits as tables
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger import limit_import
from cyborg_quota.ledger.limit_history import LimitHistory
from cyborg_quota.ledger.overrides import Overrides
from cyborg_quota.ledger.project_tree import Tree
from cyborg_quota.limits import timeline
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import Author, Counters, LimitChange, LimitOverride, RecordedChanges

Key = TypeVar("Key")

_MAX_ATTEMPTS: Final = 20


class LimitKeeper:
    """Sets limits, and adds and moves projects, as the enforcement model allows."""

    def __init__(self, database: Database, tree: Tree, limits: DatabaseLimitDriver, history: LimitHistory) -> None:
        self._database = database
        self._tree = tree
        self._limits = limits
        self._history = history

    def tree(self) -> LimitTree:
        """All limits and projects, read in one transaction."""
        return self._database.read(self._read)

    def tree_now(self) -> LimitTree:
        """Like ``tree``, with the overrides that apply at this moment in place of the limits."""

        def work(connection: Connection) -> LimitTree:
            tree = self._read(connection)
            tree.overrides.update(overrides.active(connection))
            return tree

        return self._database.read(work)

    def documented(self) -> tuple[LimitTree, list[LimitOverride]]:
        """All limits and projects, and the overrides that have not ended; for an export."""
        return self._database.read(lambda connection: (self._read(connection), overrides.read(connection)[0]))

    @property
    def overrides(self) -> Overrides:
        """Sets, lists and cancels overrides."""
        return Overrides(self._database, self._limits, self._history)

    def path(self, project_id: str) -> tuple[PathState, LimitTree]:
        """The usage and edges of a project and its ancestors, read in one transaction; and their limits."""
        state = self._database.read(lambda connection: path_state.read(connection, project_id, self._limits.origin))
        return state, self._limits.book_of_path(state)

    def figures(self) -> dict[tuple[str, str], Counters]:
        """The counters of all usage rows, by (project_id, resource)."""
        return self._database.read(usages.read)

    def set_defaults(self, limits: Mapping[str, int | None], author: Author) -> None:
        """Set the defaults of these resources, all or none. None removes a default. Raises LimitRefused."""

        def work(connection: Connection) -> RecordedChanges | None:
            tables.serialize_tree_changes(connection)
            tree = self._read(connection)
            live = overrides.read(connection)
            changes = []
            for resource, limit in sorted(limits.items()):
                changes += _change(None, resource, tree.defaults.get(resource), limit)
                _set_or_remove(tree.defaults, resource, limit)
                tables.set_default(connection, resource, limit)
            self._refuse(Timeline(tree, *live), tree.projects, list(limits))
            return limit_history.record(connection, author, changes)

        self._history.announce(self._database.write(work))

    def set_limits(
        self, project_id: str, limits: Mapping[str, int | None], author: Author, allow: Callable[[str | None], None]
    ) -> None:
        """Set limits of a project, all or none. None removes a limit. Raises LimitRefused, DatabaseUnavailable.

        ``allow`` is called with the parent of the project, and raises if the caller may not set these limits. It may
        read files; therefore it runs before the transaction, and again if the project has moved by then.
        """

        def work(connection: Connection) -> tuple[bool, RecordedChanges | None]:
            tables.serialize_tree_changes(connection)
            tree = LimitTree(*tables.read_family(connection, project_id), self._limits.starts)
            if tree.parents.get(project_id) != parent_id:
                return False, None
            live = overrides.read(connection, {project_id, *tree.projects})
            changes = []
            for resource, limit in sorted(limits.items()):
                changes += _change(project_id, resource, tree.overrides.get((project_id, resource)), limit)
                _set_or_remove(tree.overrides, (project_id, resource), limit)
                tables.set_override(connection, project_id, resource, limit)
            self._refuse(Timeline(tree, *live), [project_id], list(limits))
            return True, limit_history.record(connection, author, changes)

        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            parent_id = self._database.read(lambda connection: projects.parent_of(connection, project_id))
            allow(parent_id)
            is_done, recorded = self._database.write(work)
            if is_done:
                self._history.announce(recorded)
                return
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def place(self, project_id: str, parent_id: str | None, author: Author, *, is_new: bool) -> None:
        """Add a project to the tree (``is_new``), or move it. Raises ProjectRefused, LimitRefused."""

        def check(connection: Connection) -> None:
            tree = self._read(connection)
            if parent_id is not None and parent_id not in tree.parents:
                raise exceptions.ProjectRefused(parent_id, "is not known; add it first")
            if is_new and tree.parents.get(project_id) is not None:
                raise exceptions.ProjectRefused(project_id, f"is already in the tree, below {tree.parents[project_id]}")
            if not is_new and project_id not in tree.parents:
                raise exceptions.ProjectRefused(project_id, "is not known; add it first")
            tree.place(project_id, parent_id)
            self.check_depth(tree, project_id)
            affected = [project_id, *tree.children_of.get(project_id, ())]
            limits = Timeline(tree, *overrides.read(connection))
            self._refuse(limits, affected, limits.resources)

        self._tree.place(project_id, parent_id, author, check)

    def remove(self, project_id: str, author: Author) -> None:
        """Remove a project that holds no resources and has no children. Raises ProjectRefused."""
        self._tree.remove(project_id, author)

    def apply(self, wanted: Document, author: Author, *, dry_run: bool) -> list[LimitChange]:
        """Apply a document of limits and projects. ``dry_run``: only return the changes. Raises LimitRefused."""
        changes, recorded = limit_import.run(self._database, self._limits, wanted, author, dry_run=dry_run)
        self._tree.forget_paths()
        self._history.announce(recorded)
        return changes

    def check_depth(self, tree: LimitTree, project_id: str) -> None:
        """Raise ProjectRefused if the tree would be deeper than [limits] max_depth."""
        levels = len(tree.path(project_id)) - 1 + tree.height(project_id)
        if levels > self._limits.max_depth:
            raise exceptions.ProjectRefused(
                project_id, f"would make a tree of {levels} levels; [limits] max_depth is {self._limits.max_depth}"
            )

    def _refuse(self, limits: Timeline, projects: Collection[str], resources: Collection[str]) -> None:
        """Raise LimitRefused if the model forbids these limits, now or when an override begins or ends."""
        problems = timeline.problems(self._limits.policy, limits, projects, resources)
        if problems:
            raise exceptions.LimitRefused(problems)

    def _read(self, connection: Connection) -> LimitTree:
        return LimitTree(*tables.read_book(connection), self._limits.starts)


def _change(project_id: str | None, resource: str, before: int | None, after: int | None) -> list[LimitChange]:
    if before == after:
        return []
    return [LimitChange("unset limit" if after is None else "set limit", project_id, resource, before, after)]


def _set_or_remove(limits: dict[Key, int], key: Key, limit: int | None) -> None:
    if limit is None:
        limits.pop(key, None)
    else:
        limits[key] = limit
