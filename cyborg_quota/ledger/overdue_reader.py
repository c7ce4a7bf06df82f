# SPDX-License-Identifier: Apache-2.0
"""What is overdue, read far ahead in the order of time, and handed out in the order of the usage rows.

Reservations that lapsed one after the other are of projects all over the ledger: ended in that order, each of them
changes a usage row and pages of the indexes of its own. Of many thousands each project has several: ended together,
they change the usage row once, and the pages while they are in memory.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from cyborg_quota.db.many import Overdue, Place

_MOST_BATCHES: Final = 100
_MAX_ROWS: Final = 200_000
"""So many batches, and rows, are sorted together. (A row takes 130 bytes.)"""

_READ_BATCHES: Final = 5
"""So many in one statement: it must end long before its time-out."""

Read = Callable[[Place | None, int], tuple[Sequence[Any], Place | None]]
"""The next overdue reservations behind that place: see db/many.py, overdue_behind."""


class OverdueReader:
    """The overdue reservations, a window of them at a time. No thread's but its maker's."""

    def __init__(self, read: Read, batch_rows: int) -> None:
        self._read = read
        self._batch_rows = batch_rows
        self._place: Place | None = None
        self._reads: list[list[tuple[str, str, int, int]]] = []
        self._size = 0
        self.is_read = False

    @property
    def is_full(self) -> bool:
        """Whether it is not to be read on now: so much is, or all there is."""
        return self.is_read or self._size >= min(_MOST_BATCHES * self._batch_rows, _MAX_ROWS)

    @property
    def is_over(self) -> bool:
        """Whether all there is was read, and handed out."""
        return self.is_read and not self._size

    def read(self) -> None:
        """Read some more."""
        most = _READ_BATCHES * self._batch_rows
        found, self._place = self._read(self._place, most)
        # (One text for each name, not one for each row.)
        self._reads.append(sorted((sys.intern(row[1]), sys.intern(row[2]), row[0], row[3]) for row in found))
        self._size += len(found)
        self.is_read = len(found) < most

    def hand_out(self) -> list[list[Overdue]]:
        """All that was read, in batches. Only a usage row of more than a batch is in two of them."""
        reads, self._reads, self._size = self._reads, [], 0
        batches: list[list[Overdue]] = []
        batch: list[Overdue] = []
        # (Merged, not sorted once more: that would keep all other threads of the process waiting for half a second.)
        for _, rows in itertools.groupby(heapq.merge(*reads), key=operator.itemgetter(0, 1)):
            found = [(number, project_id, resource, delta) for project_id, resource, number, delta in rows]
            if batch and len(batch) + len(found) > self._batch_rows:
                batches.append(batch)
                batch = []
            batch += found
            while len(batch) > self._batch_rows:
                batches.append(batch[: self._batch_rows])
                del batch[: self._batch_rows]
        return [*batches, batch] if batch else batches
