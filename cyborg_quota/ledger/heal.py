# SPDX-License-Identifier: Apache-2.0
"""How drift is repaired, while others reserve and commit.

Row by row, deepest first, each in a transaction of its own: hold the row, sum what its reservations say, set it. Who
wants the row meanwhile waits; who had it has ended, and is in the sum. An ancestor comes after all its descendants.
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
class _Place:
    """A usage row to look at, in the order of the repair."""

    height: int
    project_id: str
    resource: str


class Healer:
    """Repairs counters."""

    def __init__(self, database: Database, untimed: Database, paths: PathCache) -> None:
        """``patient`` is the same database without a time-out, for the audit of everything."""
        self._database = database
        self._untimed = untimed
        self._paths = paths

    def heal(self, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair what audit finds. Returns what was changed, with the figures before and after."""
        places = set()
        orphans = set()
        for drift in self._untimed.read(maintenance.audit):
            self._paths.forget(drift.project_id)  # what is remembered may be a row that is gone
            path = self._paths.get(drift.project_id, [drift.resource])
            depth = len(path.project_ids) - 1
            for distance, project_id in enumerate(path.project_ids):
                places.add(_Place(distance - depth, project_id, drift.resource))
            if drift.recorded is None:
                orphans.add((drift.project_id, drift.resource))
        healed = []
        for place in sorted(places):
            is_orphan = (place.project_id, place.resource) in orphans
            drift_healed = self._heal(place.project_id, place.resource, is_orphan)
            if drift_healed is not None:
                LOG.info("Usage was repaired: %s", drift_healed)
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
