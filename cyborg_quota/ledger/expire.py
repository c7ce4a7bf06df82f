# SPDX-License-Identifier: Apache-2.0
"""Expires overdue reservations in batches of a fixed size, each in its own transaction, longest overdue first."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import history, inventories, maintenance
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.history import ExpiryPosition
from cyborg_quota.db.maintenance import Overdue
from cyborg_quota.ledger.counters import Counting
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.scopes import scoped_name

_MOST_LOCKED: Final = 3
"""The maximum number of projects for whose locks one run of the expirer waits."""


class Expirer:
    """Expires overdue reservations. Shared by threads. ``batch_rows``: the size of a batch."""

    def __init__(self, database: Database, settler: Settler, batch_rows: int) -> None:
        self._database = database
        self._settler = settler
        self._batch_rows = batch_rows

    def expire(self, progress: Callable[[int], None] | None) -> int:
        """Expire all overdue reservations. Returns their number. ``progress`` is called with the size of each batch.

        Sweepers may run on several hosts: each skips what another one has locked. If the lock of a project's row is not
        granted, the reservations of the other projects are expired before the error is raised.
        """
        total = 0
        locked: dict[str, exceptions.DatabaseUnavailable] = {}
        for rows in self._overdue():
            for count in self._expire(rows, locked):
                total += count
                if progress is not None:
                    progress(count)
        for error in locked.values():
            raise error
        return total

    def _overdue(self) -> Iterator[Sequence[Overdue]]:
        """Read the overdue reservations, longest overdue first, in batches."""
        position: ExpiryPosition | None = None
        is_last = False
        while not is_last:
            before = position
            rows, position = self._database.read(
                lambda connection, after=before: history.read_overdue_after(  # type: ignore[misc]
                    connection, after, self._batch_rows, self._settler.grace
                )
            )
            is_last = position == before or len(rows) < self._batch_rows
            yield rows

    def _expire(
        self, rows: Sequence[Overdue], locked: dict[str, exceptions.DatabaseUnavailable]
    ) -> Iterator[int]:
        """Expire these reservations in one transaction; if a lock is not granted, project by project.

        Adds the projects whose lock is not granted to ``locked``, and leaves out those that it contains. Raises
        DatabaseUnavailable after _MOST_LOCKED of them: each takes as long as a statement may.
        """
        batch = [row for row in rows if _project(row) not in locked]
        try:
            count = self.expire_batch(batch)
        except exceptions.DatabaseUnavailable as error:
            if _is_of_all(error) or self._database.dialect.max_writers is not None:
                raise
        else:
            yield count
            return
        for project_id, of_project in itertools.groupby(sorted(batch, key=_project), key=_project):
            try:
                count = self.expire_batch(list(of_project))
            except exceptions.DatabaseUnavailable as error:
                locked[project_id] = error
                if _is_of_all(error) or len(locked) >= _MOST_LOCKED:
                    raise
            else:
                yield count

    def expire_batch(self, rows: Sequence[Overdue]) -> int:
        """Expire those of these reservations that are still overdue, in one transaction. Returns their number."""
        ids = [row[0] for row in rows]

        def work(connection: Connection, counting: Counting) -> int:
            overdue = history.lock_overdue(connection, ids, self._settler.grace)
            if overdue:
                self._expire_rows(connection, counting, overdue)
            return len(overdue)

        return self._settler.write(work) if ids else 0

    def _expire_rows(self, connection: Connection, counting: Counting, rows: Sequence[Overdue]) -> None:
        """Raises ConcurrentChange if another transaction has settled one of the rows."""
        if not maintenance.expire(connection, rows, self._settler.grace):
            raise ConcurrentChange
        freed: dict[inventories.Key, int] = {}
        in_pods: list[tuple[str, str, int]] = []
        for _, project_id, resource, delta, provider_id, _, pod in rows:
            if provider_id is not None:
                freed[provider_id, resource] = freed.get((provider_id, resource), 0) + delta
            if pod is not None:
                in_pods.append((project_id, scoped_name(resource, pod), delta))
        if freed:
            inventories.give_back(connection, freed)
        counting.expire([*(row[1:4] for row in rows), *in_pods])


def _is_of_all(error: exceptions.DatabaseUnavailable) -> bool:
    """Whether the batches of other projects would fail too."""
    return isinstance(error, (exceptions.DatabaseUnreachable, exceptions.DatabaseReadOnly))


_project: Final = operator.itemgetter(1)
"""The project of an overdue reservation."""
