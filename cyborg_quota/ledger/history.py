# SPDX-License-Identifier: Apache-2.0
"""Makes the changes of limits, the tree and capacity, one at a time, and announces them.

The transactions that make the changes record them themselves (db/change_log.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from oslo_log import log as logging

from cyborg_quota.db import change_log, charges
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.types import RecordedChanges
from cyborg_quota.types.limits import reason_of

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_LOGGED: Final = 100
"""A call that makes more changes than this is logged by one line, with their number."""


@dataclasses.dataclass(eq=False)
class History:
    """The changes of one ledger. ``listener`` is called after the commit of each transaction that makes changes."""

    listener: Callable[[RecordedChanges], None] | None = None

    def change(
        self,
        database: Database,
        work: Callable[[Connection], tuple[T, RecordedChanges | None]],
        *,
        defaults: Iterable[str] = (),
        dry_run: bool = False,
    ) -> T:
        """Run ``work`` in one transaction, serialized with all other changes, and announce what it has recorded.

        ``work`` returns a result and what it has recorded. When this method returns, no charge is granted by a limit
        that it has replaced (L2): see charges.py. ``defaults``: the resources whose defaults are set, also those
        that had the same value: an earlier call may have been killed before it renewed the rows. ``dry_run``: it only
        reads, and nothing waits for it.
        """

        earlier: list[tuple[T, RecordedChanges]] = []

        def serialized(connection: Connection) -> tuple[T, RecordedChanges | None]:
            change_log.serialize(connection)
            if earlier and change_log.has(connection, earlier[-1][1]):
                return earlier[-1]  # the answer to its COMMIT was lost
            result, recorded = work(connection)
            if recorded is not None:
                earlier.append((result, recorded))
            changes = () if recorded is None else recorded.changes
            removed = {change.project_id for change in changes if change.action == "remove project"} | {None}
            # The usage rows that the changed limits and overrides of projects bound; not of projects that were removed.
            bounded = [change for change in changes if change.resource is not None and change.project_id not in removed]
            if bounded:
                charges.renew(connection, {change.key for change in bounded})
            return result, recorded

        if dry_run:
            return database.read(work)[0]
        result, recorded = database.write(serialized)
        for resource in sorted(defaults):
            database.write(functools.partial(charges.renew_roots, resource=resource))
        self.announce(recorded)
        return result

    def announce(self, recorded: RecordedChanges | None) -> None:
        """Log the committed changes of one transaction, and pass them to the listener. Raises nothing."""
        if recorded is None:
            return
        author = recorded.author
        call = {
            "generation": recorded.generation,
            "operation": recorded.operation,
            "user_id": author.user_id,
            "request_id": author.request_id,
        }
        lines: list[tuple[str, dict[str, object]]] = [(f"{len(recorded.changes)} changes", {"reason": author.reason})]
        if len(recorded.changes) <= MAX_LOGGED:
            lines = []
            for change in recorded.changes:
                fields: dict[str, object] = {**change.names, "provider": change.provider}
                if (override := change.override) is not None:
                    fields |= {"override_id": override.id, "from": override.starts_at, "until": override.until}
                # (A limit without a project is a default; a value that was not set is left out.)
                fields |= {"before": change.before, "after": change.after, "reason": reason_of(author, change)}
                lines.append((change.action, fields))
        for line, own in lines:
            named = " ".join(f"{name}={value}" for name, value in {**call, **own}.items() if value is not None)
            LOG.info("changed: %s %s", line, named)
        if self.listener is None:
            return
        try:
            self.listener(recorded)
        except Exception:
            LOG.exception("Could not send the event of the changes of generation %d.", recorded.generation)
