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

from cyborg_quota import enforcement, exceptions, transitions
from cyborg_quota.db import inserting, projects, reservations, single_statement, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.ledger.open_cap import OpenCap
from cyborg_quota.ledger.path_cache import PathCache
from cyborg_quota.ledger.project_tree import Tree
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import COMMITTED, RESERVED, UNLIMITED, Claim, Constraint, Counters, Selection, State

_MAX_ATTEMPTS: Final = 200
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
class _PendingClaim:
    """A claim on its way. Its UUIDs are made once, so that a second try lands on the first one's rows.

    ``reserved``: its consumer had reserved it already, and these of its reservations were not committed yet.
    """

    claim: Claim
    uuids: dict[str, str]
    is_charged: bool = False
    reserved: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> _PendingClaim:
        return cls(claim, {resource: inserting.new_uuid() for resource in claim.deltas})


class ReserveRequest(NamedTuple):
    """What is to be charged, and how. ``life_microseconds`` None: committed at once, whatever the limits."""

    project_id: str
    claims: Sequence[Claim]
    group: str | None
    ttl_microseconds: int | None
    sees_all: bool

    @property
    def state(self) -> State:
        return COMMITTED if self.ttl_microseconds is None else RESERVED


class Reserver:
    """Charges claims."""

    def __init__(
        self, database: Database, paths: PathCache, limits: LimitDriver, settler: Settler, tree: Tree, *, cap: OpenCap
    ) -> None:
        self._database = database
        self._cap = cap
        self._tree = tree
        self._paths = paths
        self._limits = limits
        self._settler = settler

    def charge(self, request: ReserveRequest) -> list[str]:
        """Charge all claims or none. Returns UUIDs, claim by claim."""
        pending = [_PendingClaim.of(claim) for claim in request.claims]
        self._charge(request, pending)
        return [uuid for one in pending for uuid in one.uuids.values()]

    def adopt(self, request: ReserveRequest) -> list[str]:
        """The same for what is committed at once; what a consumer has reserved already is committed.

        A claim is charged anew if its reservation is rolled back, expires or is released before it can be committed.
        What this call has charged is not looked at again: if it was released since, that release came later.
        """
        pending = [_PendingClaim.of(claim) for claim in request.claims]
        began = time.monotonic()
        for _ in range(_MOST_ADOPTIONS):
            self._charge(request, pending)
            uuids = [uuid for one in pending for uuid in one.reserved]
            try:
                if uuids:
                    self._settler.settle("commit", Selection(request.project_id, uuids=uuids))
            except _ENDED:
                pending = [_PendingClaim.of(one.claim) if one.reserved else one for one in pending]
            else:
                return [uuid for one in pending for uuid in one.uuids.values()]
        raise exceptions.DatabaseUnavailable("others kept changing the same rows", time.monotonic() - began)

    def _charge(self, request: ReserveRequest, pending: Sequence[_PendingClaim]) -> None:
        """Charge those of these claims that are not charged yet."""
        began = time.monotonic()
        with self._database.deadline():
            for attempt in range(_MAX_ATTEMPTS):
                if attempt > 2:
                    time.sleep(random.uniform(0, 0.002 * min(attempt, 25)))
                if self._try(request, [one for one in pending if not one.is_charged]):
                    for one in pending:
                        one.is_charged = True
                    return
        raise exceptions.DatabaseUnavailable("others kept changing the same rows", time.monotonic() - began)

    def _try(self, request: ReserveRequest, pending: Sequence[_PendingClaim]) -> bool:
        """One attempt at what is still to be charged. False: the world has changed, try again."""
        if not pending:
            return True
        amounts = enforcement.requested(one.claim for one in pending)
        resources = sorted({resource for one in pending for resource in one.claim.deltas})
        path = self._path(request, resources, is_limited=bool(amounts))
        constraints = self._constraints(request, path, amounts)
        changes = _changes(path, constraints, {**dict.fromkeys(resources, 0), **amounts}, request.state)
        claims = [one.claim for one in pending]
        cap = self._cap if request.state == RESERVED else _NO_CAP
        counted = cap.to_count(request.project_id, claims, amounts)
        cap.bound(request.project_id, changes, counted)
        nodes = [(path.nodes(resource) or ())[0] for resource in sorted(counted)]
        rows = _rows(request, path, pending)

        def work(connection: Connection) -> bool:
            if not _insert(connection, request, rows):
                return False
            if not cap.charge(connection, changes, nodes, claims):
                raise _Refused
            return True

        in_one_statement = None if counted else self._in_one_statement(request, rows, changes)
        try:
            if self._database.write(work, in_one_statement):
                if request.state == RESERVED:
                    self._settler.recent.remember(_to_row(row) for row in rows)
                return True
        except DuplicateEntry:
            pass  # a first attempt of ours landed, or another delivery of this call was quicker
        except (_Refused, exceptions.TooManyOpenReservations) as refusal:
            self._raise_refusal(request, path, constraints, amounts)  # a limit that is passed is said first
            if isinstance(refusal, exceptions.QuotaError):
                raise
            return False
        return self._resolve_duplicate(request, pending)

    def _in_one_statement(
        self, request: ReserveRequest, rows: Sequence[inserting.NewReservation], changes: Sequence[usages.Change]
    ) -> Callable[[Connection], bool | None] | None:
        """The same in one statement, where that is possible."""
        if request.state != RESERVED or not self._database.supports_single_statement(len(changes)):
            return None
        return lambda connection: single_statement.reserve(connection, rows, changes) or None

    def _path(self, request: ReserveRequest, resources: Sequence[str], *, is_limited: bool) -> projects.ProjectPath:
        """The path to charge; first put right, where the limits' source knows the project's parent.

        What no limit can refuse (an adoption, negative deltas) does not ask that source, and so cannot fail with it.
        """
        if is_limited and request.ttl_microseconds is not None:
            self._tree.follow(request.project_id, self._limits.parent_of(request.project_id), self._limits.origin)
        return self._paths.get(request.project_id, resources)

    def _constraints(
        self, request: ReserveRequest, path: projects.ProjectPath, amounts: dict[str, int]
    ) -> list[Constraint]:
        if request.ttl_microseconds is None or not amounts:
            return []
        project_ids = path.limiting(self._limits.origin)
        constraints = self._limits.get_constraints(project_ids, sorted(amounts))
        unknown_projects = {constraint.project_id for constraint in constraints} - set(project_ids)
        if unknown_projects:
            raise exceptions.ConfigurationError(
                f"The limit driver returned a constraint for {', '.join(sorted(unknown_projects))}, which is not an "
                f"ancestor of {request.project_id}."
            )
        return constraints

    def _raise_refusal(
        self,
        request: ReserveRequest,
        charged: projects.ProjectPath,
        constraints: Sequence[Constraint],
        amounts: dict[str, int],
    ) -> None:
        """Raise what the figures say now; return where they show room, or the path is not the one that was charged.

        ``from None``: the row's refusal is how it was found, and no part of the answer.
        """
        self._paths.forget(request.project_id)
        path = self._paths.get(request.project_id, sorted(amounts))
        if (path.project_ids, path.origins) != (charged.project_ids, charged.origins):
            return
        figures = self._database.read_synced(lambda connection: usages.read(connection, path.project_ids, amounts))
        found = enforcement.find_violations(request.project_id, constraints, figures, amounts)
        if found:
            raise exceptions.OverQuota(
                found if request.sees_all else enforcement.redact(found, request.project_id)
            ) from None
        own = {resource: figures.get((request.project_id, resource), Counters()) for resource in amounts}
        for resource in enforcement.overflowing(own, amounts):
            raise exceptions.UsageOverflow(request.project_id, resource, amounts[resource]) from None
        self._cap.look(request.project_id, own, amounts)

    def _resolve_duplicate(self, request: ReserveRequest, pending: Sequence[_PendingClaim]) -> bool:
        """Somebody holds what was asked for: ourselves (True: all done), or the same consumers, rightly or not."""
        consumers = [one.claim.consumer for one in pending if one.claim.consumer is not None]
        uuids = [uuid for one in pending for uuid in one.uuids.values()]

        def look(connection: Connection) -> tuple[list[transitions.Row], dict[str | None, list[transitions.Row]]]:
            self._database.ensure_durable(connection)
            return (
                reservations.by_uuids(connection, uuids, request.project_id, self._settler.grace),
                reservations.live_of(connection, request.project_id, consumers, self._settler.grace),
            )

        landed, held = self._database.read_synced(look)
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


