# SPDX-License-Identifier: Apache-2.0
"""Lists reservations, and sets their source. What changes their state is in settle.py, resize.py and transfer.py."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Final

from cyborg_quota.db import history, reservations
from cyborg_quota.db.database import Database
from cyborg_quota.db.prepared import chunks
from cyborg_quota.types import Reservation, ReservationFilter

_SOURCE_ROWS: Final = 256
"""The maximum number of rows of which one transaction sets the source."""


class Reservations:
    """The reservations of one ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._untimed = database.untimed

    def read(self, wanted: ReservationFilter) -> list[Reservation]:
        """The reservations that match, oldest first. Raises ReservationNotFound."""
        # A consumer or a group has few rows, also where a project's own user asks.
        database = self._untimed if wanted.consumer is None and wanted.group is None else self._database
        return database.read(lambda connection: history.list_reservations(connection, wanted))

    def list_by_consumer(
        self,
        project_id: str | None,
        consumers: Collection[str] | None,
        limit: int | None,
        after: tuple[str, str] | None,
    ) -> list[Reservation]:
        """The live reservations of consumers, by consumer and UUID, after this consumer and UUID."""
        return self._untimed.read(
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
