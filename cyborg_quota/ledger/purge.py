# SPDX-License-Identifier: Apache-2.0
"""Purges: deletes ended reservations, and merges old committed rows without consumer and group, in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cyborg_quota.db import maintenance, new_reservations
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.ledger.expire import run_batches

_MIN_ROWS_TO_FOLD: Final = 2


class Purger:
    """Deletes and merges old reservations. Usage does not change."""

    def __init__(self, database: Database, untimed: Database, batch_rows: int) -> None:
        """``untimed``: the same database without a statement timeout, to find the rows to merge."""
        self._database = database
        self._untimed = untimed
        self._batch_rows = batch_rows

    def purge(self, age_microseconds: int, progress: Callable[[int], None] | None) -> int:
        """Purge rows that are older than ``age_microseconds``. Returns the number of rows removed.

        ``progress`` is called with the size of each batch of deleted rows.
        """

        def delete_batch(rows: int) -> int:
            def work(connection: Connection) -> int:
                deleted = maintenance.purge_ended(connection, age_microseconds, rows)
                if deleted is None:
                    raise ConcurrentChange
                return deleted

            return self._database.write(work)

        purged = run_batches(self._database, delete_batch, self._batch_rows, progress)
        for group in self._untimed.read(lambda connection: maintenance.foldable(connection, age_microseconds)):
            purged += self._fold(group, age_microseconds)
        return purged

    def _fold(self, group: maintenance.FoldGroup, age_microseconds: int) -> int:
        """Merge the old committed rows of one usage row and provider. Returns the number of rows removed."""

        def work(connection: Connection) -> int:
            uuid = new_reservations.new_uuid()
            rows = max(_MIN_ROWS_TO_FOLD, self._batch_rows)
            removed = maintenance.fold(connection, group, age_microseconds, rows, uuid)
            if removed is None:
                raise ConcurrentChange
            return removed

        total = 0
        while folded := self._database.write(work):
            total += folded
        return total
