# SPDX-License-Identifier: Apache-2.0
"""The history of limits: announces changes, and lists the history. change_history.py has the rest.

The changes themselves are recorded by the transactions that make them (db/limit_history.py).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable

from oslo_log import log as logging

from cyborg_quota.db import limit_history as tables
from cyborg_quota.db import overrides
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.limit_history import StoredState
from cyborg_quota.ledger.change_history import MAX_LOGGED, ChangeHistory, log_fields
from cyborg_quota.limit_types import reason_of
from cyborg_quota.limits import history
from cyborg_quota.limits.timeline import shown
from cyborg_quota.types import TOTAL, Author, HistoryDifference, HistoryEntry, LimitChange, RecordedChanges

LOG = logging.getLogger(__name__)

Listener = Callable[[RecordedChanges], None]


class LimitHistory(ChangeHistory[StoredState, HistoryEntry, HistoryDifference]):
    """The history of one ledger. ``listener`` is called after the commit of each transaction that changes limits."""

    subject = "limits"

    def __init__(self, database: Database) -> None:
        """``database``: see ChangeHistory."""
        super().__init__(database, tables.CHANGES)
        self.listener: Listener | None = None

    def announce(self, recorded: RecordedChanges | None) -> None:
        """Log the committed changes of one transaction, and pass them to the listener. Raises nothing."""
        if recorded is None:
            return
        numbers = {"generation": recorded.generation, "operation": recorded.operation}
        if len(recorded.changes) > MAX_LOGGED:
            fields = log_fields(recorded.author, **numbers)
            LOG.info("limits changed: %d changes [%s]", len(recorded.changes), fields)
        else:
            for change in recorded.changes:
                author = dataclasses.replace(recorded.author, reason=reason_of(recorded.author, change))
                fields = log_fields(author, **numbers)
                LOG.info("limits changed: %s [%s]", _sentence(change), fields)
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
        """The entries that match all given filters, newest first; see db.limit_history.read.

        Raises MarkerNotFound if the list has no entry ``before``; that of another project is not known either (I8).
        """

        def work(connection: Connection) -> list[HistoryEntry]:
            if before is not None:
                tables.require_entry(connection, before, project_id)
            return tables.read(
                connection, project_id=project_id, since=since, limit=limit, before=before, resource=resource
            )

        return self._database.read(work)

    def _read_from_last_checkpoint(self, connection: Connection, before: int | None = None) -> list[HistoryEntry]:
        return tables.read_from_last_checkpoint(connection, before)

    def _read_state(self, connection: Connection) -> StoredState:
        return tables.read_state(connection)

    def _replay(self, entries: Iterable[HistoryEntry]) -> tuple[StoredState, list[HistoryDifference]]:
        return history.replay(entries)

    def _compare(self, connection: Connection, replayed: StoredState) -> list[HistoryDifference]:
        return history.compare(replayed, tables.read_state(connection), overrides.now(connection))

    def _without_ended(self, state: StoredState, at: datetime.datetime | None) -> StoredState:
        if at is None:
            return state
        since = at - datetime.timedelta(seconds=overrides.KEPT_SECONDS)
        kept = {override_id: one for override_id, one in state.overrides.items() if one.until > since}
        return dataclasses.replace(state, overrides=kept)

    def _write_checkpoint(
        self, connection: Connection, author: Author, state: StoredState, *, number: int, operation: str | None = None
    ) -> int:
        return tables.write_checkpoint(connection, author, state, number=number, operation=operation)


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
