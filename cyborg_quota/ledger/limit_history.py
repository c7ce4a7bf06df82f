# SPDX-License-Identifier: Apache-2.0
"""The history of limits: announces changes, and lists, verifies, checkpoints and purges the history.

The changes themselves are recorded by the transactions that make them (db/limit_history.py).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import limit_history as tables
from cyborg_quota.db import limits as limit_tables
from cyborg_quota.db import overrides
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.limits import history
from cyborg_quota.limits.timeline import shown
from cyborg_quota.types import TOTAL, Author, HistoryDifference, HistoryEntry, LimitChange, RecordedChanges

LOG = logging.getLogger(__name__)

MAX_ANNOUNCED: Final = 100
"""A call that makes more changes than this is announced by one log line and one event, with their number."""

_MAX_ATTEMPTS: Final = 20

Listener = Callable[[RecordedChanges], None]


class LimitHistory:
    """The history of one ledger. ``listener`` is called after the commit of each transaction that changes limits."""

    def __init__(self, database: Database) -> None:
        """``database`` must have no statement timeout: the history may be long."""
        self._database = database
        self.listener: Listener | None = None

    def announce(self, recorded: RecordedChanges | None) -> None:
        """Log the committed changes of one transaction, and pass them to the listener. Raises nothing."""
        if recorded is None:
            return
        if len(recorded.changes) > MAX_ANNOUNCED:
            LOG.info("limits changed: %d changes [%s]", len(recorded.changes), _fields(recorded))
        else:
            for change in recorded.changes:
                LOG.info("limits changed: %s [%s]", _sentence(change), _fields(recorded))
        if self.listener is None:
            return
        try:
            self.listener(recorded)
        except Exception:
            LOG.exception("Could not send the event of limit changes (generation %d).", recorded.generation)

    def entries(
        self,
        *,
        project_id: str | None,
        since: datetime.datetime | datetime.timedelta | None,
        limit: int | None,
        before: tuple[int, int] | None,
        resource: str | None = None,
    ) -> list[HistoryEntry]:
        """The entries that match all given filters, newest first; see db.limit_history.read."""
        return self._database.read(
            lambda connection: tables.read(
                connection, project_id=project_id, since=since, limit=limit, before=before, resource=resource
            )
        )

    def verify(self) -> list[HistoryDifference]:
        """Replay the history from its last checkpoint, and compare with the present limits and tree.

        Raises DatabaseUnavailable if they keep changing meanwhile.
        """

        def work(connection: Connection) -> list[HistoryDifference] | None:
            before = tables.generation(connection)
            replayed, differences = history.replay(tables.read_from_last_checkpoint(connection))
            differences += history.compare(replayed, tables.read_state(connection), overrides.now(connection))
            # Every change adds 1. (At READ COMMITTED, each statement sees the changes committed before it.)
            return differences if tables.generation(connection) == before else None

        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            differences = self._database.long_transactions.read(work)
            if differences is not None:
                return differences
        raise exceptions.DatabaseUnavailable("the limits keep changing", time.monotonic() - began)

    def checkpoint(self, author: Author) -> int:
        """Record the present limits and tree, from which ``verify`` starts. Returns the number of rows written."""

        def work(connection: Connection) -> int:
            limit_tables.serialize_tree_changes(connection)
            number = tables.generation(connection)
            return tables.write_checkpoint(connection, author, tables.read_state(connection), number=number)

        return self._database.long_transactions.write(work)

    def purge(self, age_microseconds: int, author: Author) -> int:
        """Replace the entries older than this age by one checkpoint. Returns the number of entries deleted.

        The checkpoint has the generation and the time of the last deleted change, and records the state after it.
        """

        def work(connection: Connection) -> int:
            limit_tables.serialize_tree_changes(connection)
            number = tables.first_kept(connection, age_microseconds)
            last = tables.last_before(connection, number)
            if last is None:
                return 0
            state, _ = history.replay(tables.read_from_last_checkpoint(connection, number))
            deleted = tables.delete_before(connection, number)
            tables.write_checkpoint(connection, author, state, number=last[0], operation="purge")
            tables.set_time(connection, *last)
            return deleted

        return self._database.long_transactions.write(work)


def _sentence(change: LimitChange) -> str:
    project = "total over all projects" if change.project_id == TOTAL else f"project {change.project_id}"
    names = [project if change.project_id is not None else "default"]
    if change.resource is not None:
        names.append(f"resource {change.resource}" + ("" if change.pod is None else f" in pod {change.pod}"))
    if (one := change.override) is not None:
        names.append(f"override {one.id} from {shown(one.starts_at)} until {shown(one.until)}")
    return f"{change.action}, {', '.join(names)}: {_shown(change.before)} -> {_shown(change.after)}"


def _shown(value: str | int | None) -> str:
    return "none" if value is None else str(value)


def _fields(recorded: RecordedChanges) -> str:
    author = recorded.author
    values = {
        "generation": recorded.generation,
        "operation": recorded.operation,
        "user_id": author.user_id,
        "request_id": author.request_id,
        "reason": author.reason,
    }
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
