# SPDX-License-Identifier: Apache-2.0
"""Settles, releases and extends reservations, in one transaction each.

A transaction reads the rows, decides (transitions.py), changes their states and updates the counters.

Concurrent calls may settle the same reservation (a commit, a rollback and an expiry). The loser's UPDATE changes fewer
rows than it has read; it rolls back, reads again, and returns the result that the table of calls and states
(doc/source/reference/concepts.rst) defines for the new state.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import charges, inventories, reservations, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry, Work
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.reservations import NewReservation
from cyborg_quota.db.usages import Node, Posting
from cyborg_quota.ledger import transitions
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.ledger.transitions import Call, CountersOf, Move, Plan
from cyborg_quota.safe_repr import amounts
from cyborg_quota.types import LIVE_STATES, RESERVED, InventoryKey, Row, Selection, UsageKey, grouped, summed

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_ATTEMPTS: Final = 200
"""The maximum number of attempts of one call. An attempt is repeated if other calls have changed what it had read."""

_MAX_ROWS_MADE: Final = 20
_MAX_CACHED_ROWS: Final = 20_000
"""The maximum number of cached rows. When it is exceeded, the cache is cleared."""

_SETTLES_RESERVED: Final = frozenset({"commit", "rollback", "release"})
_FAILS_ON_UNKNOWN_NAME: Final = frozenset({"commit", "rollback", "extend", "resize"})


@dataclasses.dataclass(eq=False)
class ReservationCache:
    """Caches the reservations that this process made recently, so that settling them needs no SELECT.

    The rows are as they were inserted. Another process may have settled, resized or transferred them since: the UPDATE
    that settles them checks that they are still reserved, and that their generation is still NULL. If its row count is
    too small, the caller reads the rows from the database. Shared by threads: each step is one dictionary operation.
    """

    _rows: dict[str, Row] = dataclasses.field(default_factory=dict)
    _by_consumer: dict[tuple[str, str], tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def remember(self, rows: Iterable[NewReservation]) -> None:
        """Add rows that were just reserved, as settling calls need them. (Their ids are not known, and not needed.)"""
        if len(self._rows) > _MAX_CACHED_ROWS:
            self._rows.clear()
            self._by_consumer.clear()
        by_consumer: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            self._rows[row.uuid] = Row(
                id=0,
                uuid=row.uuid,
                usage_id=row.usage_id,
                project_id=row.project_id,
                resource=row.resource,
                delta=row.delta,
                state=RESERVED,
                overdue=False,
                consumer=row.consumer_id,
                provider_id=row.provider_id,
                pod=row.pod,
            )
            if row.consumer_id is not None:
                by_consumer.setdefault((row.project_id, row.consumer_id), []).append(row.uuid)
        self._by_consumer.update((key, tuple(uuids)) for key, uuids in by_consumer.items())

    def take(self, selection: Selection) -> Sequence[Row] | None:
        """Remove and return the rows that ``selection`` selects; None unless all of them are cached."""
        uuids: Sequence[str] | None = selection.uuids
        if selection.consumer is not None and selection.project_id is not None:
            uuids = self._by_consumer.pop((selection.project_id, selection.consumer), None)
        if uuids is None:
            return None
        rows = [self._rows.pop(uuid, None) for uuid in dict.fromkeys(uuids)]
        known = [row for row in rows if row is not None]
        for row in known:
            self._by_consumer.pop((row.project_id, str(row.consumer)), None)
        if len(known) < len(rows):
            return None
        if selection.project_id is not None and any(row.project_id != selection.project_id for row in known):
            return None
        return known


@dataclasses.dataclass(eq=False)
class RowsMissing(Exception):
    """The usage row of a live reservation does not exist: create it, and retry."""

    key: UsageKey


@dataclasses.dataclass(eq=False)
class Settler:
    """Settles reservations (commit, rollback, expiry), releases and extends them. ``grace`` is in microseconds."""

    _database: Database
    _paths: PathCache
    _counters_of: CountersOf
    grace: int
    reservation_cache: ReservationCache = dataclasses.field(default_factory=ReservationCache)

    def settle(self, call: Call, selection: Selection, ttl_microseconds: int = 0) -> None:
        """Apply ``call`` to the selected reservations. Raises ReservationError as ``transitions`` defines."""
        work = functools.partial(self._decide_and_apply, call, selection, ttl_microseconds, None)
        with self._database.deadline:
            plan = self.write(work, self._single_statement(call, selection))
        if plan.error is not None:
            raise plan.error

    def commit_as(self, selection: Selection, consumer: str) -> None:
        """Commit the selected reservations as those of ``consumer``, all or none. They were made without a consumer.

        The unique keys of the reservations ensure that a consumer has one live claim, as for a reserve with a consumer.
        Raises the errors of a commit, NameConflict, InvalidSelection.
        """

        def attempt(_is_retry: bool) -> bool:
            """False: another claim of this name has ended or begun meanwhile, retry."""
            try:
                plan = self.write(functools.partial(self._decide_and_apply, "commit", selection, 0, consumer))
            except _OverdueHolder as holder:
                self.expire_rows(holder.uuids)
                return False
            except DuplicateEntry:
                return False
            if plan.error is not None:
                raise plan.error
            return True

        self.reservation_cache.take(selection)
        repeat(self._database, attempt)

    def _decide_and_apply(
        self,
        call: Call,
        selection: Selection,
        ttl_microseconds: int,
        consumer: str | None,
        connection: Connection,
    ) -> Plan:
        """Read the rows, decide, and write. ``consumer`` (None: nobody) gets the rows.

        A node of a cluster may lag behind. It may lack rows of a consumer or group: synchronize first. For UUIDs, it
        may lack only later changes of state: synchronize only if the call would change nothing.
        """
        by_name = selection.uuids is None or consumer is not None
        is_synced = by_name and self._database.sync_with_cluster(connection)
        rows = self.read_rows(connection, call, selection)
        plan = transitions.decide(call, rows)
        is_no_change = plan.error is not None or not plan.moves
        if is_no_change and not is_synced and self._database.sync_with_cluster(connection):
            rows = self.read_rows(connection, call, selection)
            plan = transitions.decide(call, rows)
        if consumer is not None and plan.error is None:
            self._name(connection, rows, consumer)
        if not plan.moves:
            self._database.dialect.ensure_durable(connection)
        self.apply(connection, plan.moves, ttl_microseconds)
        return plan

    def _name(self, connection: Connection, rows: Sequence[Row], consumer: str) -> None:
        """Give the rows to the consumer, unless it has them already.

        Raises NameConflict if another claim holds the name, or a row has another consumer.
        """
        live = reservations.live_of(connection, _project_of(rows), [consumer], self.grace).get(consumer, [])
        if {row.uuid for row in live} == {row.uuid for row in rows}:
            return
        if overdue := [row.uuid for row in live if row.overdue]:
            raise _OverdueHolder(overdue)
        requested = {row.resource: row.delta for row in rows}
        for row in rows:
            if row.consumer not in (None, consumer):
                reason = f"reservation {row.uuid} has the consumer {row.consumer}"
                raise exceptions.NameConflict(consumer, {row.resource: row.delta}, requested, reason)
        if live:
            held = {row.resource: row.delta for row in live}
            raise exceptions.NameConflict(consumer, held, requested, f"another claim, of {amounts(held)}, holds it")
        ordinals = {resource: index + 1 for index, resource in enumerate(sorted(row.resource for row in rows))}
        for row in sorted(rows, key=lambda row: row.id):
            if not reservations.name(connection, row, consumer, ordinals[row.resource]):
                raise ConcurrentChange

    def _single_statement(self, call: Call, selection: Selection) -> Callable[[Connection], Plan | None] | None:
        """Settles reservations that this process has made, without reading them first. None: that is not possible.

        The statement changes nothing if one of them is already settled, or overdue.
        """
        rows = self.reservation_cache.take(selection) if call in _SETTLES_RESERVED else None
        if not rows:
            return None
        plan = transitions.decide(call, rows)
        try:
            postings = self._postings(plan.moves, self._paths.known)
        except ConcurrentChange:
            return None
        if call != "commit" and any(row.provider_id is not None for row in rows):
            return None  # they give capacity back
        if any(posting.has_minimum for posting in postings):
            return None
        uuids, after = [row.uuid for row in rows], plan.moves[0].to
        settle = self._database.dialect.settle_in_single_statement
        return lambda connection: plan if settle(connection, uuids, after, self.grace, postings) else None

    def _postings(self, moves: Sequence[Move], nodes_of: Callable[[UsageKey], Sequence[Node] | None]) -> list[Posting]:
        """What the moves add to every usage row on their paths (``nodes_of``; None: not known).

        Raises ConcurrentChange: a path is not known, or see usages.merge.
        """
        postings: list[Posting] = []
        for key, amount in transitions.amounts(moves, self._counters_of).items():
            if any(amount):
                if (nodes := nodes_of(key)) is None:
                    raise ConcurrentChange
                postings += usages.along(nodes, *amount)
        return usages.merge(postings, self._database.dialect.lock_order)

    def _nodes(self, connection: Connection, key: UsageKey) -> Sequence[Node]:
        """The usage rows to charge, from the cache or the database. Raises RowsMissing."""
        nodes = self._paths.known(key)
        if nodes is None:
            nodes = self._paths.read(connection, key.project_id, [key.resource_key]).charged.get(key.resource_key)
        if nodes is None:
            raise RowsMissing(key)
        return nodes

    def expire_rows(self, uuids: Sequence[str]) -> int:
        """Expire those of these reservations that are overdue, in one transaction. Returns their number."""
        return self.write(
            lambda connection: self.expire(connection, reservations.by_uuids(connection, uuids, None, self.grace))
        )

    def expire(self, connection: Connection, rows: Sequence[Row]) -> int:
        """Expire those of these rows that are overdue. Returns their number. Raises ConcurrentChange."""
        moves = transitions.decide("expire", rows).moves
        self._paths.read_many(connection, transitions.amounts(moves, self._counters_of))
        self.apply(connection, moves)
        return len(moves)

    def write(self, work: Work[T], single_statement: Work[T | None] | None = None) -> T:
        """Run ``work`` in a transaction: see Database.write. Creates the usage rows that ``apply`` misses.

        Raises DatabaseError.
        """
        where = ""
        for _ in range(_MAX_ROWS_MADE):
            try:
                return self._database.write(work, single_statement)
            except RowsMissing as missing:
                project_id, key = missing.key.project_id, missing.key.resource_key
                where = f"project {project_id} and resource {key}"
                LOG.warning(
                    "Project %s has live reservations of %s but no usage row; the row is created. Run: "
                    "cyborg-quota heal",
                    project_id,
                    key,
                )
                self._paths.forget(project_id)
                self._paths.get(project_id, [key])
        raise exceptions.DatabaseError(
            f"The usage row of {where} is deleted each time it is created. Stop what deletes rows of quota_usages, and "
            "run: cyborg-quota heal"
        )

    def read_rows(self, connection: Connection, call: Call, selection: Selection) -> list[Row]:
        """The rows that the call selects, those of the current attempt if by name. Raises ReservationNotFound.

        Only a release and a transfer accept a name that holds nothing.
        """
        rows, is_complete = self._select_rows(connection, selection)
        if not is_complete and self._database.sync_with_cluster(connection):
            rows, is_complete = self._select_rows(connection, selection)
        if is_complete:
            return rows
        if selection.uuids is not None:
            known = {row.uuid for row in rows}
            raise exceptions.ReservationNotFound(next(uuid for uuid in selection.uuids if uuid not in known))
        if call in _FAILS_ON_UNKNOWN_NAME:
            raise exceptions.ReservationNotFound(selection.consumer or selection.group)
        return rows

    def _select_rows(self, connection: Connection, selection: Selection) -> tuple[list[Row], bool]:
        """The rows, and whether these are all that the call needs."""
        project_id, uuids = selection.project_id, selection.uuids
        if uuids is not None:
            rows = reservations.by_uuids(connection, uuids, project_id, self.grace)
            return rows, len(rows) == len(set(uuids))
        assert project_id is not None, "only UUIDs are unique across projects"
        holder = {"consumer": selection.consumer, "group": selection.group}
        rows = reservations.by_holder(connection, project_id, **holder, grace=self.grace)
        return transitions.current_attempt(rows), bool(rows)

    def apply(self, connection: Connection, moves: Sequence[Move], ttl_microseconds: int = 0) -> None:
        """Change the states of the rows, then inventories, then the counters.

        Raises ConcurrentChange if another call changed a row, or if a cached path is out of date. (Then none is cached
        any more.)
        """
        at = reservations.time_of(connection, [move.row for move in moves])
        by_kind = grouped(moves, lambda move: (move.row.state, move.to, move.row.generation))
        for (before, after, generation), of_kind in sorted(by_kind.items()):
            ids = [move.row.id for move in of_kind]
            change = functools.partial(reservations.move, connection, ids, before, after, self.grace)
            if not change(at=at, generation=generation, ttl_microseconds=ttl_microseconds):
                raise ConcurrentChange
        freed = summed(
            (InventoryKey(row.provider_id, row.resource), row.delta)
            for row, to in moves
            if row.provider_id is not None and to not in LIVE_STATES
        )
        if freed:
            inventories.give_back(connection, freed)
        try:
            charges.apply(connection, self._postings(moves, lambda key: self._nodes(connection, key)), at)
        except (ConcurrentChange, charges.Refused):
            self._paths.forget_all()
            raise ConcurrentChange from None


def repeat(database: Database, attempt: Callable[[bool], bool]) -> None:
    """Call ``attempt(is_retry)`` until it returns True. Raises DatabaseUnavailable after too many attempts."""
    began = time.monotonic()
    with database.deadline:
        for number in range(_MAX_ATTEMPTS):
            if number > 2:
                time.sleep(random.uniform(0, 0.002 * min(number, 25)))
            if attempt(number > 0):
                return
    raise exceptions.DatabaseUnavailable("too many concurrent changes of the same rows", time.monotonic() - began)


@dataclasses.dataclass(eq=False)
class _OverdueHolder(Exception):
    """Another claim that holds the name is overdue: expire these reservations, and retry."""

    uuids: Sequence[str]


def _project_of(rows: Iterable[Row]) -> str:
    """The project of all rows. Raises InvalidSelection if they have several, or if two are of one resource."""
    resources = [row.resource for row in rows]
    for resource in resources:
        if resources.count(resource) > 1:
            raise exceptions.InvalidSelection(
                f"Two of the reservations are of {resource}: a consumer holds one of each resource."
            )
    project_ids = {row.project_id for row in rows}
    if len(project_ids) > 1:
        raise exceptions.InvalidSelection(
            f"The reservations are of several projects ({', '.join(sorted(project_ids))}): name those of each project."
        )
    return project_ids.pop()
