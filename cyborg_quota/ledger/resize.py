# SPDX-License-Identifier: Apache-2.0
"""Resizes reservations, and transfers what a consumer holds to another project. Both change rows that stay live.

    read the reservations, the paths and the constraints                               (no transaction)
    UPDATE the reservations, UPDATE the inventories, UPDATE the usage rows, COMMIT     (one transaction)

Each UPDATE of a reservation compares all that was read. If one does not match, another call has changed the
reservation: everything is rolled back, and the call begins again.

A resize sets other amounts in the same rows, and charges or gives back the differences; a growth is checked as a
reserve of the difference. A transfer adds the amounts to the rows of the receiver, whose limits apply, and subtracts
them from those of the sender; the usage rows above both keep their totals. The reservations keep their providers, so
that the inventories do not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from cyborg_quota import exceptions
from cyborg_quota.db import charges, history, reservations, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.reservations import Amendment
from cyborg_quota.ledger import transitions
from cyborg_quota.ledger.enforcers import Enforcers, Refused
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.ledger.project_limits import Charge, ProjectEnforcer
from cyborg_quota.ledger.settle import Settler, repeat
from cyborg_quota.ledger.transitions import Call
from cyborg_quota.types import (
    EXPIRED,
    LIVE_STATES,
    ResizeRequest,
    ResourceKey,
    Row,
    Selection,
    TransferRequest,
    UsageKey,
    summed,
)


class ReservationChanged(Exception):
    """A reservation is not as it was read: roll back, and read it again."""


class _ReceiverHolds(Exception):
    """The receiver has live reservations of the consumer: roll back."""


@dataclasses.dataclass(eq=False)
class Amender:
    """Resizes live reservations, and transfers those of a consumer."""

    _database: Database
    _paths: PathCache
    _settler: Settler
    _projects: ProjectEnforcer
    _enforcers: Enforcers

    def resize(self, request: ResizeRequest) -> None:
        """Set the amounts, all or none. Raises the errors of QuotaEngine.resize."""
        uuids = {resource: reservations.new_uuid() for resource in request.amounts}
        repeat(self._database, lambda is_retry: self._attempt_resize(request, uuids, is_retry=is_retry))

    def transfer(self, request: TransferRequest) -> None:
        """Transfer all that is live, or nothing. Raises the errors of QuotaEngine.transfer."""
        uuids: dict[str, str] = {}
        repeat(self._database, lambda is_retry: self._attempt_transfer(request, uuids, is_retry=is_retry))

    def _attempt_resize(self, request: ResizeRequest, uuids: Mapping[str, str], *, is_retry: bool) -> bool:
        """Attempt once to resize. ``uuids``: those of the records of the changes, by resource. False: retry."""
        rows = self._read_rows("resize", request.selection, uuids.values() if is_retry else ())
        if rows is None:
            return True
        held, selection = {row.resource for row in rows}, request.selection
        holder = selection.uuids[0] if selection.uuids else selection.consumer
        for resource in request.amounts:
            if resource not in held:
                raise exceptions.ResourceNotHeld(holder, rows[0].project_id, resource)
        rows = [row for row in rows if row.resource in request.amounts]
        plan = transitions.decide("resize", rows)
        if any(row.overdue for row in rows):
            return self._expire_overdue(rows)
        deltas = {row.resource: row.delta for row in rows}
        # (An amount that is already the requested one is accepted: the call is a repeat.)
        is_expected = all(
            deltas[resource] in (amount, request.amounts[resource]) for resource, amount in request.expected.items()
        )
        if plan.error is None and not is_expected:
            raise exceptions.AmountChanged(holder, deltas, request.expected)
        rows = [row for row in rows if row.delta != request.amounts[row.resource]]
        if plan.error is None and rows:
            return self._write_resize(request, rows, uuids)
        self._database.read(self._database.dialect.ensure_durable)
        if plan.error is not None:
            raise plan.error
        return True

    def _attempt_transfer(self, request: TransferRequest, uuids: dict[str, str], *, is_retry: bool) -> bool:
        """Attempt once to transfer. ``uuids``: as of a resize. False: what was read has changed, retry."""
        selection = Selection(request.sender, consumer=request.consumer)
        rows = self._read_rows("transfer", selection, uuids.values() if is_retry else ())
        if rows is None:
            return True
        live = [row for row in rows if row.state in LIVE_STATES]
        if any(row.overdue for row in live):
            return self._expire_overdue(live)
        if not live:  # this transfer was made before, or the state of the rows is the reason

            def was_transferred(connection: Connection) -> bool:
                self._database.dialect.ensure_durable(connection)
                return history.was_transferred(connection, *request[2:], *request[:2])

            if self._database.read_synced(was_transferred):
                return True
            plan = transitions.decide("transfer", rows)
            raise plan.error or exceptions.ReservationNotFound(request.consumer)
        for row in live:
            uuids.setdefault(row.resource, reservations.new_uuid())
        return self._write_transfer(request, live, uuids)

    def _read_rows(self, call: Call, selection: Selection, uuids: Iterable[str]) -> list[Row] | None:
        """The rows that the call selects. Raises ReservationNotFound.

        None: an earlier attempt of the call that made ``uuids`` was committed, although its answer was lost.
        """

        def work(connection: Connection) -> list[Row] | None:
            if uuids and reservations.is_any_change_recorded(connection, list(uuids)):
                self._database.dialect.ensure_durable(connection)
                return None
            return self._settler.read_rows(connection, call, selection)

        return self._database.read_synced(work)

    def _expire_overdue(self, rows: Sequence[Row]) -> bool:
        """Expire those that are overdue, and raise ReservationExpired. False: they were extended or have ended."""
        uuids = [row.uuid for row in rows if row.overdue]
        grace = self._settler.grace
        self._settler.expire_rows(uuids)
        for row in self._database.read(lambda connection: reservations.by_uuids(connection, uuids, None, grace)):
            if row.state == EXPIRED:
                raise exceptions.ReservationExpired(row.uuid)
        return False

    def _write_resize(self, request: ResizeRequest, rows: Sequence[Row], uuids: Mapping[str, str]) -> bool:
        growth = {row: request.amounts[row.resource] - row.delta for row in rows}
        project_id = rows[0].project_id
        charge, added = self._charge(project_id, growth)
        postings = usages.merge(added, self._database.dialect.lock_order)
        changes = [
            Amendment(row, uuids[row.resource], row.project_id, row.usage_id, request.amounts[row.resource])
            for row in rows
        ]

        def work(connection: Connection) -> bool:
            at = self._amend(connection, changes)
            for enforcer in self._enforcers:
                enforcer.resize(connection, rows, request.amounts)
            self._apply(connection, postings, rows, at)
            return True

        try:
            return self._database.write(work)
        except ReservationChanged:
            return False
        except (charges.Refused, Refused) as refusal:
            try:
                is_current = self._projects.explain_refusal(charge)
            except exceptions.OverQuota as error:
                raise self._projects.redact(project_id, error, sees_all=request.sees_all) from None
            for enforcer in self._enforcers if is_current and isinstance(refusal, Refused) else ():
                enforcer.explain_resize(request, rows)
            return False

    def _write_transfer(self, request: TransferRequest, rows: Sequence[Row], uuids: Mapping[str, str]) -> bool:
        sent = transitions.amounts_by_state({row: -row.delta for row in rows}, self._enforcers.counters_of)
        keys = sorted({key for amounts in sent.values() for key in amounts})
        sending = self._paths.get(request.sender, keys)
        # The common ancestors (and the total) grow only by what minimums of the sender's rows retain (charges.py). If
        # the sender is moved meanwhile, the generations of ``sending`` no longer match, and the call retries.
        shared = {node.key for key in keys for node in sending.charged.get(key) or ()}
        charge, added = self._charge(request.receiver, {row: row.delta for row in rows})
        charge.sender = sending.project_ids
        charge.row_bounds = {key: bound for key, bound in charge.row_bounds.items() if key not in shared}
        for state, amounts in sent.items():
            added += Charge(request.sender, amounts, sending).postings(amounts, state)
        try:
            postings = usages.merge(added, self._database.dialect.lock_order)
        except ConcurrentChange:
            self._paths.forget_all()
            return False
        leaves = {row.resource: charge.path.charged[ResourceKey(row.resource)][0] for row in rows}
        changes = [
            Amendment(row, uuids[row.resource], request.receiver, leaves[row.resource].usage_id, row.delta, ordinal)
            for ordinal, row in enumerate(sorted(rows, key=lambda row: row.resource), 1)
        ]

        def work(connection: Connection) -> bool:
            if reservations.any_live(connection, request.receiver, [request.consumer]):
                raise _ReceiverHolds
            self._apply(connection, postings, rows, self._amend(connection, changes))
            return True

        try:
            return self._database.write(work)
        except ReservationChanged:
            return False
        except charges.Refused:
            # If the path of the sender was out of date, so were the limits of the receiver that are above both.
            self._paths.forget(request.sender)
            current = self._paths.get(request.sender, keys)
            if all(current.charged.get(key) == sending.charged.get(key) for key in keys):
                self._projects.explain_refusal(charge)
            return False
        except (DuplicateEntry, _ReceiverHolds):
            return self._resolve_duplicate(request, rows)

    def _charge(self, project_id: str, growth: Mapping[Row, int]) -> tuple[Charge, list[usages.Posting]]:
        """What is added to the counters of a project, and the postings.

        ``growth``: what is added to each reservation. Raises OverQuota, and the errors of reading limits.
        """
        if overs := self._enforcers.check(project_id, {row.resource: amount for row, amount in growth.items()}):
            raise exceptions.OverQuota(overs)
        by_state = transitions.amounts_by_state(growth, self._enforcers.counters_of)
        amounts = summed(item for state_amounts in by_state.values() for item in state_amounts.items())
        charge = self._projects.read(project_id, amounts, is_limited=True)
        return charge, [
            posting for state, state_amounts in by_state.items() for posting in charge.postings(state_amounts, state)
        ]

    def _amend(self, connection: Connection, changes: Sequence[Amendment]) -> int:
        """Change the project and the amount of live rows, and record it. Returns the second of the change.

        Raises ReservationChanged if a row is not as it was read, or is overdue.
        """
        at = reservations.amend(connection, changes, self._settler.grace)
        if at is None:
            raise ReservationChanged
        return at

    def _apply(self, connection: Connection, postings: Sequence[usages.Posting], rows: Sequence[Row], at: int) -> None:
        """Charge, and keep what these reservations have used until now in the meters of their usage rows."""
        ids = {posting.node.key: posting.node.usage_id for posting in postings}
        used = summed(
            (ids[UsageKey(row.project_id, *key)], row.meter + row.delta * at)
            for row in rows
            for key in self._enforcers.counters_of(row.resource, row.pod)
        )
        charges.apply(connection, postings, at, used)

    def _resolve_duplicate(self, request: TransferRequest, rows: Sequence[Row]) -> bool:
        """The receiver has live reservations of the consumer: raise ReservationConflict.

        False: they have ended, or they are those of this transfer, which was committed although its answer was lost.
        """
        live = self._database.read_synced(
            lambda connection: reservations.live_of(
                connection, request.receiver, [request.consumer], self._settler.grace
            )
        ).get(request.consumer, [])
        overdue = [row.uuid for row in live if row.overdue]
        if overdue:
            self._settler.expire_rows(overdue)
        elif live and not {row.uuid for row in live} & {row.uuid for row in rows}:
            deltas, requested = ({row.resource: row.delta for row in claim_rows} for claim_rows in (live, rows))
            raise exceptions.ReservationConflict(request.consumer, deltas, requested) from None
        return False
