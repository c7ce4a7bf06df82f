# SPDX-License-Identifier: Apache-2.0
"""Repairs drift: counters that differ from the sums of the reservations. Other calls may run at the same time.

Each row is repaired in its own transaction, deepest first: lock the row, sum its reservations, set its counters. The
lock makes the sum exact: transactions that changed the row before have ended, later ones wait. An ancestor is repaired
after all its descendants, because its subtree total is the sum of theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_quota.db import maintenance, reservations, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.ledger.counters import recount
from cyborg_quota.ledger.path_cache import PathCache
from cyborg_quota.types import Drift

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _RowToRepair:
    """A usage row to repair; sorts in the order of the repair (deepest first: ``height`` is at most 0, at the root)."""

    height: int
    project_id: str
    resource: str


class Healer:
    """Repairs counters."""

    def __init__(self, database: Database, untimed: Database, paths: PathCache) -> None:
        """``untimed``: the same database without a statement timeout, for the audit of all rows."""
        self._database = database
        self._untimed = untimed
        self._paths = paths

    def heal(self, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair the counters that audit reports. Returns the counters before and after each repair."""
        rows = set()
        orphans = set()
        for drift in self._untimed.read(maintenance.audit):
            self._paths.forget(drift.project_id)  # the cached path may contain a deleted row
            path = self._paths.get(drift.project_id, [drift.resource])
            depth = len(path.project_ids) - 1
            for distance, project_id in enumerate(path.project_ids):
                rows.add(_RowToRepair(distance - depth, project_id, drift.resource))
            if drift.recorded is None:
                orphans.add((drift.project_id, drift.resource))
        healed = []
        for row in sorted(rows):
            is_orphan = (row.project_id, row.resource) in orphans
            drift_healed = self._heal(row.project_id, row.resource, is_orphan)
            if drift_healed is not None:
                LOG.info("Counters repaired: %s", drift_healed)
                healed.append(drift_healed)
            if progress is not None:
                progress(1)
        return healed

    def _heal(self, project_id: str, resource: str, is_orphan: bool) -> Drift | None:
        def work(connection: Connection) -> Drift | None:
            self._paths.forget(project_id)
            nodes = self._paths.read(connection, project_id, [resource]).nodes(resource)
            if not nodes or not usages.fence(connection, nodes[0]):
                raise TransactionMoved
            if is_orphan:
                reservations.link(connection, nodes[0].usage_id, project_id, resource)
            before, after = recount(connection, nodes[0])
            return None if before == after else Drift(project_id, resource, before, after)

        return self._database.write(work)