def _match(one: _PendingClaim, held: Sequence[transitions.Row]) -> None:
    """The consumer holds exactly this already: its rows are the answer. Raises ReservationConflict."""
    deltas = {row.resource: row.delta for row in held}
    if deltas != dict(one.claim.deltas):
        raise exceptions.ReservationConflict(str(one.claim.consumer), deltas, one.claim.deltas)
    uuids = {row.resource: row.uuid for row in held}
    one.uuids = {resource: uuids[resource] for resource in one.claim.deltas}
    one.is_charged = True
    one.reserved = tuple(row.uuid for row in held if row.state == RESERVED)


def _insert(connection: Connection, request: ReserveRequest, rows: Sequence[inserting.NewReservation]) -> bool:
    """Insert all rows. False: one of their consumers holds something already."""
    if len(rows) == 1 and rows[0].consumer is not None and rows[0].ttl_microseconds is not None:
        return inserting.insert_if_free(connection, rows[0])
    consumers = {row.consumer for row in rows if row.consumer is not None}
    if consumers and reservations.any_live(connection, request.project_id, consumers):
        return False
    inserting.insert(connection, rows)
    return True


def _to_row(row: inserting.NewReservation) -> transitions.Row:
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
    path: projects.ProjectPath, constraints: Sequence[Constraint], amounts: dict[str, int], state: State
) -> list[usages.Change]:
    """What each row on the path is asked to take, in lock order.

    An amount of 0 (only negative deltas) adds nothing, but checks that the project's own row still exists: the project
    may have been removed since the path was read.
    """
    limits_by_scope = enforcement.limits_by_scope(constraints)
    changes = []
    for resource, amount in amounts.items():
        reserved, used = transitions.effect(None, state, amount)
        nodes = path.nodes(resource) or ()
        for node in nodes if amount else nodes[:1]:
            is_leaf = node.project_id == path.project_ids[0]
            max_held = limits_by_scope.get((node.project_id, resource, "project")) if is_leaf else None
            max_subtree = limits_by_scope.get((node.project_id, resource, "subtree"))
            changes.append(
                usages.Change(
                    node,
                    reserved=reserved if is_leaf else 0,
                    used=used if is_leaf else 0,
                    subtree=amount,
                    max_held=None if max_held is None else max_held - amount,
                    max_subtree=None if max_subtree is None else max_subtree - amount,
                )
            )
    return sorted(changes, key=usages.by_depth)


def _rows(
    request: ReserveRequest, path: projects.ProjectPath, pending: Sequence[_PendingClaim]
) -> list[inserting.NewReservation]:
    leaves = {resource: (path.nodes(resource) or ())[0] for one in pending for resource in one.claim.deltas}
    return [
        inserting.NewReservation(
            uuid=one.uuids[resource],
            usage_id=leaves[resource].usage_id,
            project_id=request.project_id,
            resource=resource,
            delta=delta,
            consumer=one.claim.consumer,
            group=request.group if one.claim.group is None else one.claim.group,
            state=request.state,
            ttl_microseconds=request.ttl_microseconds,
            place=None if one.claim.consumer is None else sorted(one.claim.deltas).index(resource) + 1,
            source=one.claim.source,
        )
        for one in pending
        for resource, delta in one.claim.deltas.items()
    ]
