# SPDX-License-Identifier: Apache-2.0
"""Catching up with a backlog of expiry while nobody charges: several connections at once, each a batch at a time.

One connection works in turns with its server, and both with the disk: of two processors one is idle. Each batch is a
transaction like that of a sweeper which goes alone (settling.py). Of what was sorted together, lanes share no usage
row but one that fills whole batches, and the ancestors; everybody takes them in one order.
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

_MOST_LANES: Final = 3
_READ_ON_BATCHES: Final = 40
"""When no more are left to be dealt, the next are read: so that they are there in time, and not held for long."""

_Ended = futures.Future[tuple[int, float]]


class ParallelExpirer:
    """Ends what is overdue, fast. Shared by threads."""

    def __init__(self, database: Database, settler: Settler, batch_rows: int) -> None:
        self._database = database
        self._settler = settler
        self._batch_rows = batch_rows

    def expire_in_parallel(self, throttle: BatchThrottle, tell: Callable[[int], None]) -> tuple[int, bool]:
        """Until nothing is overdue, or somebody charges. How many were ended, and whether that was all there is.

        ``tell`` is called by the caller's own thread, with each batch that has ended. What it raises ends the lanes, as
        an error of one of them does: what they have begun is committed, or rolled back, before it comes out.
        """
        backlog = OverdueReader(self._settler.overdue, self._batch_rows)
        backlog.read()
        lanes = min(_MOST_LANES, self._database.max_concurrent_writers) if not backlog.is_read else 1
        pool = futures.ThreadPoolExecutor(lanes, thread_name_prefix="expiry") if lanes > 1 else _Here()
        run = _Run(self._end, pool, lanes)
        try:
            run.until_done(backlog, throttle, tell)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return run.ended, run.is_all

    def _end(self, batch: Sequence[Overdue]) -> tuple[int, float]:
        """One batch, in the thread of a lane: how many rows, in how many seconds."""
        began = time.monotonic()
        return self._settler.expire_read(batch), time.monotonic() - began


class _Here(futures.Executor):
    """Does it at once, in the caller's thread: a lane of one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Run:
    """One go at the backlog, as the caller's thread sees it: deal, read ahead, collect."""

    def __init__(
        self, end: Callable[[Sequence[Overdue]], tuple[int, float]], pool: futures.Executor, lanes: int
    ) -> None:
        self._end = end
        self._pool = pool
        self._parallel_expirer = lanes
        self._running: set[_Ended] = set()
        self.ended = 0
        self.is_all = False

    def until_done(self, backlog: OverdueReader, throttle: BatchThrottle, tell: Callable[[int], None]) -> None:
        """See Lanes.catch_up."""
        # A lane that has ended a batch finds the next one waiting.
        most_running = 2 * self._parallel_expirer if self._parallel_expirer > 1 else 1
        ready: deque[list[Overdue]] = deque()
        rest_seconds = 0.0
        while throttle.is_quiet and (ready or self._running or not backlog.is_over):
            if not ready and (backlog.is_full or len(self._running) < self._parallel_expirer):
                ready.extend(self._hand_out(backlog))
            while ready and len(self._running) < most_running:
                self._running.add(self._pool.submit(self._end, ready.popleft()))
            if not backlog.is_full and len(ready) < _READ_ON_BATCHES:
                backlog.read()
            elif self._running:
                futures.wait(self._running, return_when=futures.FIRST_COMPLETED)
            took = self._collect(tell)
            if took:
                rest_seconds = throttle.look(max(took))  # one look for all: it may end this
        self.is_all = not ready and not self._running and backlog.is_over
        self._running = {one for one in self._running if not one.cancel()}
        futures.wait(self._running)
        self._collect(tell)
        time.sleep(rest_seconds)

    def _hand_out(self, backlog: OverdueReader) -> list[list[Overdue]]:
        batches = backlog.hand_out()
        # Another sweeper has read the same: let it be busy elsewhere.
        first = random.randrange(len(batches)) if batches and self._parallel_expirer > 1 else 0
        return batches[first:] + batches[:first]

    def _collect(self, tell: Callable[[int], None]) -> list[float]:
        """Tell what has ended; how many seconds each took."""
        took = []
        for one in [one for one in self._running if one.done()]:
            self._running.discard(one)
            count, seconds = one.result()
            self.ended += count
            tell(count)
            took.append(seconds)
        return took
