# SPDX-License-Identifier: Apache-2.0
"""Expires a backlog of overdue reservations on several connections at once, while there are no concurrent charges.

With one connection, the client and the server wait for each other, and both for the disk: of two processors one is
idle. Each batch is the same transaction as without parallelism (settle.py). Batches of the same window share no usage
row, except ancestors and rows that fill whole batches; all transactions lock these in the same order.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Final

from cyborg_quota.db.database import Database
from cyborg_quota.db.many import Overdue
from cyborg_quota.ledger.batch_throttle import BatchThrottle
from cyborg_quota.ledger.overdue_reader import OverdueReader
from cyborg_quota.ledger.settle import Settler

_MAX_WORKERS: Final = 3
_READ_AHEAD_BATCHES: Final = 40
"""When fewer batches than this are ready, more rows are read, so that workers do not wait for the next window."""

_Ended = futures.Future[tuple[int, float]]


class ParallelExpirer:
    """Expires overdue reservations with several threads. Shared by threads."""

    def __init__(self, database: Database, settler: Settler, batch_rows: int) -> None:
        self._database = database
        self._settler = settler
        self._batch_rows = batch_rows

    def expire_in_parallel(self, throttle: BatchThrottle, progress: Callable[[int], None]) -> tuple[int, bool]:
        """Expire until nothing is overdue, or until there are new reservations.

        Returns the number of expired reservations, and whether nothing is left. ``progress`` is called in the caller's
        thread, with the size of each completed batch. If it, or a worker, raises an error, no new batch is started; the
        error is raised after the running batches have been committed or rolled back.
        """
        backlog = OverdueReader(self._settler.overdue, self._batch_rows)
        backlog.read()
        workers = min(_MAX_WORKERS, self._database.max_concurrent_writers) if not backlog.is_read else 1
        pool = (
            futures.ThreadPoolExecutor(workers, thread_name_prefix="expiry") if workers > 1 else _SynchronousExecutor()
        )
        run = _Run(self._end, pool, workers)
        try:
            run.until_done(backlog, throttle, progress)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return run.ended, run.is_complete

    def _end(self, batch: Sequence[Overdue]) -> tuple[int, float]:
        """Expire one batch, in the thread of a worker. Returns the number of rows, and the seconds it took."""
        began = time.monotonic()
        return self._settler.expire_read(batch), time.monotonic() - began


class _SynchronousExecutor(futures.Executor):
    """Runs each task immediately in the caller's thread; used with one worker."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Run:
    """One run, in the caller's thread: submit batches, read ahead, collect results."""

    def __init__(
        self, end: Callable[[Sequence[Overdue]], tuple[int, float]], pool: futures.Executor, workers: int
    ) -> None:
        self._end = end
        self._pool = pool
        self._workers = workers
        self._running: set[_Ended] = set()
        self.ended = 0
        self.is_complete = False

    def until_done(self, backlog: OverdueReader, throttle: BatchThrottle, progress: Callable[[int], None]) -> None:
        """See ParallelExpirer.expire_in_parallel."""
        # Twice the workers, so that the next batch is queued when a worker completes one.
        most_running = 2 * self._workers if self._workers > 1 else 1
        ready: deque[list[Overdue]] = deque()
        pause_seconds = 0.0
        while throttle.is_quiet and (ready or self._running or not backlog.is_over):
            if not ready and (backlog.is_full or len(self._running) < self._workers):
                ready.extend(self._hand_out(backlog))
            while ready and len(self._running) < most_running:
                self._running.add(self._pool.submit(self._end, ready.popleft()))
            if not backlog.is_full and len(ready) < _READ_AHEAD_BATCHES:
                backlog.read()
            elif self._running:
                futures.wait(self._running, return_when=futures.FIRST_COMPLETED)
            durations = self._collect(progress)
            if durations:
                pause_seconds = throttle.next_pause(max(durations))  # once for all; throttle.is_quiet may become False
        self.is_complete = not ready and not self._running and backlog.is_over
        self._running = {future for future in self._running if not future.cancel()}
        futures.wait(self._running)
        self._collect(progress)
        time.sleep(pause_seconds)

    def _hand_out(self, backlog: OverdueReader) -> list[list[Overdue]]:
        batches = backlog.hand_out()
        # Another process may have read the same rows: start at a random batch to avoid conflicts.
        first = random.randrange(len(batches)) if batches and self._workers > 1 else 0
        return batches[first:] + batches[:first]

    def _collect(self, progress: Callable[[int], None]) -> list[float]:
        """Report the completed batches. Returns the seconds that each took."""
        durations = []
        for future in [future for future in self._running if future.done()]:
            self._running.discard(future)
            count, seconds = future.result()
            self.ended += count
            progress(count)
            durations.append(seconds)
        return durations
