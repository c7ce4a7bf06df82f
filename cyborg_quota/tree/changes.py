# SPDX-License-Identifier: Apache-2.0
"""Changes of the project tree: each is serialized with all others, checked, and moves the totals of the subtree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from cyborg_quota.db import change_log, projects
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.paths import PathCache, until_stable
from cyborg_quota.tree import tables
from cyborg_quota.types import Author, RecordedChange, RecordedChanges

Check = Callable[[Connection], object]
"""Runs inside the transaction of a change. Raises ProjectRefused or LimitRefused if the change is not allowed."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """Adds and moves projects. Other calls may charge them at the same time."""

    database: Database
    paths: PathCache
    history: History

    def set_parents(
        self,
        wanted: Mapping[str, str | None],
        author: Author,
        check: Check | None = None,
        *,
        operation: str | None = None,
        refuse: tables.Refuse | None = None,
    ) -> None:
        """Move these projects, with their descendants, below their parents (None: make them roots), in one transaction.

        Adds projects and parents that are not known. ``operation``: see HistoryEntry. Raises ProjectRefused,
        DatabaseUnavailable, and the errors of ``check`` and of ``refuse`` (tree/tables.py).
        """

        def work(connection: Connection) -> tuple[bool, RecordedChanges | None]:
            if check is not None:
                check(connection)
            named = {*wanted, *(parent_id for parent_id in wanted.values() if parent_id is not None)}
            before = projects.edges_above(connection, named)
            changes = [
                RecordedChange.of_parent(name, before, wanted[name])
                for name in sorted(wanted)
                if name not in before or before[name] != wanted[name]
            ]
            recorded = change_log.record(connection, author, changes, operation=operation)
            moved = {name: wanted[name] for name in wanted if name in before and before[name] != wanted[name]}
            added = {name: wanted.get(name) for name in named - before.keys()}
            tables.set_parents(connection, added, moved, refuse)
            return True, recorded

        until_stable(lambda: self.history.change(self.database, work))
        self.paths.forget_all()

    def follow(self, path: Sequence[str], source: str) -> None:
        """Give a project the ancestors that the source of the tree reports, which replace any others.

        ``path``: the project and its ancestors, up to the root. The history has the previous parents.
        """
        stored = self.database.read(lambda connection: self.paths.read(connection, path[0], []))
        if stored.project_ids == tuple(path):
            return
        edges = self.database.read(lambda connection: projects.edges_above(connection, path))
        wanted = dict(zip(path, [*path[1:], None], strict=True))
        # (An unknown root is added with its first child.)
        wanted = {name: parent_id for name, parent_id in wanted.items() if parent_id is not None or name in edges}
        self.set_parents(wanted, Author(user_id=source), operation=source)
