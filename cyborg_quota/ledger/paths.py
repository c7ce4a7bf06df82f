# SPDX-License-Identifier: Apache-2.0
"""The project tree: the cached paths from projects to their roots, and the changes of the tree.

A charge with a stale path fails: see db/projects.py, rule 1. A change of the tree is serialized with all other such
changes, checked, and moves the totals of the subtree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, overrides, path_state, projects, totals, usage_locks, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.prepared import chunks
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.ledger.history import History
from cyborg_quota.limits import tables
from cyborg_quota.tree import tables as moves
from cyborg_quota.types import Author, RecordedChange, RecordedChanges, ResourceKey, UsageKey

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_CACHED_PATHS: Final = 20_000
"""The maximum number of cached paths. When it is reached, the cache is cleared."""

_MAX_ATTEMPTS: Final = 20

Check = Callable[[Connection], None]
"""Runs inside the transaction of a change. Raises ProjectRefused or LimitRefused if the change is not allowed."""


def until_stable(attempt: Callable[[], T | None]) -> T:
    """The first result of ``attempt`` that is not None: the tree has not changed. Raises DatabaseUnavailable."""
    began = time.monotonic()
    for _ in range(_MAX_ATTEMPTS):
        try:
            result = attempt()
        except DuplicateEntry:
            continue  # a project to be added was charged for the first time meanwhile, which added it
        if result is not None:
            return result
    raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)


class PathCache:
    """Paths by project. ``get`` creates the usage rows that a path lacks, so that it can be charged."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached_paths: dict[str, ProjectPath] = {}

    def get(self, project_id: str, keys: Collection[ResourceKey], *, is_again: bool = False) -> ProjectPath:
        """The path of ``project_id``, with usage rows for all ``keys``. Raises DatabaseUnavailable.

        ``is_again``: read it again, with what any node of a cluster has committed.
        """
        path = None if is_again else self._cached_paths.get(project_id)
        read = self._database.read_synced if is_again else self._database.read
        began = time.monotonic()
        if path is not None and path.limits is not None and began < path.fresh_until and not path.missing(keys):
            return path
        for _ in range(_MAX_ATTEMPTS):
            path = read(lambda connection: self._read(connection, project_id, keys))
            if not path.missing(keys):
                return path
            self._make(project_id, keys)
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def read(self, connection: Connection, project_id: str, keys: Collection[ResourceKey]) -> ProjectPath:
        """The path from the cache or the database, for use inside a transaction. Usage rows may be missing."""
        known = self._cached_paths.get(project_id)
        return self._read(connection, project_id, keys) if known is None or known.missing(keys) else known

    def _read(self, connection: Connection, project_id: str, keys: Collection[ResourceKey]) -> ProjectPath:
        known = self._cached_paths.get(project_id)
        wanted = set(keys) | (set(known.keys) if known is not None else set())
        path = path_state.read_path(connection, project_id, wanted)
        if len(self._cached_paths) >= _MAX_CACHED_PATHS:
            self._cached_paths.clear()
        self._cached_paths[project_id] = path
        return path

    def read_many(self, connection: Connection, keys: Collection[UsageKey]) -> None:
        """Cache the missing paths of these usage rows: one statement for MAX_PROJECTS projects."""
        missing = [key for key in keys if self.known(key) is None]
        if not missing:
            return
        unknown = sorted({key.project_id for key in missing})
        if len(self._cached_paths) + len(unknown) > _MAX_CACHED_PATHS:
            self._cached_paths.clear()
        # (Looked up once: another thread may forget a path at any time.)
        known = [path for path in map(self._cached_paths.get, unknown) if path is not None]
        counted = {key.resource_key for key in missing}.union(*[path.keys for path in known])
        for names in chunks(unknown, path_state.MAX_PROJECTS):
            self._cached_paths.update(path_state.read_paths(connection, names, counted))

    def known(self, key: UsageKey) -> tuple[usages.Node, ...] | None:
        """The usage rows to charge, from the project to its root; None if they are not cached."""
        path = self._cached_paths.get(key.project_id)
        return None if path is None else path.charged.get(key[1:])  # type: ignore[call-overload]

    def forget(self, project_id: str) -> None:
        """Remove the path of this project from the cache."""
        self._cached_paths.pop(project_id, None)

    def forget_all(self) -> None:
        """Clear the cache."""
        self._cached_paths.clear()

    def _make(self, project_id: str, keys: Collection[ResourceKey]) -> None:
        def work(connection: Connection) -> None:
            path = path_state.read_path(connection, project_id, keys)
            if any(map(path.lacks_total, keys)):
                change_log.serialize(connection)
            path_state.make_rows(connection, path, keys)
            for key in path.missing(keys):
                if path.lacks_total(key):  # (somebody has deleted its row by hand)
                    totals.restore(connection, key.resource)

        self._database.write(work)
        self.forget(project_id)


