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
from typing import Final

from cyborg_quota import enforcement, exceptions, transitions
from cyborg_quota.db import charges, new_reservations, reservations, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.ledger.enforcers import Enforcer, PendingClaim, PreparationChanged, Refused, conflict
from cyborg_quota.ledger.project_tree import PathCache, Tree
from cyborg_quota.ledger.requests import ReserveRequest
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import (
    RESERVED,
    TOTAL,
    UNLIMITED,
    Claim,
    Constraint,
    ResourceKey,
    Selection,
    State,
)

_MAX_ATTEMPTS: Final = 200
"""The most attempts of one call. An attempt is repeated if other calls have changed what it had read."""

ReserveResult = bool | InventoryClaim | None
"""The result of a single-statement reserve: see Dialect.reserve_in_single_statement."""

_ENDED: Final = (
    exceptions.ReservationExpired,
    exceptions.ReservationNotFound,
    exceptions.ReservationReleased,
    exceptions.ReservationRolledBack,
)
"""The errors of a commit of a reservation that has ended. (ReservationNotFound: it ended and was purged meanwhile.)"""

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
        enforcers: Sequence[Enforcer],
    ) -> None:
        self._database = database
        self._enforcers = enforcers
        self._tree = tree
        self._paths = paths
        self._limits = limits
        self._settler = settler

    def charge(self, request: ReserveRequest) -> list[str]:
        """Charge all claims or none. Returns the UUIDs, by claim, in the order of its deltas."""
        pending = [_to_pending(request, claim) for claim in request.claims]
        try:
            repeat(self._database, lambda _is_retry: self._attempt(request, pending))
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

        def attempt(_is_retry: bool) -> bool:
            repeat(self._database, lambda _is_retry: self._attempt(request, pending))
            for item in pending:
                item.is_charged = True
            try:
                if uuids := [uuid for item in pending for uuid in item.reserved]:
                    self._settler.settle("commit", Selection(request.project_id, uuids=uuids))
            except _ENDED:
                pending[:] = [_to_pending(request, item.claim) if item.reserved else item for item in pending]
                return False
            return True

        repeat(self._database, attempt)
        return [uuid for item in pending for uuid in item.uuids.values()]

    def _attempt(self, request: ReserveRequest, claims: Sequence[PendingClaim]) -> bool:
        """Charge those of these claims that are not charged yet. False: something has changed, retry."""
        pending = [item for item in claims if not item.is_charged]
        if not pending:
            return True
        enforcers = [
            one for one in self._enforcers if any(getattr(item.claim, one.field) is not None for item in pending)
        ]
        for item in pending if enforcers else ():
            item.choose(None, None, {})
        for enforcer in enforcers:
            enforcer.prepare(pending)
        is_complete = not enforcers or all(item.is_complete for item in pending)
        amounts = _amounts(pending, is_counted=is_complete)
        path = self.path(request, sorted(amounts), is_limited=True)
        constraints = self.constraints(request, path, amounts)
        try:
            if not is_complete:
                raise Refused
            postings = postings_with_bounds(path, constraints, amounts, request.state)
            if self._write(request, pending, enforcers, _rows(request, path, pending), postings):
                return True
        except (charges.Refused, Refused) as refusal:
            if not is_complete and (is_charged := self._resolve_duplicate(request, pending, enforcers)) is not None:
                return is_charged
            if is_complete or not any(item.is_charged for item in pending):
                self._refuse(request, pending, enforcers, refusal, (path, constraints, amounts))
            return False
        except (DuplicateEntry, PreparationChanged):
            pass  # rows of this call or of its consumers may exist already
        return bool(self._resolve_duplicate(request, pending, enforcers))

    def _write(
        self,
        request: ReserveRequest,
        pending: Sequence[PendingClaim],
        enforcers: Sequence[Enforcer],
        rows: Sequence[new_reservations.NewReservation],
        postings: Sequence[usages.Posting],
    ) -> bool:
        """Insert and charge all rows. False: one of the consumers already holds live reservations.

        Raises charges.Refused, Refused, PreparationChanged, DuplicateEntry.
        """
        is_limited = request.state == RESERVED
        consumers = {row.consumer_id for row in rows if row.consumer_id is not None}
        dialect = self._database.dialect
        merged = usages.merge(postings, dialect.lock_order)

        def work(connection: Connection) -> ReserveResult:
            if consumers and reservations.any_live(connection, request.project_id, consumers):
                return False
            reservations.insert(connection, rows)
            for enforcer in enforcers:
                enforcer.charge(connection, pending)
            charges.apply(connection, merged)
            return True

        def single_statement(connection: Connection) -> ReserveResult:
            return dialect.reserve_in_single_statement(connection, rows, merged, taken)

        claims = [enforcer.inventory_claims(pending) for enforcer in enforcers]
        taken = [claim for some in claims for claim in some or ()]
        is_single = is_limited and None not in claims
        result = self._database.write(work, single_statement if is_single else None)
        if isinstance(result, InventoryClaim):
            raise Refused(result.inventory_id)
        if result and is_limited:
            self._settler.reservation_cache.remember(new_reservations.to_row(row) for row in rows)
        elif result:
            for enforcer in enforcers:
                enforcer.finish(pending)
        return bool(result)

    def _refuse(
        self,
        request: ReserveRequest,
        pending: Sequence[PendingClaim],
        enforcers: Sequence[Enforcer],
        refusal: Exception,
        plan: tuple[ProjectPath, Sequence[Constraint] | None, Mapping[ResourceKey, int]],
    ) -> None:
        """Raise the reason of a refusal, OverQuota before all others. Returns if the request may fit now: retry."""
        if isinstance(refusal, Refused) and any(enforcer.retries(pending, refusal) for enforcer in enforcers):
            return
        try:
            is_current = self.raise_refusal(request, *plan)
        except exceptions.OverQuota as error:
            if not any(enforcer.retries(pending, error) for enforcer in enforcers):
                raise
            return
        for enforcer in enforcers if is_current and isinstance(refusal, Refused) else ():
            enforcer.explain(request, pending)

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
        self,
        request: ReserveRequest,
        path: ProjectPath,
        amounts: Mapping[ResourceKey, int],
        *,
        is_read_again: bool = False,
    ) -> list[Constraint] | None:
        """The limits of these amounts, as they were read with the path. None: the request is not limited."""
        if request.ttl_microseconds is None or not amounts:
            return None
        assert path.limits is not None, "get() reads the limits"
        resources = tuple(sorted([key.resource for key in amounts if not key.pod]))
        bounds = path.bounds if self._limits.is_pure else None  # (another thread may replace it)
        if bounds is None or bounds[0] != resources:
            bounds = path.bounds = resources, self._limits.bounds([path.limits], resources)[0]
        limits = bounds[1]
        if isinstance(limits.error, exceptions.LimitNotSet) and not is_read_again:  # (it may have been set since)
            path = self._paths.get(request.project_id, sorted(amounts), is_again=True)
            return self.constraints(request, path, amounts, is_read_again=True)
        if limits.error is not None:
            raise limits.error
        constraints = [one for one in limits.constraints if (one.resource, one.pod) in amounts]
        unknown_projects = {constraint.project_id for constraint in constraints} - {*path.project_ids, TOTAL}
        if unknown_projects:
            raise exceptions.ConfigurationError(
                f"The limit driver returned a constraint for {', '.join(sorted(unknown_projects))}, which is not an "
                f"ancestor of {path.project_ids[0]}."
            )
        return constraints

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
        path = self._paths.get(request.project_id, sorted(amounts), is_again=True)
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

    def _resolve_duplicate(
        self, request: ReserveRequest, pending: Sequence[PendingClaim], enforcers: Sequence[Enforcer]
    ) -> bool | None:
        """Look for rows of this call, or of its consumers. True: an earlier attempt of this call was committed.

        False: overdue reservations of the consumers were expired, retry. None: nothing was changed; claims whose
        consumers already hold exactly what they ask for are marked as charged. Raises ReservationConflict if a consumer
        holds something else.
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
        for item in pending:
            if rows := held.get(item.claim.consumer):
                if {row.resource: row.delta for row in rows} != dict(item.claim.deltas):
                    raise conflict(item.claim, rows)
                for enforcer in enforcers:
                    if getattr(item.claim, enforcer.field) is not None:
                        enforcer.confirm(item, rows)
                item.use(rows)
        return None


def repeat(database: Database, attempt: Callable[[bool], bool]) -> None:
    """Call ``attempt(is_retry)`` until it returns True. Raises DatabaseUnavailable after too many attempts."""
    began = time.monotonic()
    with database.deadline():
        for number in range(_MAX_ATTEMPTS):
            if number > 2:
                time.sleep(random.uniform(0, 0.002 * min(number, 25)))
            if attempt(number > 0):
                return
    raise exceptions.DatabaseUnavailable("too many concurrent changes of the same rows", time.monotonic() - began)


def _to_pending(request: ReserveRequest, claim: Claim) -> PendingClaim:
    uuids = {resource: new_reservations.new_uuid() for resource in claim.deltas}
    group = request.group if claim.group is None else claim.group
    return PendingClaim(claim, request.project_id, group, uuids, is_limited=request.state == RESERVED)


def _amounts(pending: Sequence[PendingClaim], *, is_counted: bool) -> dict[ResourceKey, int]:
    """What the claims take over all pods, and (``is_counted``) in the pods of their providers."""
    amounts: dict[ResourceKey, int] = {}
    for item in pending:
        pods = ("", item.counted_pod) if is_counted and item.counted_pod is not None else ("",)
        for resource, delta in item.claim.deltas.items():
            for pod in pods:
                key = ResourceKey(resource, pod)
                amounts[key] = amounts.get(key, 0) + delta
    return amounts


def postings_with_bounds(
    path: ProjectPath, constraints: Sequence[Constraint] | None, amounts: Mapping[ResourceKey, int], state: State
) -> list[usages.Posting]:
    """The postings of the usage rows on the path, with their bounds. ``constraints`` None: they are not limited."""
    limits: dict[tuple[str, str, str, bool], int] = {}
    for one in constraints or ():
        if one.limit != UNLIMITED:
            counter = (one.project_id, one.resource, one.pod, one.scope == "project")
            limits[counter] = min(one.limit, limits.get(counter, one.limit))
    postings = []
    for (resource, pod), amount in amounts.items():
        effect = (amount, 0) if state == RESERVED else (0, amount)
        for posting in usages.along(path.charged[ResourceKey(resource, pod)], *effect):
            posting.max_held, posting.max_subtree = (
                limits.get((posting.node.project_id, resource, pod, is_own)) for is_own in (True, False)
            )
            posting.until = None if constraints is None else path.until
            postings.append(posting)
    return postings


def _rows(
    request: ReserveRequest, path: ProjectPath, pending: Sequence[PendingClaim]
) -> list[new_reservations.NewReservation]:
    resources = {resource for item in pending for resource in item.claim.deltas}
    usage_ids = {resource: path.charged[ResourceKey(resource)][0].usage_id for resource in resources}
    return [
        new_reservations.NewReservation(
            uuid=item.uuids[resource],
            usage_id=usage_ids[resource],
            project_id=item.project_id,
            resource=resource,
            delta=delta,
            consumer_id=item.claim.consumer,
            group_id=item.group,
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
