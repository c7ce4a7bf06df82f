# SPDX-License-Identifier: Apache-2.0
"""Purges: deletes ended reservations, and merges old committed rows without consumer and group, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cyborg_quota.db import maintenance
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange

_MIN_ROWS_TO_FOLD: Final = 2
_USAGE_ROWS_PER_PAGE: Final = 10_000
"""Large, because the query of each page may read all committed reservations: a database need not use the index."""


class Purger:
    """Deletes and merges old reservations. Usage does not change."""

    def __init__(self, database: Database, batch_rows: int) -> None:
        self._database = database
        self._untimed = database.untimed
        self._batch_rows = batch_rows

    def purge(self, age_microseconds: int, progress: Callable[[int], None] | None) -> int:
        """Purge rows that are older than ``age_microseconds``. Returns the number of rows removed.

        ``progress`` is called after each batch, with the number of rows removed.
        """

        def delete_batch(connection: Connection) -> int:
            deleted = maintenance.purge_ended(connection, age_microseconds, self._batch_rows)
            if deleted is None:
                raise ConcurrentChange
            return deleted

        purged, count = 0, self._batch_rows
        while count == self._batch_rows:
            count = self._database.write(delete_batch)
            purged += count
            if progress is not None:
                progress(count)
        for usage_id in self._foldable_usage_rows(age_microseconds):
            for group in self._untimed.read(
                lambda connection, usage_id=usage_id: maintenance.foldable(connection, usage_id, age_microseconds)  # type: ignore[misc]
            ):
                purged += self._fold(group, age_microseconds, progress or (lambda _: None))
        return purged

    def _foldable_usage_rows(self, age_microseconds: int) -> Iterator[int]:
        """The ids of the usage rows that may have rows to fold, read in pages: their number is not bounded."""
        after = -1
        while page := self._untimed.read(
            lambda connection, after=after: maintenance.foldable_usage_rows(  # type: ignore[misc]
                connection, age_microseconds, after, _USAGE_ROWS_PER_PAGE
            )
        ):
            yield from page
            after = page[-1]

    def _fold(self, group: maintenance.FoldGroup, age_microseconds: int, progress: Callable[[int], None]) -> int:
        """Fold the old committed rows of one group. Returns the number of rows removed."""
        rows = max(_MIN_ROWS_TO_FOLD, self._batch_rows)

        def work(connection: Connection) -> int:
            removed = maintenance.fold(connection, group, age_microseconds, rows)
            if removed is None:
                raise ConcurrentChange
            return removed

        total = 0
        while removed := self._database.write(work):
            total += removed
            progress(removed)
        return total
