# SPDX-License-Identifier: Apache-2.0
"""Call the ledger through the circuit breaker; probe it and start a repair in threads. Does not import Cyborg.

Each process has one guard. Its threads run only while the breaker is open or a repair is pending.
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
"""The interval between probes while the breaker is open, and the delay before the first repair."""
REPAIR_SECONDS: Final = 10.0
"""The interval between repairs that fail although the database is reachable."""

_SLOTS: Final = 2
"""The number of slots of a process: the threads that release, or answer calls of the mounted REST API.

While the ledger does not answer and the breaker is still closed, they wait for it. The other threads of a web server
stay free for requests that do not use the ledger.
"""
_SLOT_SECONDS: Final = 0.5
"""How long another thread waits for one of these slots. (A call takes a few milliseconds.)"""


class LedgerNotCalled(exceptions.DatabaseUnavailable):
    """The ledger was not called. ``retry_after_seconds``: when to call again."""

    retry_after_seconds = 1


class LedgerOffline(LedgerNotCalled):
    """The ledger was not called, because the circuit breaker is open."""

    def __init__(self, open_seconds: float, retry_after_seconds: int) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(
            f"it became unreachable {open_seconds:.0f} s ago; calls fail immediately until a probe reaches it", 0.0
        )


class LedgerBusy(LedgerNotCalled):
    """The ledger was not called: others are in calls that take long, and another one checks whether it answers."""

    def __init__(self) -> None:
        super().__init__("other threads of this process are still waiting for it", 2 * _SLOT_SECONDS)


class LedgerAwaited(LedgerNotCalled):
    """The ledger was not called, because the same request has already waited for it in vain."""

    def __init__(self) -> None:
        super().__init__("this request has already waited for it in vain", 0.0)


class _Repair:
    """One call of ``repair``, in a thread of its own: it may wait for another database, and the probes must go on."""

    def __init__(self, repair: Callable[[], bool]) -> None:
        self._repair = repair
        self._is_done = False
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="cyborg-quota-repair", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the process is ending, or may start no more threads
            self._thread = None

    def _run(self) -> None:
        self._is_done = self._repair()

    def wait(self, seconds: float) -> bool | None:
        """What ``repair`` returned; None if it is still running after ``seconds``; False if it could not run."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return None
        return self._is_done


class LedgerGuard:
    """The circuit breaker and its thread. Shared by the threads of a process.

    :param ping: returns whether the database is reachable now; see QuotaEngine.ping.
    :param repair: compares the ledger with Cyborg's records, and returns whether all is repaired. Raises nothing.
    :param clock: monotonic time in seconds.
    """

    def __init__(
        self, ping: Callable[[], bool], repair: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ping = ping
        self._repair = repair
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Reset the state, in a forked child: the parent's thread does not exist there, and its lock may be held."""
        self._breaker = CircuitBreaker(PROBE_SECONDS)
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_SLOTS)
        self._is_checking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False
        self._ended = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether calls fail immediately."""
        return self._breaker.is_open

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Return ``function(*args, **options)``, a ledger call. Raises LedgerOffline while the breaker is open."""
        if self._breaker.is_open:
            raise self.offline()
        began = self._clock()
        try:
            return function(*args, **options)
        except exceptions.DatabaseUnreachable as error:
            self._open(began, error)
            raise

    def call_in_slot(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """As ``call``, in few threads while the ledger does not answer: the others of a web server stay free.

        If no slot is free, one thread at a time pings the database. If it answers, the calls in the slots wait for
        something else, such as a lock, and this one is made without a slot. Raises LedgerOffline, LedgerBusy.
        """
        if self._breaker.is_open:
            raise self.offline()
        if not self.take_slot():
            self._check_answers()
            return self.call(function, *args, **options)
        try:
            return self.call(function, *args, **options)
        finally:
            self.free_slot()

    def take_slot(self, *, wait: bool = True) -> bool:
        """Whether this thread got one of the slots within half a second, or at once. Then call ``free_slot``."""
        return self._slots.acquire(timeout=_SLOT_SECONDS if wait else 0)

    def free_slot(self) -> None:
        """Free a slot that was taken."""
        self._slots.release()

    def _check_answers(self) -> None:
        if not self._is_checking.acquire(timeout=_SLOT_SECONDS):
            raise LedgerBusy
        try:
            if not self.reaches():
                raise self.offline()
        finally:
            self._is_checking.release()

    def offline(self) -> LedgerOffline:
        """The error raised instead of a call while the breaker is open."""
        now = self._clock()
        with self._lock:
            return LedgerOffline(self._breaker.open_seconds(now), self._breaker.retry_after_seconds(now))

    def reaches(self) -> bool:
        """Ping the database in this thread, for a few seconds at most. Call this before work that has no timeout."""
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
                "The ledger's database is unreachable: binds are refused with 503 until it answers; the charges are "
                "repaired then. %s",
                error or "It did not answer SELECT 1.",
            )
            self.want_repair()

    # --- the thread ---

    def want_repair(self) -> None:
        """Schedule a call of ``repair``, once the database is reachable."""
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
        """Stop the thread, and start no other one."""
        self._ended.set()

    def _run(self) -> None:
        pause = PROBE_SECONDS
        running: _Repair | None = None
        while not self._ended.wait(pause):
            pause = PROBE_SECONDS
            if self._breaker.is_open and not self._probe():
                continue
            if running is None:
                with self._lock:
                    self._is_wanted = False
                running = _Repair(self._repair)
            is_done = running.wait(PROBE_SECONDS)
            if is_done is None:
                pause = 0.0  # this repair is still running; probe meanwhile if the breaker opens
                continue
            running = None
            with self._lock:
                if is_done and not self._is_wanted and not self._breaker.is_open:
                    self._thread = None
                    return
            if not is_done and not self._breaker.is_open:
                pause = REPAIR_SECONDS

    def _probe(self) -> bool:
        try:
            reached = self._ping()
        except Exception:
            LOG.exception("The probe of the ledger's database failed.")
            reached = False
        with self._lock:
            now = self._clock()
            seconds = self._breaker.open_seconds(now)
            is_closed = self._breaker.record_probe(now, reached=reached)
        if is_closed:
            LOG.warning("The ledger's database is reachable again after %.0f s.", seconds)
        return reached
