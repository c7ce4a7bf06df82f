# SPDX-License-Identifier: Apache-2.0
"""Expires overdue reservations in batches, each in its own transaction, longest overdue first.

Expirer contains the transactions. BatchThrottle adapts the size of the batches to concurrent charges, also for the
batches of purge.py. For a large backlog, OverdueReader reads ahead, and ParallelExpirer uses several connections.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.db import history, inventories, maintenance
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.history import ExpiryPosition
from cyborg_quota.db.maintenance import Overdue
from cyborg_quota.ledger.counters import Counting
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.scopes import scoped_name

_FIRST_ROWS: Final = 64
_MIN_ROWS: Final = 50
_SHORT_SECONDS: Final = 0.005
"""The target duration of a batch while there are concurrent charges."""

_PAUSE_RATIO: Final = 1.0
"""The pause, as a multiple of the duration of the batch, while there are concurrent charges."""

_MAX_PAUSE_SECONDS: Final = 0.1
_QUIET_BATCHES: Final = 3
"""The number of consecutive batches without a new reservation after which the batch size grows again."""

_MAX_BATCHES: Final = 100
_MAX_ROWS: Final = 200_000
"""The maximum number of batches, and of rows, that are sorted together. (A row takes 130 bytes.)"""

_READ_BATCHES: Final = 5
"""The number of batches that one statement reads: it must end well before the statement timeout."""

Read = Callable[[ExpiryPosition | None, int], tuple[Sequence[Any], ExpiryPosition | None]]
"""Reads the next overdue reservations after a position: see history.read_overdue_after."""

_MAX_WORKERS: Final = 3
_READ_AHEAD_BATCHES: Final = 40
"""When fewer batches than this are ready, more rows are read, so that workers do not wait for the next window."""

_MOST_LOCKED: Final = 3
"""The maximum number of projects for whose locks one run of the expirer waits."""

_Result = futures.Future[tuple[int, float]]


class Expirer:
    """Expires overdue reservations. Shared by threads."""

    def __init__(self, database: Database, settler: Settler, batch_rows: int) -> None:
        self._database = database
        self._settler = settler
        self._batch_rows = batch_rows

    def expire(self, progress: Callable[[int], None] | None) -> int:
        """Expire all overdue reservations. Returns their number. ``progress`` is called with the size of each batch.

        If a row lock is not granted, the reservations of other projects are expired before the error is raised.
        """
        parallel = ParallelExpirer(self._database, self, self._batch_rows)
        try:
            return run_batches(
                self._database, self.expire_batch, self._batch_rows, progress, parallel.expire_in_parallel
            )
        except exceptions.DatabaseUnavailable as error:
            if _is_of_all(error) or self._database.dialect.max_writers is not None:
                raise
            self._expire_unlocked(progress or (lambda _: None))
            raise

    def _expire_unlocked(self, progress: Callable[[int], None]) -> None:
        """Expire the reservations project by project, and skip the projects whose locks are not granted.

        Raises DatabaseUnavailable after _MOST_LOCKED such projects: each of them takes as long as a statement may.
        """
        locked: set[str] = set()
        position: ExpiryPosition | None = None
        is_last = False
        while not is_last:
            rows, next_position = self.overdue(position, _READ_BATCHES * self._batch_rows)
            is_last = next_position == position or len(rows) < _READ_BATCHES * self._batch_rows
            position = next_position
            for project_id, of_project in itertools.groupby(sorted(rows, key=_project), key=_project):
                listed = list(of_project)
                for start in range(0, len(listed), self._batch_rows):
                    if project_id in locked:
                        break
                    try:
                        progress(self.expire_read(listed[start : start + self._batch_rows]))
                    except exceptions.DatabaseUnavailable as error:
                        locked.add(project_id)
                        if _is_of_all(error) or len(locked) >= _MOST_LOCKED:
                            raise

    def expire_batch(self, limit: int) -> int:
        """Expire up to ``limit`` reservations, longest overdue first, in one transaction. Returns their number."""

        def work(connection: Connection, counting: Counting) -> int:
            rows = history.read_overdue(connection, limit, self._settler.grace)
            return self._expire_rows(connection, counting, rows)

        return self._settler.write(work)

    def overdue(self, position: ExpiryPosition | None, limit: int) -> tuple[Sequence[Any], ExpiryPosition | None]:
        """Read up to ``limit`` overdue reservations after a position, for ``expire_read``, and the position after them.

        See history.read_overdue_after.
        """
        return self._database.read(
            lambda connection: history.read_overdue_after(connection, position, limit, self._settler.grace)
        )

    def expire_read(self, rows: Sequence[Overdue]) -> int:
        """Expire those of these reservations that are still overdue, in one transaction. Returns their number."""
        attempts = itertools.count()

        def work(connection: Connection, counting: Counting) -> int:
            if next(attempts) == 0:
                return self._expire_rows(connection, counting, rows)
            # Another transaction has settled some of them: read which are still overdue.
            still_overdue = history.still_overdue(connection, [row[0] for row in rows], self._settler.grace)
            return self._expire_rows(connection, counting, still_overdue)

        return self._settler.write(work)

    def _expire_rows(self, connection: Connection, counting: Counting, rows: Sequence[Overdue]) -> int:
        """Raises ConcurrentChange if another transaction has settled one of the rows."""
        if rows:
            if not maintenance.expire(connection, rows, self._settler.grace):
                raise ConcurrentChange
            freed: dict[inventories.Key, int] = {}
            in_pods: list[tuple[str, str, int]] = []
            for _, project_id, resource, delta, provider_id, _, pod in rows:
                if provider_id is not None:
                    freed[provider_id, resource] = freed.get((provider_id, resource), 0) + delta
                if pod is not None:
                    in_pods.append((project_id, scoped_name(resource, pod), delta))
            if freed:
                inventories.give_back(connection, freed)
            counting.expire([*(row[1:4] for row in rows), *in_pods])
        return len(rows)


def _is_of_all(error: exceptions.DatabaseUnavailable) -> bool:
    """Whether the batches of other projects would fail too."""
    return isinstance(error, (exceptions.DatabaseUnreachable, exceptions.DatabaseReadOnly))


_project: Final = operator.itemgetter(1)
"""The project of an overdue reservation."""


class BatchThrottle:
    """Adapts the batch size of one maintenance job, and the pause after each batch.

    A batch locks the rows that it changes until its COMMIT, and charges of the same projects wait for it. Without
    concurrent charges, large batches are fastest. With concurrent charges, each batch is a short transaction, followed
    by a pause of the same length. New reservations in the ledger show that there are concurrent charges.

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


