# SPDX-License-Identifier: Apache-2.0
"""The history of providers and inventories: logs changes, and lists the history. change_history.py has the rest.

The transactions of ProviderManager record the changes themselves (db/capacity_history.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from oslo_log import log as logging

from cyborg_quota.capacity_types import CapacityChange, CapacityDifference, CapacityEntry, CapacityValues
from cyborg_quota.db import capacity_history as tables
from cyborg_quota.db.capacity_history import Key, State
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger.change_history import MAX_LOGGED, ChangeHistory, log_fields
from cyborg_quota.types import CHECKPOINT, Author

LOG = logging.getLogger(__name__)


class CapacityHistory(ChangeHistory[State, CapacityEntry, CapacityDifference]):
    """The history of the providers and inventories of one ledger."""

    subject = "inventories"

    def __init__(self, database: Database) -> None:
        """``database``: see ChangeHistory."""
        super().__init__(database, tables.CHANGES)

    def entries(
        self,
        *,
        provider: str | None,
        resource: str | None,
        since: datetime.datetime | datetime.timedelta | None,
        limit: int | None,
        before: tuple[int, int] | None,
    ) -> list[CapacityEntry]:
        """The entries that match all given filters, newest first; see db.capacity_history.read."""
        return self._database.read(
            lambda connection: tables.read(
                connection, provider=provider, resource=resource, since=since, limit=limit, before=before
            )
        )

    def _read_from_last_checkpoint(self, connection: Connection, before: int | None = None) -> list[CapacityEntry]:
        return tables.read_from_last_checkpoint(connection, before)

    def _read_state(self, connection: Connection) -> State:
        return tables.read_state(connection)

    def _replay(self, entries: Iterable[CapacityEntry]) -> tuple[State, list[CapacityDifference]]:
        return replay(entries)

    def _compare(self, connection: Connection, replayed: State) -> list[CapacityDifference]:
        return compare(replayed, tables.read_state(connection))

    def _write_checkpoint(
        self, connection: Connection, author: Author, state: State, *, number: int, operation: str | None = None
    ) -> int:
        return tables.write_checkpoint(connection, author, state, number=number, operation=operation)


def log_changes(changes: Sequence[CapacityChange], author: Author) -> None:
    """Log the committed changes of one transaction."""
    fields = log_fields(author)
    if len(changes) > MAX_LOGGED:
        LOG.info("capacity changed: %d changes [%s]", len(changes), fields)
        return
    for change in changes:
        LOG.info("capacity changed: %s [%s]", change, fields)


def replay(entries: Iterable[CapacityEntry]) -> tuple[State, list[CapacityDifference]]:
    """The state after these entries, oldest first, and the entries whose values before are not the replayed ones.

    A checkpoint replaces the state. Such a difference means that another change was not recorded.
    """
    state: dict[Key, tuple[str, CapacityValues]] = {}
    differences = []
    for entry in entries:
        if entry.uuid is None or entry.provider is None:
            state = {}
            continue
        key = (entry.uuid, entry.resource)
        recorded = state[key][1] if key in state else None
        if entry.action != CHECKPOINT and recorded != entry.before:
            differences.append(CapacityDifference(entry.id, entry.provider, entry.resource, recorded, entry.before))
        if entry.after is None:
            state.pop(key, None)
        else:
            state[key] = (entry.provider, entry.after)
    return state, differences


def compare(replayed: State, present: State) -> list[CapacityDifference]:
    """The differences between the replayed and the present state: providers first, by name."""
    differences = []
    for key in replayed.keys() | present.keys():
        recorded, actual = replayed.get(key), present.get(key)
        if recorded != actual:
            name = (actual or recorded or ("", {}))[0]
            values = (None if recorded is None else recorded[1], None if actual is None else actual[1])
            differences.append(CapacityDifference(None, name, key[1], *values))
    return sorted(differences, key=lambda one: (one.resource is not None, one.provider, one.resource or ""))
