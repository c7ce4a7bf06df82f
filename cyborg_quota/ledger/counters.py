# SPDX-License-Identifier: Apache-2.0
"""Updates the counters when reservations are settled, resized or transferred, and repairs them.

A row that its conditional UPDATE would make negative has drifted: it is set to the sums of its reservations, with all
rows above it (db/recounts.py). Healer does this for all drifted rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from oslo_log import log as logging

from cyborg_quota import transitions
from cyborg_quota.db import change_log, dialects, maintenance, path_state, recounts, totals, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.ledger.project_tree import PathCache
from cyborg_quota.transitions import Move
from cyborg_quota.types import TOTAL, Drift, UsageKey

LOG = logging.getLogger(__name__)


class RetryRowByRow(Exception):
    """A statement for several rows did not update all of them: roll back, and retry with one statement for each row."""


class ChargeRefused(Exception):
    """A limit refused an addition, or the path to charge has changed: roll back, and read both again."""


class RowsMissing(Exception):
    """The usage row of a live reservation does not exist: create it, and retry."""

    def __init__(self, key: UsageKey) -> None:
        self.key = key
        super().__init__(key)


class Counting:
    """Updates the counters in one transaction. ``singly``: one statement for each row."""

    def __init__(self, connection: Connection, paths: PathCache, *, singly: bool) -> None:
        self._connection = connection
        self._dialect = dialects.of(connection)
        self._paths = paths
        self._singly = singly

    def apply(self, moves: Sequence[Move]) -> None:
        """Apply the effect of the moves to every usage row on their paths."""
        self._count(transitions.amounts(moves))

    def exchange(self, changes: Iterable[usages.Change]) -> None:
        """Subtract what a resize or a transfer ends, and add what it takes within limits. Raises ChargeRefused."""
        try:
            self._charge(changes, singly=True)
        except ConcurrentChange:
            raise ChargeRefused from None

    def _count(self, amounts: Mapping[UsageKey, tuple[int, int]]) -> None:
        paths = {key: self._nodes(key) for key, amount in amounts.items() if any(amount)}
        changes = [change for key, nodes in paths.items() for change in usages.along(nodes, *amounts[key])]
        self._charge(changes, singly=self._singly)

    def _nodes(self, key: UsageKey) -> tuple[usages.Node, ...]:
        nodes = self._paths.known(key)
        if nodes is None:
            nodes = self._paths.read(self._connection, key.project_id, [key.resource_key]).nodes(key.resource_key)
        if nodes is None:
            raise RowsMissing(key)
        return nodes

    def _charge(self, changes: Iterable[usages.Change], *, singly: bool) -> None:
        """Raises ConcurrentChange if a cached path is out of date. Then none is cached any more."""
        try:
            merged = usages.merge(changes)
            if singly or not self._update_together(merged):
                self._update_each(merged)
        except ConcurrentChange:
            self._paths.forget_all()
            raise

    def _update_together(self, changes: Sequence[usages.Change]) -> bool:
        """Update all rows in one statement. False: not supported. Raises RetryRowByRow if a row was not updated."""
        if not changes:
            return True
        is_done = self._dialect.charge_bulk(self._connection, changes)
        if is_done is False:
            raise RetryRowByRow
        return bool(is_done)

    def _update_each(self, changes: Sequence[usages.Change]) -> None:
        """Update each row with a statement of its own, in lock order. Then recount those that have drifted."""
        drifted = []
        for change in self._dialect.in_lock_order(changes):
            if usages.charge(self._connection, change):
                continue
            if change.grows:
                raise ChargeRefused
            if not usages.lock_usage_row(self._connection, change.node):
                raise ConcurrentChange
            drifted.append(change.node.key)
        recounts.recount_upwards(self._connection, drifted)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _RowToRepair:
    """A usage row to repair; sorts in the order of the repair. ``height`` is minus the depth; 0 at the root, 1 for a
    total over all projects.
    """

    height: int
    key: UsageKey


class Healer:
    """Repairs drift: counters that differ from the sums of the reservations. Other calls may run at the same time.

    Each row is repaired in its own transaction, deepest first: lock the row, sum its reservations, set its counters.
    The lock makes the sum exact: transactions that changed the row before have ended, later ones wait. An ancestor is
    repaired after all its descendants, because its subtree total is the sum of theirs.
    """

    def __init__(self, database: Database, paths: PathCache) -> None:
        self._database = database
        self._untimed = database.untimed
        self._paths = paths

    def audit(self) -> list[Drift]:
        """The usage rows whose counters differ from the sums of the reservations."""
        return self._untimed.read(maintenance.audit)

    def heal(self, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair the counters that audit reports. Returns the counters before and after each repair."""
        rows = set()
        orphans = set()
        for drift in self.audit():
            owner, key = drift.key.project_id, drift.key.resource_key
            if owner == TOTAL:
                rows.add(_RowToRepair(1, drift.key))
                continue
            self._paths.forget(owner)  # the cached path may contain a deleted row
            path = self._paths.get(owner, [key])
            depth = len(path.project_ids) - 1
            for distance, project_id in enumerate(path.project_ids):
                rows.add(_RowToRepair(distance - depth, UsageKey(project_id, *key)))
            if (nodes := path.nodes(key)) and nodes[-1].project_id == TOTAL:
                rows.add(_RowToRepair(1, UsageKey(TOTAL, *key)))
            if drift.recorded is None and drift.key.is_whole:
                orphans.add(drift.key)
        healed = []
        for row in sorted(rows):
            drift_healed = self._heal(row.key, is_orphan=row.key in orphans)
            if drift_healed is not None:
                LOG.info("Counters repaired: %s", drift_healed)
                healed.append(drift_healed)
            if progress is not None:
                progress(1)
        return healed

    def _heal(self, key: UsageKey, *, is_orphan: bool) -> Drift | None:
        def work(connection: Connection) -> Drift | None:
            if key.project_id == TOTAL:
                change_log.serialize(connection)
                before, after = totals.restore(connection, key.resource)
                return None if before == after else Drift(key, before, after)
            nodes = path_state.read_nodes(connection, key)
            if not nodes or not usages.lock_usage_row(connection, nodes[0]):
                raise ConcurrentChange
            if is_orphan:
                maintenance.link(connection, nodes[0].usage_id, key.project_id, key.resource)
            before, after = recounts.recount(connection, nodes[0])
            return None if before == after else Drift(key, before, after)

        return self._database.write(work)
