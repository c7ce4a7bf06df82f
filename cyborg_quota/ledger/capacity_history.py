# SPDX-License-Identifier: Apache-2.0
"""The history of providers and inventories: logs changes, and lists, verifies, checkpoints and purges the history.

The transactions of ProviderManager record the changes themselves (db/capacity_history.py).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Sequence
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import CapacityChange, CapacityDifference, CapacityEntry, CapacityValues
from cyborg_quota.db import capacity_history as tables
from cyborg_quota.db.capacity_history import Key, State
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.types import CHECKPOINT, Author

LOG = logging.getLogger(__name__)

MAX_LOGGED: Final = 100
"""A call that makes more changes than this is logged by one line, with their number."""

_MAX_ATTEMPTS: Final = 20


class CapacityHistory:
    """The history of the providers and inventories of one ledger."""

    def __init__(self, database: Database) -> None:
        """``database`` must have no statement timeout: the history may be long."""
        self._database = database

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

    def verify(self) -> list[CapacityDifference]:
        """Replay the history from its last checkpoint, and compare with the present providers and inventories.

        Raises DatabaseUnavailable if they keep changing meanwhile.
        """

        def work(connection: Connection) -> list[CapacityDifference] | None:
            before = tables.generation(connection)
            state, differences = replay(tables.read_from_last_checkpoint(connection))
            differences += compare(state, tables.read_state(connection))
            # Every change adds 1. (At READ COMMITTED, each statement sees the changes committed before it.)
            return differences if tables.generation(connection) == before else None

        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            differences = self._database.long_transactions.read(work)
            if differences is not None:
                return differences
        raise exceptions.DatabaseUnavailable("the inventories keep changing", time.monotonic() - began)

    def checkpoint(self, author: Author) -> int:
        """Record the present state, from which ``verify`` starts. Returns the number of rows written."""

        def work(connection: Connection) -> int:
            tables.serialize(connection)
            number = tables.generation(connection)
            return tables.write_checkpoint(connection, author, tables.read_state(connection), number=number)

        return self._database.long_transactions.write(work)

    def purge(self, age_microseconds: int, author: Author) -> int:
        """Replace the entries older than this age by one checkpoint. Returns the number of entries deleted.

        The checkpoint has the generation and the time of the last deleted change, and records the state after it.
        """

        def work(connection: Connection) -> int:
            tables.serialize(connection)
            number = tables.first_kept(connection, age_microseconds)
            last = tables.last_before(connection, number)
            if last is None:
                return 0
            state, _ = replay(tables.read_from_last_checkpoint(connection, number))
            deleted = tables.delete_before(connection, number)
            tables.write_checkpoint(connection, author, state, number=last[0], operation="purge")
            tables.set_time(connection, *last)
            return deleted

        return self._database.long_transactions.write(work)


def log_changes(changes: Sequence[CapacityChange], author: Author) -> None:
    """Log the committed changes of one transaction."""
    values = {"user_id": author.user_id, "request_id": author.request_id, "reason": author.reason}
    fields = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
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
