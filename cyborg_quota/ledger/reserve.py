# SPDX-License-Identifier: Apache-2.0
"""Reserves: read the limits, then check and charge in one transaction.

    read the path and the constraints                                      (before the transaction)
    INSERT the reservations, UPDATE each usage row on the path, COMMIT     (one transaction)

(PostgreSQL's functions UPDATE first.)
If the UPDATE of a usage row matches no row, everything is rolled back, and the counters are read to find the reason.
If they are within all limits, another transaction has freed the amount meanwhile, or the tree has changed: retry from
the beginning.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cyborg_quota import enforcement, exceptions, transitions
from cyborg_quota.db import new_reservations, path_state, reservations, resource_providers, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.ledger.capacity_claims import CapacityClaimer, CapacityRefused, Placement, ReserveResult
from cyborg_quota.ledger.pending_claims import PendingClaim, can_move
from cyborg_quota.ledger.pod_claims import BindingChanged
from cyborg_quota.ledger.project_tree import PathCache, Tree
from cyborg_quota.ledger.requests import ReserveRequest
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import (
    COMMITTED,
    RESERVED,
    TOTAL,
    Claim,
    Constraint,
    ResourceKey,
    Selection,
    State,
    UsageKey,
)

_MAX_ATTEMPTS: Final = 200
"""The most attempts of one request. One that was refused is repeated if the counters that are read then allow it."""

_MAX_ADOPTION_ATTEMPTS: Final = 20
"""The most attempts of one adoption. One is repeated if the consumer's reservation ended before its commit."""

_ENDED: Final = (
    exceptions.ReservationExpired,
    exceptions.ReservationNotFound,
    exceptions.ReservationReleased,
    exceptions.ReservationRolledBack,
)
"""The errors of a commit of a reservation that has ended. (ReservationNotFound: it ended and was purged meanwhile.)"""

class _Refused(Exception):
    """The UPDATE of a usage row matched no row: roll back."""


class _ChargePlan(NamedTuple):
    """The path and the limits of a reserve, its changes of usage rows, and what it takes over all pods and in pods."""

    path: ProjectPath
    constraints: list[Constraint] | None
    changes: list[usages.Change]
    amounts: Mapping[ResourceKey, int]

    @property
    def is_in_pod(self) -> bool:
        return any(key.pod for key in self.amounts)