class OverdueReader:
    """Reads overdue reservations ahead in the order of expiry, and returns them in batches sorted by usage row.

    Reservations that expire one after the other belong to many different projects. In that order, each of them changes
    another usage row and other index pages. Among many thousands, each project has several: expired together, they
    change the usage row once, and the index pages while they are in memory. Not thread-safe.
    """

    def __init__(self, read: Read, batch_rows: int) -> None:
        self._read = read
        self._batch_rows = batch_rows
        self._position: ExpiryPosition | None = None
        self._reads: list[list[_ByUsageRow]] = []
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
        self._reads.append(sorted(map(_by_usage_row, rows)))
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
            of_usage_row = [
                (number, project_id, resource, delta, provider_id, generation, pod)
                for project_id, resource, number, delta, provider_id, generation, pod in rows
            ]
            if batch and len(batch) + len(of_usage_row) > self._batch_rows:
                batches.append(batch)
                batch = []
            batch += of_usage_row
            while len(batch) > self._batch_rows:
                batches.append(batch[: self._batch_rows])
                del batch[: self._batch_rows]
        return [*batches, batch] if batch else batches


_ByUsageRow = tuple[str, str, int, int, "int | None", int, "str | None"]
"""The columns of an Overdue with the project and the resource first."""


def _by_usage_row(row: Any) -> _ByUsageRow:
    number, project_id, resource, delta, provider_id, generation, pod = row
    return sys.intern(project_id), sys.intern(resource), number, delta, provider_id, generation, pod


