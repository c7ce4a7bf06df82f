# SPDX-License-Identifier: Apache-2.0
"""Sets and removes total limits over all projects. The rows that count are described in db/totals.py.

    open the total, record the limit                     (one transaction)
    count the next BATCH_ROOTS roots                     (one transaction each, until there are none left)
    begin to enforce the limit                           (one transaction)

All these transactions are serialized with changes of the tree, so that a root stays a root in them. A charge of one of
these projects waits for one batch at most. After a crash, the same call continues. To remove a limit runs in the same
way: it is not enforced any more after the first transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, holdings, path_state, totals
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.project_tree import PathCache
from cyborg_quota.types import TOTAL, Author, RecordedChange, RecordedChanges, TotalLimit

BATCH_ROOTS: Final = 100
"""The number of roots that one transaction counts."""

Progress = Callable[[int], None]


class TotalLimits:
    """The total limits of one ledger with the limit driver ``database``."""

    def __init__(self, database: Database, paths: PathCache, history: History) -> None:
        self._database = database
        self._paths = paths
        self._history = history

    def read(self) -> list[TotalLimit]:
        """All total limits, by resource."""
        return self._database.read_synced(totals.read_limits)

    def count_held(self, resources: Collection[str]) -> dict[str, int]:
        """used + reserved of all projects, by resource, from all counters: also where no total limit is set."""
        held = self._database.read(lambda connection: holdings.sums(connection, resources))
        return {**dict.fromkeys(resources, 0), **held}

    def find_changes(self, limits: Mapping[str, int | None]) -> list[RecordedChange]:
        """The changes that setting these limits would make. None: remove the limit."""
        return _changes(self.read(), limits)

    def apply(self, limits: Mapping[str, int | None], author: Author, *, dry_run: bool) -> list[RecordedChange]:
        """Import these total limits; None: remove it. Returns the changes. ``dry_run``: write nothing.

        Raises TotalLimitChanged.
        """
        changes = self.find_changes(limits)
        if not dry_run:
            given = {resource: limit for resource, limit in limits.items() if limit is not None}
            self.set(given, author, operation="import")
            try:
                self.unset([str(one.resource) for one in changes if one.after is None], author, operation="import")
            except exceptions.TotalLimitNotFound as error:
                raise exceptions.TotalLimitChanged(error.resources[0]) from None
        return changes

    def set(
        self,
        limits: Mapping[str, int],
        author: Author,
        progress: Progress | None = None,
        *,
        operation: str | None = None,
    ) -> None:
        """Set these total limits, and count all projects in new ones. When it returns, the limits are enforced.

        ``progress`` is called with the number of roots of each batch. ``operation``: the call, for the history. Raises
        TotalLimitChanged.
        """

        def begin(connection: Connection) -> tuple[set[str], RecordedChanges | None]:
            change_log.serialize(connection)
            present = totals.read_limits(connection)
            recorded = change_log.record(connection, author, _changes(present, limits), operation=operation)
            for resource, limit in sorted(limits.items()):
                totals.set_limit(connection, resource, limit)
                totals.open_row(connection, resource)
            return set(limits) - {one.resource for one in present if one.is_enforced}, recorded

        new, recorded = self._database.write(begin)
        self._history.announce(recorded)
        for resource in sorted(new):
            while True:
                self._count(resource, progress, is_counted=True)
                if self._database.write(lambda connection, resource=resource: self._enforce(connection, resource)):  # type: ignore[misc]
                    break
        self._paths.forget_all()

    def unset(
        self,
        resources: Collection[str],
        author: Author,
        progress: Progress | None = None,
        *,
        operation: str | None = None,
    ) -> None:
        """Remove these total limits, all or none. Raises TotalLimitNotFound, TotalLimitChanged.

        After a crash, the same call continues. ``progress``, ``operation``: as in ``set``.
        """

        def begin(connection: Connection) -> RecordedChanges | None:
            change_log.serialize(connection)
            present = totals.read_limits(connection)
            known = {one.resource for one in present} | path_state.read_totals(connection, resources).keys()
            if missing := sorted(set(resources) - known):
                raise exceptions.TotalLimitNotFound(missing)
            changes = _changes(present, dict.fromkeys(resources))
            recorded = change_log.record(connection, author, changes, operation=operation)
            for resource in sorted(resources):
                totals.delete_limit(connection, resource)
                totals.close_row(connection, resource)
            return recorded

        self._history.announce(self._database.write(begin))
        for resource in sorted(resources):
            while True:
                self._count(resource, progress, is_counted=False)
                if self._database.write(lambda connection, resource=resource: self._delete(connection, resource)):  # type: ignore[misc]
                    break
        self._paths.forget_all()

    def _count(self, resource: str, progress: Progress | None, *, is_counted: bool) -> None:
        """Count all roots in the total (or none of them), in batches, by project."""
        after: str | None = None

        def batch(connection: Connection) -> tuple[int, str | None]:
            change_log.serialize(connection)
            total = path_state.read_totals(connection, [resource]).get(resource)
            if total is None or total.is_open != is_counted:
                raise exceptions.TotalLimitChanged(resource)
            roots = path_state.next_roots(
                connection, resource, is_counted=not is_counted, after=after, limit=BATCH_ROOTS
            )
            if roots:
                totals.set_counted(connection, roots, {resource: total.node}, is_counted=is_counted)
            return len(roots), roots[-1].project_id if roots else after

        while True:
            number, after = self._database.write(batch)
            if not number:
                return
            if progress is not None:
                progress(number)

    def _enforce(self, connection: Connection, resource: str) -> bool:
        """Begin to enforce the limit, unless a root is not counted yet: False."""
        change_log.serialize(connection)
        if path_state.next_roots(connection, resource, is_counted=False, limit=1):
            return False
        if not totals.enforce(connection, resource):
            raise exceptions.TotalLimitChanged(resource)
        return True

    def _delete(self, connection: Connection, resource: str) -> bool:
        """Delete the row of the total, unless it counts a root: False."""
        change_log.serialize(connection)
        if path_state.next_roots(connection, resource, is_counted=True, limit=1):
            return False
        path_state.delete_closed_total(connection, resource)
        return True


def _changes(present: Collection[TotalLimit], limits: Mapping[str, int | None]) -> list[RecordedChange]:
    before = {one.resource: one.limit for one in present}
    return [
        RecordedChange("unset limit" if limit is None else "set limit", TOTAL, resource, before.get(resource), limit)
        for resource, limit in sorted(limits.items())
        if before.get(resource) != limit
    ]
