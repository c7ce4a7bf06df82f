# SPDX-License-Identifier: Apache-2.0
"""Updates the counters when reservations are settled, and repairs them: each usage row, deepest first.

A row whose conditional UPDATE fails is set to the sums of its reservations. Healer does this for all drifted rows.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from oslo_log import log as logging

from cyborg_quota import exceptions, scopes, transitions
from cyborg_quota.db import dialects, maintenance, path_state, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.ledger.project_tree import PathCache
from cyborg_quota.transitions import Move
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Counters, Drift

LOG = logging.getLogger(__name__)


class RetryRowByRow(Exception):
    """A statement for several rows did not update all of them: roll back, and retry with one statement for each row."""


class ChargeRefused(Exception):
    """A limit refused an addition, or the path to charge has changed: roll back, and read both again."""


class RowsMissing(Exception):
    """The usage row of a live reservation does not exist: create it, and retry."""

    def __init__(self, project_id: str, resource: str) -> None:
        self.project_id = project_id
        self.resource = resource
        super().__init__(project_id, resource)


class Counting:
    """Updates the counters in one transaction. ``singly``: one statement for each row."""

    def __init__(self, connection: Connection, paths: PathCache, *, singly: bool) -> None:
        self._connection = connection
        self._dialect = dialects.of(connection)
        self._paths = paths
        self._singly = singly
        self._changes: dict[int, usages.Change] = {}
        self._ancestors: dict[int, tuple[usages.Node, ...]] = {}
        self._queue: list[tuple[tuple[int, str, str], int]] = []
        self._path: ProjectPath | None = None  # None: the paths of ``paths``
        self._limited: set[int] = set()  # the ids of the rows to which something is added within limits

    def apply(self, moves: Sequence[Move]) -> None:
        """Apply the effect of the moves to every usage row on their paths, deepest first."""
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        for move in moves:
            reserved, used = transitions.effect(move.row.state, move.to, move.row.delta)
            for name in transitions.counted_names(move.row):
                key = (move.row.project_id, name)
                totals[key] = (totals.get(key, (0, 0))[0] + reserved, totals.get(key, (0, 0))[1] + used)
        self._count(totals)

    def expire(self, ended: Iterable[tuple[str, str, int]]) -> None:
        """Apply the expiry of a batch of reservations: (project_id, name of the counters, delta)."""
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        for project_id, resource, delta in ended:
            key = (project_id, resource)
            totals[key] = (totals.get(key, (0, 0))[0] - delta, 0)
        self._paths.read_many(self._connection, totals)
        self._count(totals)

    def exchange(
        self,
        ended: Mapping[tuple[str, str], tuple[int, int]],
        added: Iterable[usages.Change],
        path: ProjectPath | None = None,
    ) -> None:
        """Subtract what a resize or a transfer ends, and add what it takes within limits, in one lock order.

        ``ended``: the changes of reserved and used by (project_id, resource), zero or negative. ``added``: changes with
        bounds. A row above both, or a project that is above the other, has changes of both kinds. Those of ``subtree``
        cancel out there, so that its bound does not apply. ``path``: that of the project of ``ended``, if the bounds
        depend on it: a later path, which another thread has cached, must not replace it. Raises ChargeRefused.
        """
        self._path = path
        for key, (reserved, used) in ended.items():
            self._plan(*key, reserved, used)
        for change in added:
            planned = self._changes.get(change.node.usage_id)
            if planned is None:
                self._changes[change.node.usage_id] = dataclasses.replace(change)
            else:
                planned.reserved += change.reserved
                planned.used += change.used
                planned.subtree += change.subtree
                planned.max_held = change.max_held
            if planned is None or change.max_held is not None:
                self._limited.add(change.node.usage_id)
        self._update_each()

    def _count(self, totals: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        for key, (reserved, used) in totals.items():
            if reserved or used:
                self._plan(*key, reserved, used)
        if self._singly or not self._update_together():
            self._update_each()

    def _update_each(self) -> None:
        """Update each row with a statement of its own, in lock order. Recount those whose UPDATE fails."""
        if self._dialect.locks_by_id and len(self._changes) > 1:
            self._lock_rows()
        self._queue = [(change.node.lock_order, usage_id) for usage_id, change in self._changes.items()]
        heapq.heapify(self._queue)
        while self._queue:
            _, usage_id = heapq.heappop(self._queue)
            change = self._changes.pop(usage_id)
            is_changed = bool(change.reserved or change.used or change.subtree)
            if is_changed and not usages.charge(self._connection, change):
                if usage_id in self._limited:
                    raise ChargeRefused
                self._recount(change)

    def _lock_rows(self) -> None:
        """Lock all rows in the order of their ids, because they are then updated in another order."""
        for change in self._dialect.in_lock_order(self._changes.values()):
            if not usages.lock_usage_row(self._connection, change.node):
                self._raise_moved()

    def _raise_moved(self) -> NoReturn:
        self._paths.forget_all()
        raise ChargeRefused if self._limited or self._path is not None else ConcurrentChange

    def _update_together(self) -> bool:
        """Update all rows in one statement. False: not supported. Raises RetryRowByRow if a row was not updated."""
        changes = [change for change in self._changes.values() if change.reserved or change.used or change.subtree]
        if not changes:
            return True
        is_done = self._dialect.charge_bulk(self._connection, changes)
        if is_done is False:
            raise RetryRowByRow
        return bool(is_done)

    def _plan(self, project_id: str, resource: str, reserved: int, used: int) -> None:
        nodes = self._paths.known(project_id, resource) if self._path is None else self._path.nodes(resource)
        if nodes is None:
            nodes = self._paths.read(self._connection, project_id, [resource]).nodes(resource)
        if nodes is None:
            raise RowsMissing(project_id, resource)
        growth = reserved + used
        for index, node in enumerate(nodes if growth else nodes[:1]):
            change = self._change(node)
            self._ancestors[node.usage_id] = nodes[index + 1 :]
            change.subtree += growth
            if index == 0:
                change.reserved += reserved
                change.used += used

    def _change(self, node: usages.Node) -> usages.Change:
        change = self._changes.get(node.usage_id)
        if change is None:
            change = self._changes[node.usage_id] = usages.Change(node)
        return change

    def _recount(self, change: usages.Change) -> None:
        """Recount a row whose UPDATE failed, and add the correction to the changes of its ancestors.

        The causes: the project has moved, or the row has drifted.
        """
        node = change.node
        if not usages.lock_usage_row(self._connection, node):
            self._raise_moved()
        before, after = recount(self._connection, node)
        correction = after.subtree - before.subtree - change.subtree
        if correction:
            for ancestor in self._ancestors[node.usage_id]:
                if ancestor.usage_id not in self._changes:
                    heapq.heappush(self._queue, (ancestor.lock_order, ancestor.usage_id))
                self._change(ancestor).subtree += correction


def recount(connection: Connection, node: usages.Node) -> tuple[Counters, Counters]:
    """Set a usage row, which the transaction has locked, to the sums of its reservations.

    Returns the counters before and after. Raises UsageOverflow if the sums exceed MAX_AMOUNT. (They do only if a
    counter was too low, for example after a change by hand.)
    """
    before = usages.read_row(connection, node.usage_id)
    reserved, used = maintenance.sums_from_reservations(connection, node)
    if used + reserved > MAX_AMOUNT:
        added = used + reserved - before.used - before.reserved
        raise exceptions.UsageOverflow(node.project_id, scopes.split(node.resource)[0], added)
    after = Counters(
        used=used,
        reserved=reserved,
        subtree=used + reserved + maintenance.children_total(connection, node),
    )
    if after != before:
        usages.set_counters(connection, node.usage_id, after)
    return before, after


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _RowToRepair:
    """A usage row to repair; sorts in the order of the repair. ``height`` is minus the depth; 0 at the root, 1 for a
    total over all projects.
    """

    height: int
    project_id: str
    resource: str


class Healer:
    """Repairs drift: counters that differ from the sums of the reservations. Other calls may run at the same time.

    Each row is repaired in its own transaction, deepest first: lock the row, sum its reservations, set its counters.
    The lock makes the sum exact: transactions that changed the row before have ended, later ones wait. An ancestor is
    repaired after all its descendants, because its subtree total is the sum of theirs.
    """

    def __init__(self, database: Database, untimed: Database, paths: PathCache) -> None:
        """``untimed``: the same database without a statement timeout, for the audit of all rows."""
        self._database = database
        self._untimed = untimed
        self._paths = paths

    def audit(self) -> list[Drift]:
        """The usage rows whose counters differ from the sums of the reservations."""
        return self._untimed.read(maintenance.audit)

    def heal(self, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair the counters that audit reports. Returns the counters before and after each repair."""
        rows = set()
        orphans = set()
        for drift in self.audit():
            name = scopes.name_of(drift.resource, drift.pod)
            if drift.project_id == TOTAL:
                rows.add(_RowToRepair(1, TOTAL, name))
                continue
            self._paths.forget(drift.project_id)  # the cached path may contain a deleted row
            path = self._paths.get(drift.project_id, [name])
            depth = len(path.project_ids) - 1
            for distance, project_id in enumerate(path.project_ids):
                rows.add(_RowToRepair(distance - depth, project_id, name))
            if name in path.totals:
                rows.add(_RowToRepair(1, TOTAL, name))
            if drift.recorded is None and drift.pod is None:
                orphans.add((drift.project_id, name))
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
        name, pod = scopes.split(resource)

        def work(connection: Connection) -> Drift | None:
            nodes: tuple[usages.Node, ...] | None
            if project_id == TOTAL:
                path_state.make_row(connection, TOTAL, resource)  # (Somebody may have deleted it by hand.)
                nodes = (path_state.read_totals(connection, [resource])[resource].node,)
            else:
                self._paths.forget(project_id)
                nodes = self._paths.read(connection, project_id, [resource]).nodes(resource)
            if not nodes or not usages.lock_usage_row(connection, nodes[0]):
                raise ConcurrentChange
            if is_orphan:
                maintenance.link(connection, nodes[0].usage_id, project_id, resource)
            before, after = recount(connection, nodes[0])
            return None if before == after else Drift(project_id, name, before, after, pod)

        return self._database.write(work)
