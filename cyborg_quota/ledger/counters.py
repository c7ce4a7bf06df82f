# SPDX-License-Identifier: Apache-2.0
"""How what is settled is counted: each usage row that it touches, deepest first; recounted where a row refuses."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NoReturn

from cyborg_quota import exceptions, transitions
from cyborg_quota.db import many, sums, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.ledger.path_cache import PathCache
from cyborg_quota.transitions import Move
from cyborg_quota.types import COMMITTED, MAX_AMOUNT, Counters

_MANY: Final = 8
"""From so many rows on, they are one statement on every database."""


class RetryRowByRow(Exception):
    """One of several rows refused its part: roll back, and go row by row, to find out which."""


class RowsMissing(Exception):
    """A project of a live reservation has lost its usage rows: make them, and come again."""

    def __init__(self, project_id: str, resource: str) -> None:
        self.project_id = project_id
        self.resource = resource
        super().__init__(project_id, resource)


class Counting:
    """The counters' side of one transaction."""

    def __init__(self, connection: Connection, paths: PathCache, *, singly: bool) -> None:
        self._connection = connection
        self._paths = paths
        self._singly = singly
        self._changes: dict[int, usages.Change] = {}
        self._ancestors: dict[int, tuple[usages.Node, ...]] = {}
        self._queue: list[tuple[tuple[int, str, str], int]] = []
        # The project's own rows that are to be counted anew, and the negative deltas that are committed here.
        self._recounted: set[int] = set()
        self._committed: set[int] = set()

    def apply(self, moves: Sequence[Move]) -> None:
        """Add what the moves mean to every row they touch, deepest first."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        negative: set[tuple[str, str]] = set()
        for move in moves:
            key = (move.row.project_id, move.row.resource)
            reserved, used = transitions.effect(move.row.state, move.to, move.row.delta)
            sums[key] = (sums.get(key, (0, 0))[0] + reserved, sums.get(key, (0, 0))[1] + used)
            if move.row.delta < 0 and move.to == COMMITTED:
                self._committed.add(move.row.id)
            elif move.row.delta < 0 and move.row.state == COMMITTED:
                # It gives back what it has subtracted: only the reservations tell how much, while the row is held.
                negative.add(key)
        self._count(sums, negative)

    def expire(self, ended: Iterable[tuple[str, str, int]]) -> None:
        """The same for a batch of flights that ended: (project_id, resource, delta)."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for project_id, resource, delta in ended:
            if delta > 0:
                key = (project_id, resource)
                sums[key] = (sums.get(key, (0, 0))[0] - delta, 0)
        self._paths.read_many(self._connection, sums)
        self._count(sums)

    def _count(
        self, sums: Mapping[tuple[str, str], tuple[int, int]], negative: Collection[tuple[str, str]] = ()
    ) -> None:
        """``negative``: where a negative delta was released."""
        for key, (reserved, used) in sums.items():
            if reserved or used or key in negative:
                self._plan(*key, reserved, used, is_recounted=key in negative)
        if not self._singly and not self._recounted and self._count_together():
            return
        if usages.locks_by_id(self._connection) and len(self._changes) > 1:
            self._hold()
        self._queue = [(change.node.lock_order, usage_id) for usage_id, change in self._changes.items()]
        heapq.heapify(self._queue)
        while self._queue:
            _, usage_id = heapq.heappop(self._queue)
            change = self._changes.pop(usage_id)
            is_changed = bool(change.reserved or change.used or change.subtree)
            if usage_id in self._recounted or (is_changed and not usages.charge(self._connection, change)):
                self._recount(change)

    def _hold(self) -> None:
        """Take all rows in the order of their ids, before they are walked in another."""
        for change in sorted(self._changes.values(), key=usages.by_id):
            if not usages.fence(self._connection, change.node):
                self._moved()

    def _moved(self) -> NoReturn:
        self._paths.forget_all()
        raise TransactionMoved

    def _count_together(self) -> bool:
        """All in one statement, where the database takes that. Raises WalkSingly where a row refuses."""
        changes = [change for change in self._changes.values() if change.reserved or change.used or change.subtree]
        if not changes:
            return True
        if len(changes) >= _MANY and many.supports_bulk_charge(self._connection):
            is_done = many.charge(self._connection, changes)
        elif usages.charges_in_one_statement(self._connection, len(changes)):
            is_done = usages.charge_all(self._connection, changes)
        else:
            return False
        if not is_done:
            raise RetryRowByRow
        return True

    def _plan(self, project_id: str, resource: str, reserved: int, used: int, *, is_recounted: bool) -> None:
        nodes = self._paths.known(project_id, resource)
        if nodes is None:
            nodes = self._paths.read(self._connection, project_id, [resource]).nodes(resource)
        if nodes is None:
            raise RowsMissing(project_id, resource)
        growth = reserved + used
        if is_recounted:
            self._recounted.add(nodes[0].usage_id)
        for index, node in enumerate(nodes if growth or is_recounted else nodes[:1]):
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
        """The row refused: its project moved, or a negative delta freed more than was held, or it has drifted."""
        node = change.node
        if not usages.fence(self._connection, node):
            self._moved()
        before, after = recount(self._connection, node, self._committed)
        correction = after.subtree - before.subtree - change.subtree
        if correction:
            for ancestor in self._ancestors[node.usage_id]:
                if ancestor.usage_id not in self._changes:
                    heapq.heappush(self._queue, (ancestor.lock_order, ancestor.usage_id))
                self._change(ancestor).subtree += correction


def recount(
    connection: Connection, node: usages.Node, committed: Collection[int] = ()
) -> tuple[Counters, Counters]:
    """Set a row that the transaction holds to what its reservations say. Returns the figures before and after.

    ``committed``: the ids of the negative deltas that this transaction commits. Where they subtract more than there
    is, used stops at zero, and adjustments make up the difference. Where used would grow beyond what a counter holds,
    for a negative delta was released, the rest stays subtracted by a row without consumer. So used stays the sum of
    the committed rows (I2), and nothing is refused (I6). Record 0027 has the rule, and why it is right.
    """
    before = sums.figures(connection, node.usage_id)
    sums.end_adjustments(connection, node.usage_id)
    reserved, used = sums.sums_from_reservations(connection, node)
    if used < 0:
        reductions = transitions.adjust(-used, sums.freed(connection, node.usage_id), committed)
        sums.insert_adjustments(connection, node, reductions)
        used = 0
    excess = used + reserved - MAX_AMOUNT
    if excess > used:
        raise exceptions.UsageOverflow(node.project_id, node.resource, used + reserved - before.used - before.reserved)
    if excess > 0:
        sums.insert_excess(connection, node, excess)
        used -= excess
    after = Counters(
        used=used,
        reserved=reserved,
        subtree=used + reserved + sums.children_total(connection, node),
    )
    if after != before:
        sums.set_figures(connection, node.usage_id, after)
    return before, after
