# SPDX-License-Identifier: Apache-2.0
"""Clears the origin of edges of the project tree: their projects become roots, or the operator takes the edges over.

It runs in batches of BATCH_PROJECTS, each in its own transaction: a charge of one of these projects waits for one batch
at most, and an interrupted run can be continued. Making projects roots does not change the limits, because an ignored
edge has no effect. With ``keep``, the limits of each project change when its batch is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import limit_history, moves, overrides, projects
from cyborg_quota.db import limits as tables
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger import limit_import
from cyborg_quota.ledger.limit_history import LimitHistory
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import Author, LimitChange, RecordedChanges

BATCH_PROJECTS: Final = 500


class OriginClearing:
    """One run for the edges of one origin."""

    def __init__(
        self,
        database: Database,
        limits: LimitDriver,
        history: LimitHistory,
        origin: str,
        author: Author,
        *,
        keep: bool,
    ) -> None:
        self._database = database
        self._history = history
        self._author = author
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
        while True:
            batch, recorded = self._database.write(self._batch)
            if not batch:
                return sorted(changed.items())
            self._history.announce(recorded)
            changed.update(batch)
            progress(len(batch))

    def _batch(self, connection: Connection) -> tuple[dict[str, str], RecordedChanges | None]:
        tables.serialize_tree_changes(connection)
        edges = projects.marked_edges(connection, self._origin, BATCH_PROJECTS)
        self._refuse(connection, edges)
        parents: dict[str, str | None] = dict(edges) if self._keep else dict.fromkeys(edges)
        changes = [
            LimitChange("move project", project_id, None, edges[project_id], parent_id)
            for project_id, parent_id in parents.items()
        ]
        recorded = limit_history.record(connection, self._author, changes, operation="detach")
        moves.place_all(connection, {}, parents)
        return edges, recorded

    def _refuse(self, connection: Connection, edges: Mapping[str, str]) -> None:
        """Raise LimitRefused if the enforcement model does not allow these edges to take effect (``keep`` only)."""
        if not self._keep or not isinstance(self._limits, DatabaseLimitDriver):
            return
        limit_tree = LimitTree(*tables.read_book(connection), self._limits.starts)
        for project_id, parent_id in edges.items():
            limit_tree.place(project_id, parent_id)
        changes = [
            LimitChange("move project", project_id, None, parent_id, parent_id)
            for project_id, parent_id in edges.items()
        ]
        problems = limit_import.problems(
            self._limits, Timeline(limit_tree, *overrides.read(connection)), changes
        )
        if problems:
            raise exceptions.LimitRefused(problems, changes)
