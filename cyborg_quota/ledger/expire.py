# SPDX-License-Identifier: Apache-2.0
"""Expires overdue reservations in batches of a fixed size, each in its own transaction, longest overdue first."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import history
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.history import ExpiryPosition
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.types import Row

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
        for count in self._batches(locked):
            total += count
            if progress is not None:
                progress(count)
        for error in locked.values():
            raise error
        return total

    def _batches(self, locked: dict[str, exceptions.DatabaseUnavailable]) -> Iterator[int]:
        """Expire each batch in one transaction; if a lock is not granted, project by project. Yields the sizes.

        Adds the projects whose lock is not granted to ``locked``, and leaves out those that it contains.
        """
        before: ExpiryPosition | None = None
        while True:
            try:
                rows, position = self.expire_after(before, locked)
            except exceptions.DatabaseUnavailable as error:
                if _is_of_all(error) or self._database.dialect.max_writers is not None:
                    raise
                rows, position = self._read_after(before)
                yield from self._expire_each(rows, locked)
            else:
                if rows:
                    yield len(rows)
            if position == before:
                return
            before = position

    def expire_after(
        self, position: ExpiryPosition | None, locked: Collection[str] = ()
    ) -> tuple[Sequence[Row], ExpiryPosition | None]:
        """Expire the next batch, without those of ``locked`` projects. Returns its rows and the position of its end."""

        def work(connection: Connection) -> tuple[Sequence[Row], ExpiryPosition | None]:
            rows, end = history.overdue_after(connection, position, self._batch_rows, self._settler.grace, lock=True)
            batch = [row for row in rows if row.project_id not in locked]
            self._settler.expire(connection, batch)
            return batch, end

        return self._settler.write(work)

    def _read_after(self, position: ExpiryPosition | None) -> tuple[Sequence[Row], ExpiryPosition | None]:
        grace = self._settler.grace
        return self._database.read(
            lambda connection: history.overdue_after(connection, position, self._batch_rows, grace, lock=False)
        )

    def _expire_each(self, rows: Sequence[Row], locked: dict[str, exceptions.DatabaseUnavailable]) -> Iterator[int]:
        """Expire the rows of each project in one transaction.

        Raises DatabaseUnavailable after _MOST_LOCKED locks that are not granted: each takes as long as a statement may.
        """
        for project_id, of_project in itertools.groupby(sorted(rows, key=_project), key=_project):
            if project_id in locked:
                continue
            try:
                count = self._settler.expire_rows([row.uuid for row in of_project])
            except exceptions.DatabaseUnavailable as error:
                locked[project_id] = error
                if _is_of_all(error) or len(locked) >= _MOST_LOCKED:
                    raise
            else:
                yield count


def _is_of_all(error: exceptions.DatabaseUnavailable) -> bool:
    """Whether the batches of other projects would fail too."""
    return isinstance(error, (exceptions.DatabaseUnreachable, exceptions.DatabaseReadOnly))


_project: Final = operator.attrgetter("project_id")