class Tree:
    """Adds, moves and removes projects. Other calls may charge them at the same time."""

    def __init__(self, database: Database, paths: PathCache, history: History) -> None:
        self._database = database
        self.paths: Final = paths
        self._history = history

    def place(
        self,
        wanted: Mapping[str, str | None],
        author: Author,
        check: Check | None = None,
        *,
        operation: str | None = None,
    ) -> None:
        """Move these projects, with their descendants, below their parents (None: make them roots), in one transaction.

        Adds projects and parents that are not known. ``operation``: see HistoryEntry. Raises ProjectRefused,
        DatabaseUnavailable, and the errors of ``check``.
        """

        def work(connection: Connection) -> tuple[bool, RecordedChanges | None]:
            if check is not None:
                check(connection)
            return True, _place(connection, wanted, author, operation)

        until_stable(lambda: self._history.change(self._database, work))
        self.paths.forget_all()

    def follow(self, project_id: str, parent_id: str, source: str | None) -> None:
        """Move a project below the parent that the source of the tree reports, which replaces any other edge.

        The history has the previous parent.
        """
        path = self._database.read(lambda connection: self.paths.read(connection, project_id, []))
        if path.project_ids[1:2] == (parent_id,):
            return
        if path.project_ids[1:]:
            LOG.warning(
                "Project %s is moved below %s, as %s reports; it was below %s.",
                project_id,
                parent_id,
                source,
                path.project_ids[1],
            )
        wanted: dict[str, str | None] = {project_id: parent_id}
        edges = self._database.read(lambda connection: projects.edges_above(connection, [parent_id]))
        if project_id in usage_locks.ancestors(parent_id, edges):
            wanted[parent_id] = None
        self.place(wanted, Author(user_id=source), operation=source)

    def remove(self, project_id: str, author: Author) -> None:
        """Remove a project that holds no resources and has no children. Raises ProjectRefused."""

        def work(connection: Connection) -> tuple[None, RecordedChanges | None]:
            edges = projects.edges(connection)
            if project_id not in edges:
                raise exceptions.ProjectRefused(project_id, "is not known")
            children = sorted(child for child, parent in edges.items() if parent == project_id)
            if children:
                raise exceptions.ProjectRefused(
                    project_id, f"has children ({', '.join(children[:5])}); move them first"
                )
            _, limits, _ = tables.read_limits(connection, [project_id])
            live, _ = overrides.read(connection, [project_id])
            if tables.is_in_use(connection, project_id) or not tables.forget_project(connection, project_id):
                raise exceptions.ProjectRefused(project_id, "holds resources; release them first")
            changes = [
                RecordedChange.of_limit(project_id, key.resource_key, limit, None)
                for key, limit in sorted(limits.items())
            ]
            changes += [
                RecordedChange("cancel override", project_id, one.resource, one.limit, None, one) for one in live
            ]
            changes.append(RecordedChange("remove project", project_id, None, edges[project_id], None))
            return None, change_log.record(connection, author, changes)

        self._history.change(self._database, work)
        self.paths.forget_all()


def _place(
    connection: Connection, wanted: Mapping[str, str | None], author: Author, operation: str | None
) -> RecordedChanges | None:
    named = {*wanted, *(parent_id for parent_id in wanted.values() if parent_id is not None)}
    before = projects.edges_above(connection, named)
    changes = [
        RecordedChange("move project" if name in before else "add project", name, None, before.get(name), wanted[name])
        for name in sorted(wanted)
        if name not in before or before[name] != wanted[name]
    ]
    recorded = change_log.record(connection, author, changes, operation=operation)
    moved = {name: wanted[name] for name in wanted if name in before and before[name] != wanted[name]}
    moves.place_all(connection, {name: wanted.get(name) for name in named - before.keys()}, moved)
    return recorded
