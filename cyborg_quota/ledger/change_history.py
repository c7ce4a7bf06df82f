# SPDX-License-Identifier: Apache-2.0
"""What the history of limits and that of capacity have in common: to verify, checkpoint and purge it.

The transactions that make the changes record them themselves (db/change_log.py).
"""

from __future__ import annotations

import abc
import datetime
import time
from collections.abc import Iterable
from typing import ClassVar, Final, Generic, TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db.change_log import ChangeLog
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.types import Author

State = TypeVar("State")
Entry = TypeVar("Entry")
Difference = TypeVar("Difference")

MAX_LOGGED: Final = 100
"""A call that makes more changes than this is logged by one line, with their number."""

PURGES_PER_AGE: Final = 10
"""The maximum number of checkpoints that purges write within the age of the entries that they delete."""

_MAX_ATTEMPTS: Final = 20


class ChangeHistory(abc.ABC, Generic[State, Entry, Difference]):
    """The history in one table. A subclass reads and replays its entries, and reads the present state."""

    subject: ClassVar[str]
    """What changes; for messages."""

    def __init__(self, database: Database, log: ChangeLog) -> None:
        """``database`` must have no statement timeout: the history may be long."""
        self._database = database
        self._log = log

    @abc.abstractmethod
    def _read_from_last_checkpoint(self, connection: Connection, before: int | None = None) -> list[Entry]:
        """The entries from the last checkpoint on, oldest first. ``before``: a generation."""

    @abc.abstractmethod
    def _read_state(self, connection: Connection) -> State:
        """The present state. The caller must exclude concurrent changes, or detect them."""

    @abc.abstractmethod
    def _replay(self, entries: Iterable[Entry]) -> tuple[State, list[Difference]]:
        """The state after these entries, and the changes that are not recorded."""

    @abc.abstractmethod
    def _compare(self, connection: Connection, replayed: State) -> list[Difference]:
        """The differences between the replayed and the present state."""

    @abc.abstractmethod
    def _write_checkpoint(
        self, connection: Connection, author: Author, state: State, *, number: int, operation: str | None = None
    ) -> int:
        """Record ``state`` as generation ``number``. Returns the number of rows written."""

    def _without_ended(self, state: State, at: datetime.datetime | None) -> State:  # noqa: ARG002 - for subclasses
        """``state`` without what had ended long before ``at`` (naive UTC), which no later entry can name."""
        return state

    def verify(self) -> list[Difference]:
        """Replay the history from its last checkpoint, and compare with the present state.

        Raises DatabaseUnavailable if the state keeps changing meanwhile.
        """

        def work(connection: Connection) -> list[Difference] | None:
            before = self._log.generation(connection)
            replayed, differences = self._replay(self._read_from_last_checkpoint(connection))
            differences += self._compare(connection, replayed)
            # Every change adds 1. (At READ COMMITTED, each statement sees the changes committed before it.)
            return differences if self._log.generation(connection) == before else None

        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            differences = self._database.long_transactions.read(work)
            if differences is not None:
                return differences
        raise exceptions.DatabaseUnavailable(f"the {self.subject} keep changing", time.monotonic() - began)

    def checkpoint(self, author: Author) -> int:
        """Record the present state, from which ``verify`` starts. Returns the number of rows written."""

        def work(connection: Connection) -> int:
            self._log.serialize(connection)
            number = self._log.generation(connection)
            return self._write_checkpoint(connection, author, self._read_state(connection), number=number)

        return self._database.long_transactions.write(work)

    def purge(self, age_microseconds: int, author: Author) -> int:
        """Replace the entries older than this age by one checkpoint. Returns the number of entries deleted.

        The checkpoint has the generation and the time of the last deleted change, and records the state after it. It
        has an entry for each limit and project, or for each inventory, and blocks all changes while it is written.
        Therefore nothing is done until the oldest entry is older than the age by 1 / PURGES_PER_AGE of it: the
        checkpoint is written at most PURGES_PER_AGE times in that time, however often this method is called.
        """

        def work(connection: Connection) -> int:
            self._log.serialize(connection)
            number = self._log.first_kept(connection, age_microseconds)
            last = self._log.last_before(connection, number)
            if last is None:
                return 0
            state, _ = self._replay(self._read_from_last_checkpoint(connection, number))
            deleted = self._log.delete_before(connection, number)
            kept = self._without_ended(state, last[1])
            self._write_checkpoint(connection, author, kept, number=last[0], operation="purge")
            self._log.set_time(connection, *last)
            return deleted

        longest = age_microseconds + age_microseconds // PURGES_PER_AGE
        if not self._database.read(lambda connection: self._log.has_older(connection, longest)):
            return 0
        return self._database.long_transactions.write(work)


def log_fields(author: Author, **more: object) -> str:
    """The author of a change for a log line, after the fields ``more``; without those that are None."""
    values = {**more, "user_id": author.user_id, "request_id": author.request_id, "reason": author.reason}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
