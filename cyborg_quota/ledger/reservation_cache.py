# SPDX-License-Identifier: Apache-2.0
"""Caches the reservations that this process made recently, so that settling them needs no SELECT.

The cached columns never change (project, resource, delta, consumer). The state may: the UPDATE that settles the rows
checks that they are still reserved. If its row count is too small, the caller reads the rows from the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cyborg_quota.transitions import Row
from cyborg_quota.types import Selection

_MAX_ROWS: Final = 20_000
"""The maximum number of cached rows. When it is exceeded, the cache is cleared."""


class ReservationCache:
    """Rows by UUID, and UUIDs by consumer. Shared by threads: each step is one dictionary operation."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._by_consumer: dict[tuple[str, str], tuple[str, ...]] = {}

    def remember(self, rows: Iterable[Row]) -> None:
        """Add rows that were just reserved."""
        if len(self._rows) > _MAX_ROWS:
            self._rows.clear()
            self._by_consumer.clear()
        by_consumer: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            self._rows[row.uuid] = row
            if row.consumer is not None:
                by_consumer.setdefault((row.project_id, row.consumer), []).append(row.uuid)
        for key, uuids in by_consumer.items():
            self._by_consumer[key] = tuple(uuids)

    def take(self, selection: Selection) -> Sequence[Row] | None:
        """Remove and return the rows that ``selection`` selects; None unless all of them are cached."""
        uuids: Sequence[str] | None = selection.uuids
        if selection.consumer is not None and selection.project_id is not None:
            uuids = self._by_consumer.pop((selection.project_id, selection.consumer), None)
        if uuids is None:
            return None
        rows = [self._rows.pop(uuid, None) for uuid in dict.fromkeys(uuids)]
        known = [row for row in rows if row is not None]
        for row in known:
            self._by_consumer.pop((row.project_id, str(row.consumer)), None)
        if len(known) < len(rows):
            return None
        if selection.project_id is not None and any(row.project_id != selection.project_id for row in known):
            return None
        return known
