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

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import charges, reservations, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.ledger.enforcers import (
    Enforcer,
    Enforcers,
    PendingClaim,
    PreparationChanged,
    Refused,
    conflict,
    new_rows,
)
from cyborg_quota.ledger.project_limits import Charge, ProjectEnforcer
from cyborg_quota.ledger.settle import Settler, repeat
from cyborg_quota.types import RESERVED, Claim, ReserveRequest, Row, Selection

ReserveResult = bool | InventoryClaim | None
"""The result of a single-statement reserve: see Dialect.reserve_in_single_statement."""

_ENDED: Final = (
    exceptions.ReservationExpired,
    exceptions.ReservationNotFound,
    exceptions.ReservationReleased,
    exceptions.ReservationRolledBack,
)
"""The errors of a commit of a reservation that has ended. (ReservationNotFound: it ended and was purged meanwhile.)"""


@dataclasses.dataclass(eq=False)
class Reserver:
    """Reserves and adopts claims."""

    _database: Database
    _settler: Settler
    _projects: ProjectEnforcer
    _enforcers: Enforcers

    def charge(self, request: ReserveRequest) -> list[str]:
        """Charge all claims or none. Returns the UUIDs, by claim, in the order of its deltas."""
        pending = [_to_pending(request, claim) for claim in request.claims]
        try:
            repeat(self._database, lambda _is_retry: self._attempt(request, pending))
        except exceptions.OverQuota as error:
            raise self._projects.redact(request.project_id, error, sees_all=request.sees_all) from None
        return [uuid for item in pending for uuid in item.uuids.values()]

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
        enforcers = self._enforcers.prepare(pending)
        is_complete = not enforcers or all(item.is_complete for item in pending)
        amounts = self._enforcers.amounts(pending, is_chosen=is_complete)
        try:
            charge = self._projects.read(request.project_id, amounts, is_limited=request.state == RESERVED)
        except (exceptions.LimitNotSet, exceptions.LimitsUnavailable):
            is_charged = self._resolve_duplicate(request, pending, enforcers)
            if is_charged is None and not any(item.is_charged for item in pending):
                raise
            return bool(is_charged)
        try:
            if not is_complete:
                raise Refused
            if self._write(request, pending, enforcers, charge):
                return True
        except (charges.Refused, Refused) as refusal:
            if not is_complete and (is_charged := self._resolve_duplicate(request, pending, enforcers)) is not None:
                return is_charged
            if is_complete or not any(item.is_charged for item in pending):
                self._refuse(request, pending, enforcers, refusal, charge)
            return False
        except (DuplicateEntry, PreparationChanged):
            pass  # rows of this call or of its consumers may exist already
        return bool(self._resolve_duplicate(request, pending, enforcers))

    def _write(
        self,
        request: ReserveRequest,
        pending: Sequence[PendingClaim],
        enforcers: Sequence[Enforcer],
        charge: Charge,
    ) -> bool:
        """Insert and charge all rows. False: one of the consumers already holds live reservations.

        Raises charges.Refused, Refused, PreparationChanged, DuplicateEntry.
        """
        is_limited = request.state == RESERVED
        rows = new_rows(request, charge.path, pending)
        consumers = {row.consumer_id for row in rows if row.consumer_id is not None}
        dialect = self._database.dialect
        merged = usages.merge(charge.postings(charge.amounts, request.state), dialect.lock_order)

        def work(connection: Connection) -> ReserveResult:
            if consumers and reservations.any_live(connection, request.project_id, consumers):
                return False
            at = reservations.insert(connection, rows)
            for enforcer in enforcers:
                enforcer.charge(connection, pending)
            charges.apply(connection, merged, at)
            return True

        claims = [enforcer.inventory_claims(pending) for enforcer in enforcers]
        taken = [claim for batch in claims for claim in batch or ()]
        is_single = is_limited and None not in claims and not any(posting.has_minimum for posting in merged)
        single_statement = functools.partial(
            dialect.reserve_in_single_statement, rows=rows, postings=merged, claims=taken
        )
        result = self._database.write(work, single_statement if is_single else None)
        if isinstance(result, InventoryClaim):
            raise Refused(result.inventory_id)
        if result and is_limited:
            self._settler.reservation_cache.remember(rows)
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
        charge: Charge,
    ) -> None:
        """Raise the reason of a refusal, OverQuota before all others. Returns if the request may fit now: retry."""
        if isinstance(refusal, Refused) and any(enforcer.retries(pending, refusal) for enforcer in enforcers):
            return
        try:
            is_current = self._projects.explain_refusal(charge)
        except exceptions.OverQuota as error:
            if not any(enforcer.retries(pending, error) for enforcer in enforcers):
                raise
            return
        for enforcer in enforcers if is_current and isinstance(refusal, Refused) else ():
            enforcer.explain(request, pending)

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

        def read_rows(connection: Connection) -> tuple[list[Row], dict[str | None, list[Row]]]:
            self._database.dialect.ensure_durable(connection)
            return (
                reservations.by_uuids(connection, uuids, request.project_id, self._settler.grace),
                reservations.live_of(connection, request.project_id, consumers, self._settler.grace),
            )

        inserted, live = self._database.read_synced(read_rows)
        if inserted:
            return True
        overdue = [row.uuid for rows in live.values() for row in rows if row.overdue]
        if overdue:
            self._settler.expire_rows(overdue)
            return False
        for item in pending:
            if rows := live.get(item.claim.consumer):
                if {row.resource: row.delta for row in rows} != dict(item.claim.deltas):
                    raise conflict(item.claim, rows)
                for enforcer in enforcers:
                    enforcer.confirm(item, rows)
                item.use(rows)
        return None


def _to_pending(request: ReserveRequest, claim: Claim) -> PendingClaim:
    uuids = {resource: reservations.new_uuid() for resource in claim.deltas}
    group = request.group if claim.group is None else claim.group
    return PendingClaim(claim, request.project_id, group, uuids, is_limited=request.state == RESERVED)