class Reserver:
    """Reserves and adopts claims."""

    def __init__(
        self,
        database: Database,
        paths: PathCache,
        limits: LimitDriver,
        settler: Settler,
        tree: Tree,
        *,
        capacity: CapacityClaimer,
    ) -> None:
        self._database = database
        self._capacity = capacity
        self._tree = tree
        self._paths = paths
        self._limits = limits
        self._settler = settler

    def charge(self, request: ReserveRequest) -> list[str]:
        """Charge all claims or none. Returns the UUIDs, by claim, in the order of its deltas."""
        pending = [_to_pending(request, claim) for claim in request.claims]
        try:
            self._charge_pending(request, pending)
        except exceptions.OverQuota as error:
            raise self.visible(request, error) from None
        return [uuid for item in pending for uuid in item.uuids.values()]

    def visible(self, request: ReserveRequest, error: exceptions.OverQuota) -> exceptions.OverQuota:
        """The error of ``raise_refusal``, as the caller may see it."""
        if request.sees_all:
            return error
        path = self._paths.get(request.project_id, ())
        return exceptions.OverQuota(enforcement.redact(error.overs, path.project_ids))

    def adopt(self, request: ReserveRequest) -> list[str]:
        """Charge all claims as committed, and commit those that their consumers have already reserved.

        If such a reservation is rolled back, expires or is released before it is committed, its claim is charged again.
        Claims that an earlier attempt of this call has charged are skipped: if they have been released since, that
        release was later than this call's charge.
        """
        pending = [_to_pending(request, claim) for claim in request.claims]
        began = time.monotonic()
        for _ in range(_MAX_ADOPTION_ATTEMPTS):
            self._charge_pending(request, pending)
            uuids = [uuid for item in pending for uuid in item.reserved]
            try:
                if uuids:
                    self._settler.settle("commit", Selection(request.project_id, uuids=uuids))
            except _ENDED:
                pending = [_to_pending(request, item.claim) if item.reserved else item for item in pending]
            else:
                return [uuid for item in pending for uuid in item.uuids.values()]
        raise exceptions.DatabaseUnavailable("too many concurrent changes of the same rows", time.monotonic() - began)

    def _charge_pending(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:
        """Charge those of these claims that are not yet charged."""
        began = time.monotonic()
        with self._database.deadline():
            for attempt in range(_MAX_ATTEMPTS):
                if attempt > 2:
                    time.sleep(random.uniform(0, 0.002 * min(attempt, 25)))
                uncharged = [item for item in pending if not item.is_charged]
                if not uncharged or self._attempt(request, uncharged):
                    for item in pending:
                        item.is_charged = True
                    return
        raise exceptions.DatabaseUnavailable("too many concurrent changes of the same rows", time.monotonic() - began)

    def _attempt(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> bool:
        """Attempt once to charge these claims. False: the tree or the counters have changed, retry."""
        placement = self._capacity.place(pending)
        plan = self._plan(request, _amounts(pending, in_pods=placement.is_complete))
        if not placement.is_complete:
            return self._refuse_unplaced(request, plan, pending)
        return self._charge_placed(request, pending, placement, plan)

    def _charge_placed(
        self, request: ReserveRequest, pending: Sequence[PendingClaim], placement: Placement, plan: _ChargePlan
    ) -> bool:
        """Charge claims of which the providers are chosen. False: as ``_attempt``."""
        changes = plan.changes
        rows = _rows(request, plan.path, pending)

        def work(connection: Connection) -> ReserveResult:
            if not self._bind_and_insert(connection, request, rows, placement):
                return False
            self._capacity.charge(connection, placement, is_limited=request.state == RESERVED)
            if not self._database.dialect.charge_all(connection, changes):
                raise _Refused
            return True

        single_statement = None  # (claims in pods need several statements)
        if not plan.is_in_pod and not placement.binding_changes:
            single_statement = self._single_statement(request, rows, changes, placement)
        try:
            if placement.is_done(self._database.write(work, single_statement)):
                self._after_charge(request, rows, placement)
                return True
        except (DuplicateEntry, BindingChanged):
            pass  # rows of this call or of its consumers may exist already
        except (_Refused, CapacityRefused) as refusal:
            self._refuse(request, plan, pending, refusal)
            return False
        return bool(self._resolve_duplicate(request, pending))

    def _bind_and_insert(
        self,
        connection: Connection,
        request: ReserveRequest,
        rows: Sequence[new_reservations.NewReservation],
        placement: Placement,
    ) -> bool:
        """Change bindings, then insert all rows. With changes, raises BindingChanged instead of returning False."""
        if not placement.binding_changes:
            return _insert(connection, request, rows)
        self._capacity.bind(connection, placement)
        if not _insert(connection, request, rows):
            raise BindingChanged
        return True

    def _plan(self, request: ReserveRequest, amounts: dict[ResourceKey, int]) -> _ChargePlan:
        path = self.path(request, sorted(amounts), is_limited=True)
        constraints = self.constraints(request, path, amounts)
        changes = changes_with_bounds(path, constraints, amounts, request.state)
        return _ChargePlan(path, constraints, changes, amounts)

    def _after_charge(
        self, request: ReserveRequest, rows: Sequence[new_reservations.NewReservation], placement: Placement
    ) -> None:
        if request.state == COMMITTED:
            self._capacity.warn_if_exceeded(placement)
        else:
            self._settler.reservation_cache.remember(new_reservations.to_row(row) for row in rows)

    def _refuse_unplaced(self, request: ReserveRequest, plan: _ChargePlan, pending: Sequence[PendingClaim]) -> bool:
        """No provider fits: use what the consumers hold already, or raise OverQuota or OverCapacity. False: retry."""
        is_charged = self._resolve_duplicate(request, pending)
        if is_charged is None and not any(item.is_charged for item in pending):
            for item in pending:
                if item.refusal is not None:  # (the limit of a pod, and no other pod has room)
                    raise item.refusal
            self._refuse(request, plan, pending, CapacityRefused(None))
        return bool(is_charged)

    def _refuse(
        self, request: ReserveRequest, plan: _ChargePlan, pending: Sequence[PendingClaim], refusal: Exception
    ) -> None:
        """Raise the reason of a refusal, OverQuota before all others. Returns if the request may fit now: retry."""
        if isinstance(refusal, CapacityRefused) and self._capacity.tries_next(pending, refusal.key):
            return
        if isinstance(refusal, CapacityRefused) and plan.is_in_pod and self._capacity.has_other_pods(pending):
            return
        try:
            if not self.raise_refusal(request, plan.path, plan.constraints, plan.amounts):
                return
        except exceptions.OverQuota as error:
            if not can_move(pending, error):
                raise
            room = self._pod_room(request, error)
            for item in pending:
                item.pod_room = room
            return
        if isinstance(refusal, CapacityRefused):
            self._capacity.raise_refusal(
                pending, refusal.key, is_limited=request.state == RESERVED, sees_all=request.sees_all
            )

    def _pod_room(self, request: ReserveRequest, refusal: exceptions.OverQuota) -> dict[ResourceKey, int]:
        """What the limits per pod permit to the project now, by resource and pod: one read for all pods.

        A limit that refused and cannot be read, because it was removed or its driver lists none, permits nothing.
        """
        project_id = request.project_id
        state = self._database.read_synced(lambda connection: path_state.read(connection, project_id, pod=""))
        (bounds,) = self._limits.bounds([state], ())
        limits = [limit for limit in bounds.constraints if limit.pod]
        all_of_it = {limit.key.resource_key: enforcement.TOO_MUCH for limit in limits}
        overs = enforcement.find_violations(project_id, limits, state.counters, all_of_it)
        rooms = {ResourceKey(over.resource, over.pod): 0 for over in refusal.overs if over.pod is not None}
        for over in sorted(overs, key=enforcement.room, reverse=True):
            rooms[ResourceKey(over.resource, str(over.pod))] = enforcement.room(over)
        return rooms

    def _single_statement(
        self,
        request: ReserveRequest,
        rows: Sequence[new_reservations.NewReservation],
        changes: Sequence[usages.Change],
        placement: Placement,
    ) -> Callable[[Connection], ReserveResult] | None:
        """The function that reserves in one statement; None if that is not supported."""
        if request.state != RESERVED or not self._database.supports_single_statement(len(changes)):
            return None
        reserve, claims = self._database.dialect.reserve_in_single_statement, placement.inventory_claims
        return lambda connection: reserve(connection, rows, changes, claims)

    def path(self, request: ReserveRequest, keys: Sequence[ResourceKey], *, is_limited: bool) -> ProjectPath:
        """The path to charge. If the source of limits reports another parent, the project is moved first.

        Calls that no limit can refuse (adoptions, reductions) do not read that source, so an outage of it does not
        affect them.
        """
        if is_limited and request.ttl_microseconds is not None:
            parent_id = self._limits.parent_of(request.project_id)
            if parent_id is not None:
                self._tree.follow(request.project_id, parent_id, self._limits.tree_source)
        return self._paths.get(request.project_id, keys)

    def constraints(
        self, request: ReserveRequest, path: ProjectPath, amounts: Mapping[ResourceKey, int]
    ) -> list[Constraint] | None:
        """The limits of these amounts, as they were read with the path. None: the request is not limited."""
        if request.ttl_microseconds is None or not amounts:
            return None
        constraints, error = self._constraints(path, amounts)
        if isinstance(error, exceptions.LimitNotSet):  # (it may have been set since the path was read)
            self._paths.forget(request.project_id)
            constraints, error = self._constraints(self._paths.get(request.project_id, sorted(amounts)), amounts)
        if error is not None:
            raise error
        unknown_projects = {constraint.project_id for constraint in constraints} - {*path.project_ids, TOTAL}
        if unknown_projects:
            raise exceptions.ConfigurationError(
                f"The limit driver returned a constraint for {', '.join(sorted(unknown_projects))}, which is not an "
                f"ancestor of {path.project_ids[0]}."
            )
        return constraints

    def _constraints(
        self, path: ProjectPath, amounts: Mapping[ResourceKey, int]
    ) -> tuple[list[Constraint], exceptions.QuotaError | None]:
        assert path.limits is not None, "get() reads the limits"
        (limits,) = self._limits.bounds([path.limits], sorted(key.resource for key in amounts if not key.pod))
        return [one for one in limits.constraints if one.key.resource_key in amounts], limits.error

    def raise_refusal(
        self,
        request: ReserveRequest,
        charged: ProjectPath,
        constraints: Sequence[Constraint] | None,
        amounts: Mapping[ResourceKey, int],
    ) -> bool:
        """Raise OverQuota (with all violations: see ``visible``) or UsageOverflow if the counters explain the refusal.

        True: they are within all limits. False: the path that was charged, or its limits, are out of date; the caller
        must retry.
        """
        self._paths.forget(request.project_id)
        path = self._paths.get(request.project_id, sorted(amounts))
        if path.until != charged.until or any(path.nodes(key) != charged.nodes(key) for key in amounts):
            return False
        constraints = constraints or ()
        owners = {*path.project_ids, *(constraint.project_id for constraint in constraints)}
        counters = self._database.read_synced(lambda connection: usages.read(connection, owners, amounts))
        violations = enforcement.find_violations(request.project_id, constraints, counters, amounts)
        if violations:
            raise exceptions.OverQuota(violations) from None
        widths = enforcement.widths(request.project_id, amounts)
        for over in enforcement.find_violations(request.project_id, widths, counters, amounts):
            # (The counter of the resource overflows if that of a pod does; a tenant does not see the pod.)
            raise exceptions.UsageOverflow(request.project_id, over.resource, over.requested) from None
        return True

    def _resolve_duplicate(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> bool | None:
        """Look for rows of this call, or of its consumers. True: an earlier attempt of this call was committed.

        False: overdue reservations of the consumers were expired, retry. None: nothing was changed; claims whose
        consumers already hold exactly these deltas are marked as charged. Raises ReservationConflict if a consumer
        holds other deltas.
        """
        consumers = [item.claim.consumer for item in pending if item.claim.consumer is not None]
        uuids = [uuid for item in pending for uuid in item.uuids.values()]

        def read_rows(connection: Connection) -> tuple[list[transitions.Row], dict[str | None, list[transitions.Row]]]:
            self._database.ensure_durable(connection)
            return (
                reservations.by_uuids(connection, uuids, request.project_id, self._settler.grace),
                reservations.live_of(connection, request.project_id, consumers, self._settler.grace),
            )

        inserted, held = self._database.read_synced(read_rows)
        if inserted:
            return True
        overdue = [row.uuid for rows in held.values() for row in rows if row.overdue]
        if overdue:
            self._settler.expire_rows(overdue)
            return False
        repeated = [item for item in pending if item.claim.consumer in held]
        pods = self._pods_of(held) if any(isinstance(item.claim.pod, str) for item in repeated) else {}
        for item in repeated:
            item.use_held(held[item.claim.consumer], pods)
        return None

    def _pods_of(self, held: Mapping[str | None, Sequence[transitions.Row]]) -> dict[int, str | None]:
        """The pods of the providers of these rows, by the id of the provider."""
        ids = {row.provider_id for rows in held.values() for row in rows if row.provider_id is not None}
        return self._database.read(lambda connection: resource_providers.pods_of(connection, ids))


def _to_pending(request: ReserveRequest, claim: Claim) -> PendingClaim:
    uuids = {resource: new_reservations.new_uuid() for resource in claim.deltas}
    return PendingClaim(claim, request.project_id, request.group if claim.group is None else claim.group, uuids)


def _amounts(pending: Sequence[PendingClaim], *, in_pods: bool) -> dict[ResourceKey, int]:
    """What the claims take over all pods, and (``in_pods``) in the pods of their providers."""
    amounts: dict[ResourceKey, int] = {}
    for item in pending:
        pods = ("", item.counted_pod) if in_pods and item.counted_pod is not None else ("",)
        for resource, delta in item.claim.deltas.items():
            for pod in pods:
                key = ResourceKey(resource, pod)
                amounts[key] = amounts.get(key, 0) + delta
    return amounts


def _insert(connection: Connection, request: ReserveRequest, rows: Sequence[new_reservations.NewReservation]) -> bool:
    """Insert all rows. False: one of their consumers already holds live reservations."""
    consumers = {row.consumer for row in rows if row.consumer is not None}
    if consumers and reservations.any_live(connection, request.project_id, consumers):
        return False
    reservations.insert(connection, rows)
    return True


def changes_with_bounds(
    path: ProjectPath, constraints: Sequence[Constraint] | None, amounts: Mapping[ResourceKey, int], state: State
) -> list[usages.Change]:
    """The changes of the usage rows on the path, with their bounds. Deepest first: ``charge_all`` sorts by lock order.

    ``constraints`` None: they are not limited.
    """
    limits_by_scope = enforcement.limits_by_scope(constraints or ())
    changes = []
    for counted, amount in amounts.items():
        for change in usages.along(path.nodes(counted) or (), *transitions.effect(None, state, amount)):
            key = UsageKey(change.node.project_id, *counted)
            change.max_held = limits_by_scope.get((key, "project"))
            change.max_subtree = limits_by_scope.get((key, "total" if key.project_id == TOTAL else "subtree"))
            change.until = None if constraints is None else path.until
            changes.append(change)
    return sorted(changes, key=usages.by_depth)


def _rows(
    request: ReserveRequest, path: ProjectPath, pending: Sequence[PendingClaim]
) -> list[new_reservations.NewReservation]:
    resources = {resource for item in pending for resource in item.claim.deltas}
    usage_ids = {resource: (path.nodes(ResourceKey(resource)) or ())[0].usage_id for resource in resources}
    return [
        new_reservations.NewReservation(
            uuid=item.uuids[resource],
            usage_id=usage_ids[resource],
            project_id=item.project_id,
            resource=resource,
            delta=delta,
            consumer=item.claim.consumer,
            group=item.group,
            state=request.state,
            ttl_microseconds=request.ttl_microseconds,
            claim_ordinal=None if item.claim.consumer is None else ordinals[resource],
            source=item.claim.source,
            provider_id=None if item.claim.provider is None else item.provider_id,
            pod=item.counted_pod,
        )
        for item in pending
        for ordinals in [{resource: number for number, resource in enumerate(sorted(item.claim.deltas), 1)}]
        for resource, delta in item.claim.deltas.items()
    ]
