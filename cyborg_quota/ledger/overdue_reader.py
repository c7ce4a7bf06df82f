# SPDX-License-Identifier: Apache-2.0
"""Reads overdue reservations ahead in the order of expiry, and returns them in batches sorted by usage row.

Reservations that expire one after the other belong to many different projects. In that order, each of them changes
another usage row and other index pages. Among many thousands, each project has several: expired together, they change
the usage row once, and the index pages while they are in memory.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from cyborg_quota.db.many import Overdue, Place

_MAX_BATCHES: Final = 100
_MAX_ROWS: Final = 200_000
"""The maximum number of batches, and of rows, that are sorted together. (A row takes 130 bytes.)"""

_READ_BATCHES: Final = 5
"""The number of batches that one statement reads: it must end well before the statement timeout."""

Read = Callable[[Place | None, int], tuple[Sequence[Any], Place | None]]
"""Reads the next overdue reservations after a position: see db/many.py, overdue_behind."""


class OverdueReader:
    """Reads overdue reservations, one window after the other. Not thread-safe."""

    def __init__(self, read: Read, batch_rows: int) -> None:
        self._read = read
        self._batch_rows = batch_rows
        self._position: Place | None = None
        self._reads: list[list[tuple[str, str, int, int]]] = []
        self._size = 0
        self.is_read = False

    @property
    def is_full(self) -> bool:
        """Whether the window is full, or all rows have been read."""
        return self.is_read or self._size >= min(_MAX_BATCHES * self._batch_rows, _MAX_ROWS)

    @property
    def is_over(self) -> bool:
        """Whether all rows have been read and returned."""
        return self.is_read and not self._size

    def read(self) -> None:
        """Read more rows into the window."""
        max_rows = _READ_BATCHES * self._batch_rows
        rows, self._position = self._read(self._position, max_rows)
        # Interned, so that equal names share one string.
        self._reads.append(sorted((sys.intern(row[1]), sys.intern(row[2]), row[0], row[3]) for row in rows))
        self._size += len(rows)
        self.is_read = len(rows) < max_rows

    def hand_out(self) -> list[list[Overdue]]:
        """Return all rows of the window in batches, and empty it.

        The rows of one usage row are in one batch, unless they exceed the size of a batch.
        """
        reads, self._reads, self._size = self._reads, [], 0
        batches: list[list[Overdue]] = []
        batch: list[Overdue] = []
        # Merged, not sorted again: sorting would block all other threads of the process for half a second.
        for _, rows in itertools.groupby(heapq.merge(*reads), key=operator.itemgetter(0, 1)):
            of_usage_row = [(number, project_id, resource, delta) for project_id, resource, number, delta in rows]
            if batch and len(batch) + len(of_usage_row) > self._batch_rows:
                batches.append(batch)
                batch = []
            batch += of_usage_row
            while len(batch) > self._batch_rows:
                batches.append(batch[: self._batch_rows])
                del batch[: self._batch_rows]
        return [*batches, batch] if batch else batches
