# SPDX-License-Identifier: Apache-2.0
"""Purges: deletes ended reservations, and merges old committed rows without consumer and group, in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cyborg_quota.db import maintenance
from cyborg_quota.db.database import Database

_MIN_ROWS_TO_FOLD: Final = 2
_GROUPS_PER_PAGE: Final = 10_000
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
        progress = progress or (lambda _: None)
        purged, count = 0, self._batch_rows
        while count == self._batch_rows:
            count = self._database.write(
                lambda connection: maintenance.purge_ended(connection, age_microseconds, self._batch_rows)
            )
            purged += count
            progress(count)
        count = _GROUPS_PER_PAGE
        while count == _GROUPS_PER_PAGE:  # (their number is not bounded; one that is folded is not found again)
            groups = self._untimed.read(
                lambda connection: maintenance.foldable(connection, age_microseconds, _GROUPS_PER_PAGE)
            )
            purged += sum(self._fold(group, age_microseconds, progress) for group in groups)
            count = len(groups)
        return purged

    def _fold(self, group: maintenance.FoldGroup, age_microseconds: int, progress: Callable[[int], None]) -> int:
        """Fold the old committed rows of one group. Returns the number of rows removed."""
        rows = max(_MIN_ROWS_TO_FOLD, self._batch_rows)
        total = 0
        while removed := self._database.write(
            lambda connection: maintenance.fold(connection, group, age_microseconds, rows)
        ):
            total += removed
            progress(removed)
        return total
