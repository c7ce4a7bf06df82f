# SPDX-License-Identifier: Apache-2.0
"""Commits reservations that were made without a consumer, and gives them to one, in one transaction.

The unique keys of the reservations ensure that a consumer has one live claim, as for a reserve with a consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cyborg_quota import exceptions
from cyborg_quota.db import reservations
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.ledger import transitions
from cyborg_quota.ledger.reserve import repeat
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.ledger.transitions import Plan
from cyborg_quota.types import Row, Selection


class _OverdueHolder(Exception):
    """Another claim that holds the name is overdue: expire these reservations, and retry."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.uuids = uuids
        super().__init__(uuids)


class Namer:
    """Commits with a name."""

    def __init__(self, database: Database, settler: Settler) -> None:
        self._database = database
        self._settler = settler

    def commit(self, selection: Selection, consumer: str) -> None:
        """Commit the selected reservations as those of ``consumer``, all or none.

        Raises the errors of a commit, NameConflict, InvalidSelection.
        """
        self._settler.reservation_cache.take(selection)
        repeat(self._database, lambda _is_retry: self._attempt(selection, consumer))

    def _attempt(self, selection: Selection, consumer: str) -> bool:
        """Attempt once to commit. False: another claim of this name has ended or begun meanwhile, retry."""

        def work(connection: Connection) -> Plan:
            self._database.sync_with_cluster(connection)
            rows = self._settler.read_rows(connection, "commit", selection)
            plan = transitions.decide("commit", rows)
            if plan.error is None:
                self._name(connection, rows, consumer)
            if not plan.moves:
                self._database.ensure_durable(connection)
            self._settler.apply(connection, plan.moves)
            return plan

        try:
            plan = self._settler.write(work)
        except _OverdueHolder as holder:
            self._settler.expire_rows(holder.uuids)
            return False
        except DuplicateEntry:
            return False
        if plan.error is not None:
            raise plan.error
        return True

    def _name(self, connection: Connection, rows: Sequence[Row], consumer: str) -> None:
        """Give the rows to the consumer, unless it has them already."""
        project_id = _project_of(rows)
        held = reservations.live_of(connection, project_id, [consumer], self._settler.grace).get(consumer, [])
        if {row.uuid for row in held} == {row.uuid for row in rows}:
            return
        if overdue := [row.uuid for row in held if row.overdue]:
            raise _OverdueHolder(overdue)
        _check_names(rows, held, consumer)
        ordinals = {resource: index + 1 for index, resource in enumerate(sorted(row.resource for row in rows))}
        for row in sorted(rows, key=lambda row: row.id):
            if not reservations.name(connection, row, consumer, ordinals[row.resource]):
                raise ConcurrentChange


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


def _check_names(rows: Sequence[Row], held: Sequence[Row], consumer: str) -> None:
    """Raise NameConflict if another claim holds the name, or a row has another consumer."""
    requested = {row.resource: row.delta for row in rows}
    for row in rows:
        if row.consumer not in (None, consumer):
            reason = f"reservation {row.uuid} has the consumer {row.consumer}"
            raise exceptions.NameConflict(consumer, {row.resource: row.delta}, requested, reason)
    if held:
        deltas = {row.resource: row.delta for row in held}
        amounts = ", ".join(f"{resource}={delta}" for resource, delta in sorted(deltas.items()))
        raise exceptions.NameConflict(consumer, deltas, requested, f"another claim, of {amounts}, holds it")
