# SPDX-License-Identifier: Apache-2.0
"""Reservations of all projects: lists them, sets their source, expires those that are overdue, and purges ended ones.

What else changes their state is in settle.py, reserve.py and resize.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Final

from cyborg_quota.db import charges, history, maintenance, reservations
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.history import ExpiryPosition
from cyborg_quota.db.prepared import chunks
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.types import Reservation, ReservationFilter, Row

_SOURCE_ROWS: Final = 256
"""The maximum number of rows of which one transaction sets the source."""

_MIN_ROWS_TO_FOLD: Final = 2
_MAX_GROUPS: Final = 10_000
"""The maximum number of groups that one purge folds; the next one continues."""


@dataclasses.dataclass(eq=False)
class Reservations:
    """The reservations of one ledger. Shared by threads."""

    _database: Database
    _settler: Settler
    _batch_rows: int
    """The size of a batch of expiry and purge."""

    def read(self, wanted: ReservationFilter) -> list[Reservation]:
        """The reservations that match, oldest first. Raises ReservationNotFound."""
        # A consumer or a group has few rows, also where a project's own user asks.
        database = self._database.untimed if wanted.consumer is None and wanted.group is None else self._database
        return database.read(lambda connection: history.list_reservations(connection, wanted))

    def list_by_consumer(
        self,
        project_id: str | None,
        consumers: Collection[str] | None,
        limit: int | None,
        after: Sequence[str] | None,
    ) -> list[Reservation]:
        """The live reservations of consumers, by consumer and UUID, after this consumer and UUID."""
        return self._database.untimed.read(
            lambda connection: history.list_by_consumer(
                connection, project_id=project_id, consumers=consumers, limit=limit, after=after
            )
        )

    def set_source(self, uuids: Sequence[str], source: str, replaced: str | None) -> int:
        """Set the source of the live reservations among ``uuids`` whose source is ``replaced`` (None: that have none).

        Returns the number of rows set.
        """
        set_source = functools.partial(reservations.set_source, source=source, replaced=replaced)
        return sum(
            self._database.write(functools.partial(set_source, uuids=batch)) for batch in chunks(uuids, _SOURCE_ROWS)
        )

    def expire(self, progress: Callable[[int], None] | None) -> int:
        """Expire all overdue reservations. Returns their number. ``progress`` is called with the size of each batch.

        Sweepers may run on several hosts: each skips what another has locked. A row that stays locked ends this run
        with DatabaseUnavailable; the batches before stay expired.
        """
        total = 0
        position: ExpiryPosition | None = None
        while True:
            rows, end = self._settler.write(functools.partial(self.expire_after, position))
            total += len(rows)
            if rows and progress is not None:
                progress(len(rows))
            if end == position:
                return total
            position = end

    def expire_after(
        self, position: ExpiryPosition | None, connection: Connection
    ) -> tuple[Sequence[Row], ExpiryPosition | None]:
        """Expire the next batch. Returns its rows and the position of its end."""
        rows, end = history.overdue_after(connection, position, self._batch_rows, self._settler.grace)
        self._settler.expire(connection, rows)
        return rows, end

    def purge(self, age_microseconds: int, progress: Callable[[int], None] | None) -> int:
        """Purge rows that are older than ``age_microseconds``. Returns the number of rows removed.

        ``progress`` is called after each batch, with the number of rows removed.
        """
        progress = progress or (lambda _: None)
        purged, count = 0, self._batch_rows
        purge = functools.partial(charges.purge_ended, age_microseconds=age_microseconds, limit=self._batch_rows)
        while count == self._batch_rows:
            count = self._database.write(purge)
            purged += count
            progress(count)
        rows = max(_MIN_ROWS_TO_FOLD, self._batch_rows)
        for group in self._database.untimed.read(
            lambda connection: maintenance.foldable(connection, age_microseconds, _MAX_GROUPS)
        ):
            fold = functools.partial(maintenance.fold, group=group, age_microseconds=age_microseconds, limit=rows)
            while removed := self._database.write(fold):
                purged += removed
                progress(removed)
        return purged
