# SPDX-License-Identifier: Apache-2.0
"""Transfers what a consumer holds to another project: its reservations, and their amounts in the usage rows.

    read the reservations, both paths and the receiver's constraints                   (no transaction)
    UPDATE the reservations, UPDATE the usage rows of both paths, COMMIT               (one transaction)

The usage rows above both projects keep their totals. The reservations keep their providers, so that the inventories do
not change. As in resize.py, each UPDATE of a reservation compares what was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cyborg_quota import exceptions
from cyborg_quota.db import charges, history, reservations, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.reservations import Amendment
from cyborg_quota.ledger import transitions
from cyborg_quota.ledger.enforcers import Enforcers
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.ledger.project_limits import Charge, ProjectEnforcer
from cyborg_quota.ledger.reserve import repeat
from cyborg_quota.ledger.resize import ReservationChanged, amend, expire_overdue, postings_of, read_rows, total
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.ledger.transitions import amounts_by_state
from cyborg_quota.types import LIVE_STATES, ResourceKey, Row, TransferRequest, UsageKey


class _ReceiverHolds(Exception):
    """The receiver has live reservations of the consumer: roll back."""


class Transferrer:
    """Transfers the live reservations of a consumer from one project to another."""

    def __init__(
        self,
        database: Database,
        paths: PathCache,
        settler: Settler,
        projects: ProjectEnforcer,
        enforcers: Enforcers,
    ) -> None:
        self._database = database
        self._paths = paths
        self._settler = settler
        self._projects = projects
        self._enforcers = enforcers

    def transfer(self, request: TransferRequest) -> None:
        """Transfer all that is live, or nothing. Raises the errors of QuotaEngine.transfer."""
        uuids: dict[str, str] = {}
        repeat(self._database, lambda is_retry: self._attempt(request, uuids, is_retry=is_retry))

    def _attempt(self, request: TransferRequest, uuids: dict[str, str], *, is_retry: bool) -> bool:
        """Attempt once to transfer. ``uuids``: those of the records of the changes, by resource. False: retry."""
        rows = read_rows(
            self._database, self._settler, request.sender, request.consumer, uuids.values() if is_retry else ()
        )
        if rows is None:
            return True
        live = [row for row in rows if row.state in LIVE_STATES]
        if any(row.overdue for row in live):
            return expire_overdue(self._database, self._settler, live)
        if not live:
            self._check_repeated(request, rows)
            return True
        for row in live:
            uuids.setdefault(row.resource, reservations.new_uuid())
        return self._write(request, live, uuids)

    def _check_repeated(self, request: TransferRequest, rows: Sequence[Row]) -> None:
        """The sender holds nothing: return if this transfer was made before, else raise the state of its rows."""

        def work(connection: Connection) -> bool:
            self._database.ensure_durable(connection)
            return history.was_transferred(connection, *request[2:], *request[:2])

        if self._database.read_synced(work):
            return
        plan = transitions.decide("transfer", rows)
        raise plan.error or exceptions.ReservationNotFound.of_holder(request.sender, request.consumer)

    def _write(self, request: TransferRequest, rows: Sequence[Row], uuids: Mapping[str, str]) -> bool:
        if overs := self._enforcers.check(request.receiver, {row.resource: row.delta for row in rows}):
            raise exceptions.OverQuota(overs)
        received = amounts_by_state({row: row.delta for row in rows}, self._enforcers.counters_of)
        sent = amounts_by_state({row: -row.delta for row in rows}, self._enforcers.counters_of)
        amounts = total(received)
        sending = self._paths.get(request.sender, sorted(amounts))
        charge = self._projects.read(request.receiver, amounts, is_limited=True)
        # The rows above both (the total over all projects, too) do not change: their limits cannot refuse the transfer.
        # If the sender moves meanwhile, the generations of the rows refuse ``sending``, and the call retries.
        unchanged = {UsageKey(node.project_id, *key) for key in amounts for node in sending.nodes(key) or ()}
        charge.constraints = [
            constraint
            for constraint in charge.constraints or ()
            if constraint.scope == "project" or constraint.key not in unchanged
        ]
        postings = [*postings_of(Charge(request.sender, total(sent), sending), sent), *postings_of(charge, received)]
        try:
            postings = usages.merge(postings, self._database.dialect.lock_order)
        except ConcurrentChange:
            self._paths.forget_all()
            return False
        leaves = {row.resource: charge.path.charged[ResourceKey(row.resource)][0] for row in rows}

        ordinals = {resource: index + 1 for index, resource in enumerate(sorted({row.resource for row in rows}))}
        changes = [
            Amendment(
                row,
                uuids[row.resource],
                request.receiver,
                leaves[row.resource].usage_id,
                row.delta,
                ordinals[row.resource],
            )
            for row in rows
        ]

        def work(connection: Connection) -> bool:
            if reservations.any_live(connection, request.receiver, [request.consumer]):
                raise _ReceiverHolds
            amend(connection, self._settler, changes)
            charges.apply(connection, postings)
            return True

        try:
            return self._database.write(work)
        except ReservationChanged:
            return False
        except charges.Refused:
            # If the path of the sender was out of date, so were the limits of the receiver that are above both.
            self._paths.forget(request.sender)
            current = self._paths.get(request.sender, sorted(amounts))
            if all(current.nodes(name) == sending.nodes(name) for name in amounts):
                self._projects.explain_refusal(charge)
            return False
        except (DuplicateEntry, _ReceiverHolds):
            return self._resolve_duplicate(request, rows)

    def _resolve_duplicate(self, request: TransferRequest, rows: Sequence[Row]) -> bool:
        """The receiver has live reservations of the consumer: raise ReservationConflict.

        False: they have ended, or they are those of this transfer, which was committed although its answer was lost.
        """
        held = self._database.read_synced(
            lambda connection: reservations.live_of(
                connection, request.receiver, [request.consumer], self._settler.grace
            )
        ).get(request.consumer, [])
        overdue = [row.uuid for row in held if row.overdue]
        if overdue:
            self._settler.expire_rows(overdue)
        elif held and not {row.uuid for row in held} & {row.uuid for row in rows}:
            deltas, requested = ({row.resource: row.delta for row in some} for some in (held, rows))
            raise exceptions.ReservationConflict(request.consumer, deltas, requested) from None
        return False
