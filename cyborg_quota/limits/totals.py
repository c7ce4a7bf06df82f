# SPDX-License-Identifier: Apache-2.0
"""Sets and removes total limits over all projects. The rows that count are described in db/totals.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, totals, usage_locks, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.paths import PathCache, until_stable
from cyborg_quota.limits import holdings
from cyborg_quota.limits import tables as limits
from cyborg_quota.types import TOTAL, Author, RecordedChange, RecordedChanges, TotalLimit, UsageKey


class TotalLimits:
    """The total limits of one ledger with the limit driver ``database``."""

    def __init__(self, database: Database, paths: PathCache, history: History) -> None:
        self._database = database
        self._paths = paths
        self._history = history

    def read(self) -> list[TotalLimit]:
        """All total limits, by resource."""
        return self._database.read_synced(limits.read_totals)

    def count_held(self, resources: Collection[str]) -> dict[str, int]:
        """used + reserved of all projects, by resource, from all counters: also where no total limit is set."""
        held = self._database.read(lambda connection: holdings.sums(connection, resources))
        return {**dict.fromkeys(resources, 0), **held}

    def find_changes(self, wanted: Mapping[str, int | None]) -> list[RecordedChange]:
        """The changes that setting these limits would make. None: remove the limit."""
        return _changes(self.read(), wanted)

    def set(
        self,
        wanted: Mapping[str, int | None],
        author: Author,
        *,
        must_exist: bool = False,
        operation: str | None = None,
    ) -> None:
        """Set these total limits; None removes one. All or none. When it returns, they are enforced.

        ``must_exist``: raise TotalLimitNotFound if one that is to be removed is not set. ``operation``: the call, for
        the history. After a crash, the same call continues.
        """

        given = sorted(resource for resource, limit in wanted.items() if limit is not None)
        made: dict[UsageKey, int] = {}

        def make_rows(connection: Connection) -> dict[UsageKey, int]:
            change_log.serialize(connection)
            for resource in given:
                totals.make_row(connection, resource)
            return totals.read_rows(connection)

        def write(connection: Connection) -> tuple[bool | None, RecordedChanges | None]:
            present = limits.read_totals(connection)
            known, rows = {one.resource for one in present}, totals.read_rows(connection)
            if must_exist and (missing := wanted.keys() - known - {key.resource for key in rows}):
                raise exceptions.TotalLimitNotFound(missing)
            new = set(given) - known
            if any(rows.get(key) != made.get(key) for key in (UsageKey(TOTAL, resource) for resource in new)):
                return None, None  # another call has removed a limit, and its row: make it again
            recorded = change_log.record(connection, author, _changes(present, wanted), operation=operation)
            for resource, limit in sorted(wanted.items()):
                limits.set_limit(connection, UsageKey(TOTAL, resource), limit)
                if limit is None:
                    usages.delete(connection, UsageKey(TOTAL, resource))
            # From here on, charges of these resources wait.
            totals.count(connection, new)
            return True, recorded

        def attempt() -> bool | None:
            made.update(self._database.write(make_rows))
            for resource in sorted(set(given) - {one.resource for one in self.read()}):
                usage_locks.renew_all_roots(self._database.write, resource)
            return self._history.change(self._database, write)

        until_stable(attempt)
        self._paths.forget_all()


def _changes(present: Collection[TotalLimit], wanted: Mapping[str, int | None]) -> list[RecordedChange]:
    before = {one.resource: one.limit for one in present}
    return [
        RecordedChange("unset limit" if limit is None else "set limit", TOTAL, resource, before.get(resource), limit)
        for resource, limit in sorted(wanted.items())
        if before.get(resource) != limit
    ]
