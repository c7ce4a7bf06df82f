# SPDX-License-Identifier: Apache-2.0
"""The batch size of maintenance jobs, and the pause after each batch.

A batch locks the rows that it changes until its COMMIT, and charges of the same projects wait for it. Without
concurrent charges, large batches are fastest. With concurrent charges, each batch is a short transaction, followed by a
pause of the same length. New reservations in the ledger show that there are concurrent charges.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cyborg_quota.db import maintenance
from cyborg_quota.db.database import Database

_FIRST_ROWS: Final = 64
_MIN_ROWS: Final = 50
_SHORT_SECONDS: Final = 0.005
"""The target duration of a batch while there are concurrent charges."""

_PAUSE_RATIO: Final = 1.0
"""The pause, as a multiple of the duration of the batch, while there are concurrent charges."""

_MAX_PAUSE_SECONDS: Final = 0.1
_QUIET_BATCHES: Final = 3
"""The number of consecutive batches without a new reservation after which the batch size grows again."""


class BatchThrottle:
    """Adapts the batches of one job.

    ``newest`` returns the id of the newest reservation, or None. ``most_rows``: the maximum size of a batch.
    """

    def __init__(
        self, newest: Callable[[], int | None], most_rows: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._newest = newest
        self._most_rows = most_rows
        self._sleep = sleep
        self._last_newest = newest()
        self._quiet = _QUIET_BATCHES
        self.rows = min(_FIRST_ROWS, most_rows)

    @property
    def is_quiet(self) -> bool:
        """Whether there were no new reservations for long enough that batches have their maximum size."""
        return self._quiet >= _QUIET_BATCHES and self.rows >= self._most_rows

    def rest(self, worked_seconds: float) -> None:
        """After a batch that took ``worked_seconds``: set the size of the next one, and pause."""
        seconds = self.next_pause(worked_seconds)
        if seconds:
            self._sleep(seconds)

    def next_pause(self, worked_seconds: float) -> float:
        """Set the size of the next batch. Returns the length of the pause before it, in seconds."""
        newest = self._newest()
        self._quiet = self._quiet + 1 if newest == self._last_newest else 0
        self._last_newest = newest
        if self._quiet >= _QUIET_BATCHES:
            self.rows = min(self._most_rows, self.rows * 2)
            return 0.0
        target_rows = int(self.rows * _SHORT_SECONDS / max(worked_seconds, 0.0001))
        self.rows = min(self._most_rows, max(_MIN_ROWS, min(target_rows, self.rows * 2)))
        return min(_MAX_PAUSE_SECONDS, worked_seconds * _PAUSE_RATIO)


def run_batches(
    database: Database,
    batch: Callable[[int], int],
    most_rows: int,
    progress: Callable[[int], None] | None,
    expire_in_parallel: Callable[[BatchThrottle, Callable[[int], None]], tuple[int, bool]] | None = None,
) -> int:
    """Run batches until one changes fewer rows than its size. Returns the rows that this job has changed.

    ``batch`` changes up to the given number of rows, and returns how many; ``progress`` is called with that number.
    ``expire_in_parallel`` continues the job while batches have their maximum size and there are no new reservations.
    It returns the number of rows, and whether the job is complete.
    """
    throttle = BatchThrottle(lambda: database.read(maintenance.newest), most_rows)
    total = 0
    while True:
        batch_rows, began = throttle.rows, time.monotonic()
        count = batch(batch_rows)
        worked_seconds = time.monotonic() - began
        total += count
        if progress is not None:
            progress(count)
        if count < batch_rows:
            return total
        throttle.rest(worked_seconds)
        if expire_in_parallel is not None and throttle.is_quiet:
            count, is_complete = expire_in_parallel(throttle, progress or (lambda _: None))
            total += count
            if is_complete:
                return total
