# SPDX-License-Identifier: Apache-2.0
"""Calls of the ledger through the circuit breaker, and the thread that probes and retries. Knows no Cyborg.

One guard serves a process. Its thread runs only while the breaker is open or something waits to be retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg.circuit_breaker import CircuitBreaker

LOG = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_SECONDS: Final = 2.0
"""The time between two probes while the breaker is open, and before the first retry."""
RETRY_SECONDS: Final = 10.0
"""The time between two retries that fail although the database can be reached."""


class LedgerOffline(exceptions.DatabaseUnavailable):
    """The ledger was not asked: it was found unreachable a moment ago. ``retry_after_seconds``: when to call again."""

    def __init__(self, open_seconds: float, retry_after_seconds: int) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(f"it could not be reached {open_seconds:.0f} s ago, and is not asked before it can be", 0.0)


class LedgerGuard:
    """Shared by the threads of a process.

    :param ping: whether the database can be reached now; see QuotaEngine.ping.
    :param retry: does what could not be done before, and returns whether nothing is left. Raises nothing.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self, ping: Callable[[], bool], retry: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ping = ping
        self._retry = retry
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """In a forked child: the parent's thread does not run there, and its lock may have been held."""
        self._breaker = CircuitBreaker(PROBE_SECONDS)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._ended = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once."""
        return self._breaker.is_open

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """``function(*args, **options)``, which calls the ledger. Raises LedgerOffline at once while it is open."""
        if self._breaker.is_open:
            raise self.offline()
        began = self._clock()
        try:
            return function(*args, **options)
        except exceptions.DatabaseUnreachable as error:
            self._open(began, error)
            raise

    def offline(self) -> LedgerOffline:
        """What a call that is not made raises."""
        now = self._clock()
        with self._lock:
            return LedgerOffline(self._breaker.open_seconds(now), self._breaker.retry_after_seconds(now))

    def reaches(self) -> bool:
        """Ask the database now, in this thread, for a few seconds at most; for what may otherwise wait without end."""
        if self._breaker.is_open:
            return False
        began = self._clock()
        if self._ping():
            return True
        self._open(began, None)
        return False

    def _open(self, began: float, error: Exception | None) -> None:
        with self._lock:
            is_new = self._breaker.record_unreachable(began, self._clock())
        if is_new:
            LOG.error(
                "The ledger cannot be reached, and is not asked until it can be: binds are answered with 503, releases "
                "are done later. %s",
                error or "It did not answer SELECT 1.",
            )
            self.want_retry()

    # --- the thread ---

    def want_retry(self) -> None:
        """Have ``retry`` called soon, when the database can be reached."""
        with self._lock:
            self._is_wanted = True
            if self._thread is not None or self._ended.is_set():
                return
            self._thread = threading.Thread(target=self._run, name="cyborg-quota-ledger-guard", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process is ending
                self._thread = None

    def close(self) -> None:
        """Have the thread end, and start no other one."""
        self._ended.set()

    def _run(self) -> None:
        pause = PROBE_SECONDS
        while not self._ended.wait(pause):
            pause = PROBE_SECONDS
            if self._breaker.is_open and not self._probe():
                continue
            with self._lock:
                self._is_wanted = False
            is_done = self._retry()
            with self._lock:
                if is_done and not self._is_wanted and not self._breaker.is_open:
                    self._thread = None
                    return
            if not is_done and not self._breaker.is_open:
                pause = RETRY_SECONDS

    def _probe(self) -> bool:
        try:
            reached = self._ping()
        except Exception:
            LOG.exception("The ledger could not be probed.")
            reached = False
        with self._lock:
            now = self._clock()
            seconds = self._breaker.open_seconds(now)
            is_closed = self._breaker.record_probe(now, reached=reached)
        if is_closed:
            LOG.warning("The ledger can be reached again, after %.0f s.", seconds)
        return reached
