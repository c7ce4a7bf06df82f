# SPDX-License-Identifier: Apache-2.0
"""How a reserve happens: limits first, then one transaction that checks and charges, then the verdict.

    look up the path and the constraints                                   (no transaction)
    INSERT the reservations, UPDATE each usage row on the path, COMMIT     (one transaction)

If a row refuses, everything is rolled back, and the figures are read to say why. If they show room after all, the
refusal was of a moment that has passed, or the tree has changed: once more from the top.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cyborg_quota import exceptions, overs, transitions
from cyborg_quota.db import at_once, inserting, projects, reservations, usages
from cyborg_quota.db.api import Connection, Database, DuplicateEntry
from cyborg_quota.drivers.open_cap import OpenCap
from cyborg_quota.drivers.paths import Paths
from cyborg_quota.drivers.settling import Settler
from cyborg_quota.drivers.trees import Tree
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import COMMITTED, RESERVED, UNLIMITED, Claim, Constraint, Figures, Selection, State

_MOST_TRIES: Final = 200
"""So often a request may meet figures that changed under it. Each try ends with a read that showed room."""


_MOST_ADOPTIONS: Final = 20
"""So often the reservation that an adoption found may end before it is committed."""

_ENDED: Final = (
    exceptions.ReservationExpired,
    exceptions.ReservationNotFound,
    exceptions.ReservationReleased,
    exceptions.ReservationRolledBack,
)
"""What a commit raises where the reservation has ended. (Not found: it was also purged.)"""

_NO_CAP: Final = OpenCap(UNLIMITED)
"""For what is committed at once: it is never open."""


class _Refused(Exception):
    """A usage row refused its part: roll back."""


@dataclasses.dataclass(slots=True)
class _Pending:
    """A claim on its way. Its UUIDs are made once, so that a second try lands on the first one's rows.

    ``reserved``: its consumer had reserved it already, and these of its reservations were not committed yet.
    """

    claim: Claim
    uuids: dict[str, str]
    is_charged: bool = False
    reserved: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> _Pending:
        return cls(claim, {resource: inserting.new_uuid() for resource in claim.deltas})


class Order(NamedTuple):
    """What is to be charged, and how. ``life_microseconds`` None: committed at once, whatever the limits."""

    project_id: str
    claims: Sequence[Claim]
    group: str | None
    life_microseconds: int | None
    sees_all: bool

    @property
    def state(self) -> State:
        return COMMITTED if self.life_microseconds is None else RESERVED


class Reserver:
    """Charges claims."""

    def __init__(
        self, database: Database, paths: Paths, limits: LimitDriver, settler: Settler, tree: Tree, *, cap: OpenCap
    ) -> None:
        self._database = database
        self._cap = cap
        self._tree = tree
        self._paths = paths
        self._limits = limits
        self._settler = settler

    def charge(self, order: Order) -> list[str]:
        """Charge all claims or none. Returns UUIDs, claim by claim."""
        pending = [_Pending.of(claim) for claim in order.claims]
        self._charge(order, pending)
        return [uuid for one in pending for uuid in one.uuids.values()]

    def adopt(self, order: Order) -> list[str]:
        """The same for what is committed at once; what a consumer has reserved already is committed.

        A claim is charged anew if its reservation is rolled back, expires or is released before it can be committed.
        What this call has charged is not looked at again: if it was released since, that release came later.
        """
        pending = [_Pending.of(claim) for claim in order.claims]
        began = time.monotonic()
        for _ in range(_MOST_ADOPTIONS):
            self._charge(order, pending)
            uuids = [uuid for one in pending for uuid in one.reserved]
            try:
                if uuids:
                    self._settler.settle("commit", Selection(order.project_id, uuids=uuids))
            except _ENDED:
                pending = [_Pending.of(one.claim) if one.reserved else one for one in pending]
            else:
                return [uuid for one in pending for uuid in one.uuids.values()]
        raise exceptions.DatabaseUnavailable("others kept changing the same rows", time.monotonic() - began)

    def _charge(self, order: Order, pending: Sequence[_Pending]) -> None:
        """Charge those of these claims that are not charged yet."""
        began = time.monotonic()
        with self._database.one_call():
            for attempt in range(_MOST_TRIES):
                if attempt > 2:
                    time.sleep(random.uniform(0, 0.002 * min(attempt, 25)))
                if self._try(order, [one for one in pending if not one.is_charged]):
                    for one in pending:
                        one.is_charged = True
                    return
        raise exceptions.DatabaseUnavailable("others kept changing the same rows", time.monotonic() - began)

    def _try(self, order: Order, pending: Sequence[_Pending]) -> bool:
        """One attempt at what is still to be charged. False: the world has changed, try again."""
        if not pending:
            return True
        request = overs.requested(one.claim for one in pending)
        resources = sorted({resource for one in pending for resource in one.claim.deltas})
        way = self._way(order, resources, is_limited=bool(request))
        constraints = self._constraints(order, way, request)
        changes = _changes(way, constraints, {**dict.fromkeys(resources, 0), **request}, order.state)
        claims = [one.claim for one in pending]
        cap = self._cap if order.state == RESERVED else _NO_CAP
        counted = cap.to_count(order.project_id, claims, request)
        cap.bound(order.project_id, changes, counted)
        nodes = [(way.nodes(resource) or ())[0] for resource in sorted(counted)]
        rows = _rows(order, way, pending)

        def work(connection: Connection) -> bool:
            if not _insert(connection, order, rows):
                return False
            if not cap.charge(connection, changes, nodes, claims):
                raise _Refused
            return True

        whole = None if counted else self._whole(order, rows, changes)
        try:
            if self._database.write(work, whole):
                if order.state == RESERVED:
                    self._settler.recent.remember(_facts(row) for row in rows)
                return True
        except DuplicateEntry:
            pass  # a first attempt of ours landed, or another delivery of this call was quicker
        except (_Refused, exceptions.TooManyOpenReservations) as refusal:
            self._explain(order, way, constraints, request)  # a limit that is passed is said first
            if isinstance(refusal, exceptions.QuotaError):
                raise
            return False
        return self._recognize(order, pending)

    def _whole(
        self, order: Order, rows: Sequence[inserting.NewReservation], changes: Sequence[usages.Change]
    ) -> Callable[[Connection], bool | None] | None:
        """The same in one statement, where that is possible."""
        if order.state != RESERVED or not self._database.takes_at_once(len(changes)):
            return None
        return lambda connection: at_once.reserve(connection, rows, changes) or None

    def _way(self, order: Order, resources: Sequence[str], *, is_limited: bool) -> projects.Way:
        """The path to charge; first put right, where the limits' source knows the project's parent.

        What no limit can refuse (an adoption, negative deltas) does not ask that source, and so cannot fail with it.
        """
        if is_limited and order.life_microseconds is not None:
            self._tree.follow(order.project_id, self._limits.parent_of(order.project_id), self._limits.origin)
        return self._paths.get(order.project_id, resources)

    def _constraints(self, order: Order, way: projects.Way, request: dict[str, int]) -> list[Constraint]:
        if order.life_microseconds is None or not request:
            return []
        path = way.limiting(self._limits.origin)
        constraints = self._limits.get_constraints(path, sorted(request))
        strangers = {constraint.project_id for constraint in constraints} - set(path)
        if strangers:
            raise exceptions.ConfigurationError(
                f"The limit driver named {', '.join(sorted(strangers))}, not an ancestor of {order.project_id}."
            )
        return constraints

    def _explain(
        self, order: Order, charged: projects.Way, constraints: Sequence[Constraint], request: dict[str, int]
    ) -> None:
        """Raise what the figures say now; return where they show room, or the path is not the one that was charged.

        ``from None``: the row's refusal is how it was found, and no part of the answer.
        """
        self._paths.forget(order.project_id)
        way = self._paths.get(order.project_id, sorted(request))
        if (way.project_ids, way.origins) != (charged.project_ids, charged.origins):
            return
        figures = self._database.read_surely(lambda connection: usages.read(connection, way.project_ids, request))
        found = overs.judge(order.project_id, constraints, figures, request)
        if found:
            raise exceptions.OverQuota(found if order.sees_all else overs.veiled(found, order.project_id)) from None
        own = {resource: figures.get((order.project_id, resource), Figures()) for resource in request}
        for resource in overs.overflowing(own, request):
            raise exceptions.UsageOverflow(order.project_id, resource, request[resource]) from None
        self._cap.look(order.project_id, own, request)

    def _recognize(self, order: Order, pending: Sequence[_Pending]) -> bool:
        """Somebody holds what was asked for: ourselves (True: all done), or the same consumers, rightly or not."""
        consumers = [one.claim.consumer for one in pending if one.claim.consumer is not None]
        uuids = [uuid for one in pending for uuid in one.uuids.values()]

        def look(connection: Connection) -> tuple[list[transitions.Row], dict[str | None, list[transitions.Row]]]:
            self._database.make_lasting(connection)
            return (
                reservations.by_uuids(connection, uuids, order.project_id, self._settler.grace),
                reservations.live_of(connection, order.project_id, consumers, self._settler.grace),
            )

        landed, held = self._database.read_surely(look)
        if landed:
            return True
        overdue = [row.uuid for rows in held.values() for row in rows if row.overdue]
        if overdue:
            self._settler.expire_rows(overdue)
            return False
        for one in pending:
            if one.claim.consumer in held:
                _match(one, held[one.claim.consumer])
        return False


def _match(one: _Pending, held: Sequence[transitions.Row]) -> None:
    """The consumer holds exactly this already: its rows are the answer. Raises ReservationConflict."""
    deltas = {row.resource: row.delta for row in held}
    if deltas != dict(one.claim.deltas):
        raise exceptions.ReservationConflict(str(one.claim.consumer), deltas, one.claim.deltas)
    uuids = {row.resource: row.uuid for row in held}
    one.uuids = {resource: uuids[resource] for resource in one.claim.deltas}
    one.is_charged = True
    one.reserved = tuple(row.uuid for row in held if row.state == RESERVED)


def _insert(connection: Connection, order: Order, rows: Sequence[inserting.NewReservation]) -> bool:
    """Insert all rows. False: one of their consumers holds something already."""
    if len(rows) == 1 and rows[0].consumer is not None and rows[0].life_microseconds is not None:
        return inserting.insert_if_free(connection, rows[0])
    consumers = {row.consumer for row in rows if row.consumer is not None}
    if consumers and reservations.any_live(connection, order.project_id, consumers):
        return False
    inserting.insert(connection, rows)
    return True


def _facts(row: inserting.NewReservation) -> transitions.Row:
    """What a settling call needs to know of a row that has just been made. (Not its id, which only SQL needs.)"""
    return transitions.Row(
        id=0,
        uuid=row.uuid,
        usage_id=row.usage_id,
        project_id=row.project_id,
        resource=row.resource,
        delta=row.delta,
        state=RESERVED,
        overdue=False,
        consumer=row.consumer,
    )


def _changes(
    way: projects.Way, constraints: Sequence[Constraint], request: dict[str, int], state: State
) -> list[usages.Change]:
    """What each row on the path is asked to take, in lock order.

    An amount of 0 (only negative deltas) adds nothing, but checks that the project's own row still exists: the project
    may have been removed since the path was read.
    """
    rooms = overs.rooms(constraints)
    changes = []
    for resource, amount in request.items():
        reserved, used = transitions.effect(None, state, amount)
        nodes = way.nodes(resource) or ()
        for node in nodes if amount else nodes[:1]:
            is_leaf = node.project_id == way.project_ids[0]
            room = rooms.get((node.project_id, resource, "project")) if is_leaf else None
            subtree_room = rooms.get((node.project_id, resource, "subtree"))
            changes.append(
                usages.Change(
                    node,
                    reserved=reserved if is_leaf else 0,
                    used=used if is_leaf else 0,
                    subtree=amount,
                    room=None if room is None else room - amount,
                    subtree_room=None if subtree_room is None else subtree_room - amount,
                )
            )
    return sorted(changes, key=usages.by_depth)


def _rows(order: Order, way: projects.Way, pending: Sequence[_Pending]) -> list[inserting.NewReservation]:
    leaves = {resource: (way.nodes(resource) or ())[0] for one in pending for resource in one.claim.deltas}
    return [
        inserting.NewReservation(
            uuid=one.uuids[resource],
            usage_id=leaves[resource].usage_id,
            project_id=order.project_id,
            resource=resource,
            delta=delta,
            consumer=one.claim.consumer,
            group=order.group if one.claim.group is None else one.claim.group,
            state=order.state,
            life_microseconds=order.life_microseconds,
            place=None if one.claim.consumer is None else sorted(one.claim.deltas).index(resource) + 1,
            source=one.claim.source,
        )
        for one in pending
        for resource, delta in one.claim.deltas.items()
    ]