class ParallelExpirer:
    """Expires a backlog on several connections at once, while there are no concurrent charges. Shared by threads.

    With one connection, the client and the server wait for each other, and both for the disk: of two processors one is
    idle. Each batch is the same transaction as without parallelism. Batches of the same window share no usage row,
    except ancestors and rows that fill whole batches; all transactions lock these in the same order.
    """

    def __init__(self, database: Database, expirer: Expirer, batch_rows: int) -> None:
        self._database = database
        self._expirer = expirer
        self._batch_rows = batch_rows

    def expire_in_parallel(self, throttle: BatchThrottle, progress: Callable[[int], None]) -> tuple[int, bool]:
        """Expire until nothing is overdue, or until there are new reservations.

        Returns the number of expired reservations, and whether nothing is left. ``progress`` is called in the caller's
        thread, with the size of each completed batch. If it, or a worker, raises an error, no new batch is started; the
        error is raised after the running batches have been committed or rolled back.
        """
        reader = OverdueReader(self._expirer.overdue, self._batch_rows)
        reader.read()
        workers = min(_MAX_WORKERS, self._database.max_concurrent_writers) if not reader.is_read else 1
        pool = (
            futures.ThreadPoolExecutor(workers, thread_name_prefix="expiry") if workers > 1 else _SynchronousExecutor()
        )
        run = _Run(self._expire_batch, pool, workers)
        try:
            try:
                run.until_done(reader, throttle, progress)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        except Exception:
            run.report_rest(progress)
            raise
        return run.expired, run.is_complete

    def _expire_batch(self, batch: Sequence[Overdue]) -> tuple[int, float]:
        """Expire one batch, in the thread of a worker. Returns the number of rows, and the seconds it took."""
        began = time.monotonic()
        return self._expirer.expire_read(batch), time.monotonic() - began


class _SynchronousExecutor(futures.Executor):
    """Runs each task immediately in the caller's thread; used with one worker."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Run:
    """One run, in the caller's thread: submit batches, read ahead, collect results."""

    def __init__(
        self, expire_batch: Callable[[Sequence[Overdue]], tuple[int, float]], pool: futures.Executor, workers: int
    ) -> None:
        self._expire_batch = expire_batch
        self._pool = pool
        self._workers = workers
        self._running: set[_Result] = set()
        self.expired = 0
        self.is_complete = False

    def until_done(self, reader: OverdueReader, throttle: BatchThrottle, progress: Callable[[int], None]) -> None:
        """See ParallelExpirer.expire_in_parallel."""
        # Twice the workers, so that the next batch is queued when a worker completes one.
        max_running = 2 * self._workers if self._workers > 1 else 1
        ready: deque[list[Overdue]] = deque()
        pause_seconds = 0.0
        while throttle.is_quiet and (ready or self._running or not reader.is_over):
            if not ready and (reader.is_full or len(self._running) < self._workers):
                ready.extend(self._hand_out(reader))
            while ready and len(self._running) < max_running:
                self._running.add(self._pool.submit(self._expire_batch, ready.popleft()))
            if not reader.is_full and len(ready) < _READ_AHEAD_BATCHES:
                reader.read()
            elif self._running:
                futures.wait(self._running, return_when=futures.FIRST_COMPLETED)
            durations = self._collect(progress)
            if durations:
                pause_seconds = throttle.next_pause(max(durations))  # throttle.is_quiet may become False
        self.is_complete = not ready and not self._running and reader.is_over
        self._running = {future for future in self._running if not future.cancel()}
        futures.wait(self._running)
        self._collect(progress)
        time.sleep(pause_seconds)

    def report_rest(self, progress: Callable[[int], None]) -> None:
        """Report the batches that were committed since the last report. For use after an error, when no batch runs."""
        ended = [future for future in self._running if not future.cancelled() and future.exception() is None]
        self._running.clear()
        if ended:
            progress(sum(future.result()[0] for future in ended))

    def _hand_out(self, reader: OverdueReader) -> list[list[Overdue]]:
        batches = reader.hand_out()
        # Another process may have read the same rows: start at a random batch to avoid conflicts.
        first = random.randrange(len(batches)) if batches and self._workers > 1 else 0
        return batches[first:] + batches[:first]

    def _collect(self, progress: Callable[[int], None]) -> list[float]:
        """Report the completed batches. Returns the seconds that each took."""
        durations = []
        for future in [future for future in self._running if future.done()]:
            self._running.discard(future)
            count, seconds = future.result()
            self.expired += count
            progress(count)
            durations.append(seconds)
        return durations
