# SPDX-License-Identifier: Apache-2.0
"""Repairs counters that have drifted: that differ from the sums of the reservations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from oslo_log import log as logging

from cyborg_quota.db import change_log, charges, maintenance, path_state, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.types import TOTAL, Counters, Drift, UsageKey

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Healer:
    """Repairs drift: counters that differ from the sums of the reservations. Other calls may run at the same time.

    Each row is repaired in its own transaction, deepest first: lock the row, sum its reservations, set its counters.
    The lock makes the sum exact: transactions that changed the row before have ended, later ones wait. An ancestor is
    repaired after all its descendants, because its subtree total is the sum of theirs.
    """

    _database: Database
    _paths: PathCache

    def audit(self) -> list[Drift]:
        """The usage rows whose counters differ from the sums of the reservations."""
        return self._database.untimed.read(maintenance.audit)

    def heal(self, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair the counters that audit reports. Returns the counters before and after each repair."""
        rows = set()  # (minus the depth, which is 0 at the root, or 1 for a total; the key), in the order of the repair
        orphans = set()
        for drift in self.audit():
            owner, key = drift.key.project_id, drift.key.resource_key
            if owner == TOTAL:
                if drift.recorded is None:  # (the first steps of setting a total: see charges.py)
                    for step in (self._make_total, charges.renew_roots):
                        self._database.write(functools.partial(step, resource=drift.key.resource))
                rows.add((1, drift.key))
                continue
            self._paths.forget(owner)  # the cached path may contain a deleted row
            rows.update((-node.depth, node.key) for node in self._paths.get(owner, [key]).charged[key])
            if drift.recorded is None and drift.key.is_whole:
                orphans.add(drift.key)
        healed = []
        for _, usage_key in sorted(rows):
            drift_healed = self._database.write(functools.partial(self._heal, usage_key, usage_key in orphans))
            if drift_healed is not None:
                LOG.info("Counters repaired: %s", drift_healed)
                healed.append(drift_healed)
            if progress is not None:
                progress(1)
        return healed

    @staticmethod
    def _make_total(connection: Connection, resource: str) -> None:
        change_log.serialize(connection)
        path_state.make_row(connection, UsageKey(TOTAL, resource))

    def _heal(self, key: UsageKey, is_orphan: bool, connection: Connection) -> Drift | None:
        if key.project_id == TOTAL:
            change_log.serialize(connection)
            before = usages.read(connection, [TOTAL], [key.resource_key]).get(key, Counters())
            charges.count_totals(connection, [key.resource])
            after = usages.read(connection, [TOTAL], [key.resource_key]).get(key, Counters())
        else:
            nodes = path_state.read_nodes(connection, key)
            if not nodes or not usages.lock_usage_row(connection, nodes[0]):
                raise ConcurrentChange
            if is_orphan:
                maintenance.link(connection, nodes[0].usage_id, key.project_id, key.resource)
            before, after = charges.recount(connection, nodes[0])
        return None if before.is_same(after) else Drift(key, before, after)
