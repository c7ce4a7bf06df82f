# SPDX-License-Identifier: Apache-2.0
"""Makes the project tree follow the edges of another source, in batches.

A charge of a moved project waits for one batch at most. A project is placed after its ancestors, so that no batch
closes a cycle, whatever place a later batch gives to the other projects. The next run continues an interrupted one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import overrides
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.prepared import chunks
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.ledger.paths import Tree
from cyborg_quota.limits import tables
from cyborg_quota.limits.changes import find_problems
from cyborg_quota.limits.limit_tree import MAX_DEPTH, InitialLimits, LimitTree
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import Author, LimitOverride, RecordedChange

BATCH_PROJECTS: Final = 500
"""The number of edges that one transaction changes."""


class TreeImport:
    """Adds and moves projects so that each has the parent that ``wanted`` names (None: make it a root).

    Projects that ``wanted`` does not name keep their parents.
    """

    def __init__(self, database: Database, tree: Tree, limits: LimitDriver) -> None:
        self._database = database
        self._tree = tree
        self._limits = limits

    def find(self, wanted: Mapping[str, str | None]) -> list[RecordedChange]:
        """The changes that ``run`` would make, parents first.

        Raises ProjectRefused (a cycle, too many levels), and LimitRefused if the enforcement model of the driver
        database does not allow the limits at the new places.
        """

        def read(connection: Connection) -> tuple[tables.StoredLimits, list[LimitOverride], datetime.datetime | None]:
            return tables.read_limits(connection), *overrides.read(connection)

        (defaults, limits, before), live, now = self._database.read(read)
        after = LimitTree(defaults, limits, {**before, **wanted}, InitialLimits())
        depths = {project_id: len(after.path(project_id)) for project_id in after.parents}
        for project_id, levels in depths.items():
            if levels > MAX_DEPTH:
                raise exceptions.ProjectRefused(project_id, f"would lie at level {levels} of {MAX_DEPTH}")
        # (An unknown root is added with its first child, or when it is charged.)
        moved = [name for name in wanted if wanted[name] != before.get(name)]
        changes = [
            RecordedChange(
                "move project" if name in before else "add project", name, None, before.get(name), wanted[name]
            )
            for name in sorted(moved, key=lambda name: (depths[name], name))
        ]
        if isinstance(self._limits, DatabaseLimitDriver):
            after.initial_limits = self._limits.initial_limits
            problems = find_problems(self._limits, Timeline(after, live, now), changes)
            if problems:
                raise exceptions.LimitRefused(problems, changes)
        return changes

    def run(
        self, wanted: Mapping[str, str | None], author: Author, progress: Callable[[int], None]
    ) -> list[RecordedChange]:
        """Make the changes. Raises what ``find`` raises before the first write.

        ``progress`` is called with the size of each batch.
        """
        changes = self.find(wanted)
        for batch in chunks(changes, BATCH_PROJECTS):
            parents = {str(change.project_id): wanted[str(change.project_id)] for change in batch}
            self._tree.place(parents, author, operation="import")
            progress(len(batch))
        return changes
