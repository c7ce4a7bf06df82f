# SPDX-License-Identifier: Apache-2.0
"""How much one batch of upkeep takes, and how long it rests after it.

A batch holds what it has changed until its COMMIT, and whoever charges the same project waits so long. While nobody
charges, large batches are fastest; while somebody does, a batch is one short transaction among theirs, and rests as
long as it worked. Whether somebody does is seen from the ledger: new reservations appear.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_FIRST_ROWS: Final = 64
_LEAST_ROWS: Final = 50
_SHORT_SECONDS: Final = 0.005
"""How long a batch may take while others are at work."""

_REST: Final = 1.0
"""So many times as long as it worked it rests then."""

_LONGEST_REST_SECONDS: Final = 0.1
_QUIET_BATCHES: Final = 3
"""So many batches in a row must have seen nobody before they grow again."""


class BatchThrottle:
    """The pace of one job. ``newest`` tells the newest reservation's id (or None); ``most_rows`` bounds a batch."""

    def __init__(
        self, newest: Callable[[], int | None], most_rows: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._newest = newest
        self._most_rows = most_rows
        self._sleep = sleep
        self._seen = newest()
        self._quiet = _QUIET_BATCHES
        self.rows = min(_FIRST_ROWS, most_rows)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody has been seen for so long that a batch may be as large as ever."""
        return self._quiet >= _QUIET_BATCHES and self.rows >= self._most_rows

    def rest(self, worked_seconds: float) -> None:
        """After a batch of ``rows``: rest as long as it should, and set the next one's size."""
        seconds = self.look(worked_seconds)
        if seconds:
            self._sleep(seconds)

    def look(self, worked_seconds: float) -> float:
        """The same, but only tell how long to rest."""
        newest = self._newest()
        self._quiet = self._quiet + 1 if newest == self._seen else 0
        self._seen = newest
        if self._quiet >= _QUIET_BATCHES:
            self.rows = min(self._most_rows, self.rows * 2)
            return 0.0
        fitting = int(self.rows * _SHORT_SECONDS / max(worked_seconds, 0.0001))
        self.rows = min(self._most_rows, max(_LEAST_ROWS, min(fitting, self.rows * 2)))
        return min(_LONGEST_REST_SECONDS, worked_seconds * _REST)
