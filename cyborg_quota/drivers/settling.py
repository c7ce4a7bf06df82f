# SPDX-License-Identifier: Apache-2.0
"""How reservations are settled: find, decide, move the rows, move the counters; one transaction, all or none.

Whoever loses a race (commit against rollback against expiry) finds fewer rows in the state it had read, rolls back,
reads again, and gets the answer that the table of transitions has for the state the winner left.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions, transitions
from cyborg_quota.db import inserting, reservations, usages
from cyborg_quota.db.api import Connection, Database, new_uuid
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.drivers.paths import Paths
from cyborg_quota.drivers.recent import Recent
from cyborg_quota.transitions import Call, Move, Plan, Row
from cyborg_quota.types import COMMITTED, MAX_AMOUNT, Figures, Selection, State

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_TRIES: Final = 20
_ENDS_FLIGHT: Final = frozenset({"commit", "rollback", "release"})
_FAILS_ON_UNKNOWN_NAME: Final = frozenset({"commit", "rollback", "extend"})


class _NotInFlight(Exception):
    """Somebody else has settled it, or its time is over: look."""


class _WalkSingly(Exception):
    """One of several rows refused its part: roll back, and go row by row, to find out which."""


class _RowsMissing(Exception):
    """A project of a live reservation has lost its usage rows: make them, and come again."""

    def __init__(self, project_id: str, resource: str) -> None:
        self.project_id = project_id
        self.resource = resource
        super().__init__(project_id, resource)


class Settler:
    """Commits, rolls back, releases, extends and expires. ``grace`` is in microseconds."""

    def __init__(self, database: Database, paths: Paths, grace: int) -> None:
        self._database = database
        self._paths = paths
        self.grace = grace
        self.recent = Recent()

    def settle(self, call: Call, selection: Selection, life_microseconds: int = 0) -> None:
        """Do ``call`` to what ``selection`` means. Raises ReservationError as the table of transitions has it."""

        def work(connection: Connection, counting: Counting) -> Plan:
            rows = self._find(connection, call, selection)
            plan = transitions.decide(call, rows)
            self._apply(connection, counting, plan.moves, life_microseconds)
            return plan

        if call in _ENDS_FLIGHT and self._settle_recent(call, selection):
            return
        plan = self._write(work)
        if plan.error is not None:
            raise plan.error

    def _settle_recent(self, call: Call, selection: Selection) -> bool:
        """The common case, without asking first: what this process reserved, and is still in flight and in time."""
        rows = self.recent.take(selection)
        if not rows:
            return False
        plan = transitions.decide(call, rows)

        def work(connection: Connection, counting: Counting) -> None:
            if not reservations.end_flight(connection, [row.uuid for row in rows], plan.moves[0].to, self.grace):
                raise _NotInFlight
            counting.apply(plan.moves)

        try:
            self._write(work)
        except _NotInFlight:
            return False
        return True

    def expire_batch(self, limit: int) -> int:
        """Expire up to ``limit`` of the longest overdue, in one transaction. Returns how many."""

        def work(connection: Connection, counting: Counting) -> int:
            rows = reservations.overdue(connection, limit, self.grace)
            self._apply(connection, counting, transitions.decide("expire", rows).moves, 0)
            return len(rows)

        return self._write(work)

    def expire_rows(self, uuids: Sequence[str]) -> None:
        """Expire those of these reservations that are overdue."""
        self._write(
            lambda connection, counting: self._apply(
                connection,
                counting,
                transitions.decide("expire", reservations.by_uuids(connection, uuids, None, self.grace)).moves,
                0,
            )
        )

    def _write(self, work: Callable[[Connection, Counting], T]) -> T:
        singly = False

        def once(connection: Connection) -> T:
            return work(connection, Counting(connection, self._paths, singly=singly))

        for _ in range(_MOST_TRIES):
            try:
                return self._database.write(once)
            except _WalkSingly:
                singly = True
            except _RowsMissing as missing:
                LOG.warning(
                    "Project %s has live reservations of %s but no usage row; it is made anew. Run: "
                    "cyborg-quota usage heal",
                    missing.project_id,
                    missing.resource,
                )
                self._paths.forget(missing.project_id)
                self._paths.get(missing.project_id, [missing.resource])
        raise exceptions.DatabaseError("usage rows disappear as fast as they are made")

    def _find(self, connection: Connection, call: Call, selection: Selection) -> list[Row]:
        rows = self._look(connection, selection)
        if self._is_complete(rows, selection):
            return rows
        if self._database.wait_for_cluster(connection):
            rows = self._look(connection, selection)
            if self._is_complete(rows, selection):
                return rows
        if selection.uuids is not None:
            found = {row.uuid for row in rows}
            raise exceptions.ReservationNotFound(next(uuid for uuid in selection.uuids if uuid not in found))
        if call in _FAILS_ON_UNKNOWN_NAME:
            raise exceptions.ReservationNotFound(str(selection.consumer or selection.group))
        return rows

    def _look(self, connection: Connection, selection: Selection) -> list[Row]:
        if selection.uuids is not None:
            return reservations.by_uuids(connection, selection.uuids, selection.project_id, self.grace)
        assert selection.project_id is not None, "only UUIDs are unique across projects"
        if selection.consumer is not None:
            rows = reservations.by_consumer(connection, selection.project_id, selection.consumer, self.grace)
        else:
            rows = reservations.by_group(connection, selection.project_id, str(selection.group), self.grace)
        return transitions.present_life(rows)

    @staticmethod
    def _is_complete(rows: Sequence[Row], selection: Selection) -> bool:
        return len(rows) == len(set(selection.uuids)) if selection.uuids is not None else bool(rows)

    def _apply(self, connection: Connection, counting: Counting, moves: Sequence[Move], life_microseconds: int) -> None:
        """Move rows, then counters. Raises TransactionMoved when somebody else was quicker."""
        by_kind: dict[tuple[State, State], list[Move]] = {}
        for move in moves:
            by_kind.setdefault((move.row.state, move.to), []).append(move)
        for (before, after), group in sorted(by_kind.items()):
            ids = [move.row.id for move in group]
            if before == after:
                is_done = reservations.extend(connection, ids, life_microseconds, self.grace)
            else:
                is_done = reservations.move(connection, ids, before, after, self.grace)
            if not is_done:
                raise TransactionMoved
        if any(before != after for before, after in by_kind):
            counting.apply(moves)


class Counting:
    """The counters' side of one transaction."""

    def __init__(self, connection: Connection, paths: Paths, *, singly: bool) -> None:
        self._connection = connection
        self._paths = paths
        self._singly = singly
        self._changes: dict[int, usages.Change] = {}
        self._ancestors: dict[int, tuple[usages.Node, ...]] = {}
        self._queue: list[tuple[tuple[int, str, str], int]] = []

    def apply(self, moves: Sequence[Move]) -> None:
        """Add what the moves mean to every row they touch, deepest first."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for move in moves:
            key = (move.row.project_id, move.row.resource)
            reserved, used = transitions.effect(move.row.state, move.to, move.row.delta)
            sums[key] = (sums.get(key, (0, 0))[0] + reserved, sums.get(key, (0, 0))[1] + used)
        for (project_id, resource), (reserved, used) in sums.items():
            if reserved or used:
                self._plan(project_id, resource, reserved, used)
        if not self._singly and usages.goes_together(self._connection, len(self._queue)):
            changes = [change for change in self._changes.values() if change.reserved or change.used or change.subtree]
            if changes and not usages.charge_all(self._connection, sorted(changes, key=_lock_order)):
                raise _WalkSingly
            return
        while self._queue:
            _, usage_id = heapq.heappop(self._queue)
            change = self._changes.pop(usage_id)
            if (change.reserved or change.used or change.subtree) and not usages.charge(self._connection, change):
                self._recount(change)

    def _plan(self, project_id: str, resource: str, reserved: int, used: int) -> None:
        nodes = self._paths.read(self._connection, project_id, [resource]).nodes(resource)
        if nodes is None:
            raise _RowsMissing(project_id, resource)
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
            heapq.heappush(self._queue, (node.lock_order, node.usage_id))
        return change

    def _recount(self, change: usages.Change) -> None:
        """The row refused: its project moved, or a negative delta freed more than was held, or it has drifted."""
        node = change.node
        if not usages.fence(self._connection, node):
            self._paths.forget_all()
            raise TransactionMoved
        before, after = recount(self._connection, node)
        surprise = after.subtree - before.subtree - change.subtree
        if surprise:
            for ancestor in self._ancestors[node.usage_id]:
                self._change(ancestor).subtree += surprise


def _lock_order(change: usages.Change) -> tuple[int, str, str]:
    return change.node.lock_order


def recount(connection: Connection, node: usages.Node) -> tuple[Figures, Figures]:
    """Set a row that the transaction holds to what its reservations say. Returns the figures before and after.

    Where more was freed than was ever held, used stops at zero, and a committed adjustment row makes up the
    difference, so that used stays the sum of the committed rows (I2).
    """
    before = usages.figures(connection, node.usage_id)
    reserved, used = usages.truth(connection, node)
    if used < 0:
        _adjust(connection, node, -used)
        used = 0
    if used + reserved > MAX_AMOUNT:
        raise exceptions.UsageOverflow(node.project_id, node.resource, used + reserved - before.used - before.reserved)
    after = Figures(
        used=used,
        reserved=reserved,
        subtree=used + reserved + usages.children_total(connection, node),
    )
    if after != before:
        usages.set_figures(connection, node.usage_id, after)
    return before, after


def _adjust(connection: Connection, node: usages.Node, amount: int) -> None:
    rows = []
    while amount:
        part = min(amount, MAX_AMOUNT)
        rows.append(
            inserting.NewReservation(
                uuid=new_uuid(),
                usage_id=node.usage_id,
                project_id=node.project_id,
                resource=node.resource,
                delta=part,
                consumer=None,
                group=None,
                state=COMMITTED,
                life_microseconds=None,
            )
        )
        amount -= part
    inserting.insert(connection, rows)
