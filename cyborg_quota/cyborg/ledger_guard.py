# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker between a Cyborg process and the ledger's database. Does not import Cyborg.

    closed --a call found the server unreachable--> open --a probe reached it--> closed

While it is open, calls fail immediately instead of waiting for the database, and a thread probes it. Each process has
one guard.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions

LOG = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_SECONDS: Final = 2.0
"""The interval between probes while the breaker is open."""

_SLOTS: Final = 2
"""The number of slots of a process: the threads that release, or answer calls of the mounted REST API.

While the ledger does not answer and the breaker is still closed, they wait for it. The other threads of a web server
stay free for requests that do not use the ledger.
"""
_SLOT_SECONDS: Final = 0.5
"""How long another thread waits for one of these slots. (A call takes a few milliseconds.)"""


class LedgerNotCalled(exceptions.DatabaseUnavailable):
    """The ledger was not called. ``retry_after_seconds``: when to call again."""

    def __init__(self, reason: str, retry_after_seconds: int = 1) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(reason, 0.0)


class LedgerGuard:
    """The circuit breaker, shared by the threads of a process.

    :param ping: returns whether the database is reachable now; see QuotaEngine.ping.
    :param want_repair: called when charges may differ from Cyborg's records, also when the breaker opens.
    :param clock: monotonic time in seconds.
    """

    def __init__(
        self, ping: Callable[[], bool], want_repair: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ping = ping
        self.want_repair = want_repair
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Reset the state, in a forked child: the parent's thread does not exist there, and its lock may be held."""
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_SLOTS)
        self._is_checking = threading.Lock()
        self._ended = threading.Event()
        self._opened_at: float | None = None
        self._closed_at = -math.inf
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls fail immediately."""
        return self._opened_at is not None

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call the ledger. Raises LedgerNotCalled immediately while the breaker is open."""
        if self.is_open:
            raise self._offline()
        began = self._clock()
        try:
            return function(*args, **options)
        except exceptions.DatabaseUnreachable as error:
            self._open(began, error)
            raise

    def call_in_slot(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """As ``call``, in few threads while the ledger does not answer: the others of a web server stay free.

        If no slot is free, one thread at a time pings the database. If it answers, the calls in the slots wait for
        something else, such as a lock, and this one is made without a slot.
        """
        if self.is_open:
            raise self._offline()
        if not self._slots.acquire(timeout=_SLOT_SECONDS):
            self._check_answers()
            return self.call(function, *args, **options)
        try:
            return self.call(function, *args, **options)
        finally:
            self._slots.release()

    def _check_answers(self) -> None:
        if not self._is_checking.acquire(timeout=_SLOT_SECONDS):
            raise LedgerNotCalled("other threads of this process are still waiting for it")
        try:
            if not self.reaches():
                raise self._offline()
        finally:
            self._is_checking.release()

    def _offline(self) -> LedgerNotCalled:
        now = self._clock()
        return LedgerNotCalled(
            f"it became unreachable {now - (self._opened_at or now):.0f} s ago; calls fail immediately until a probe "
            "reaches it",
            math.ceil(max(0.0, self._probe_at - now)) + 1,
        )

    def reaches(self) -> bool:
        """Ping the database in this thread, for a few seconds at most. Call this before work that has no timeout."""
        if self.is_open:
            return False
        began = self._clock()
        if self._answers():
            return True
        self._open(began, None)
        return False

    def _open(self, began: float, error: Exception | None) -> None:
        thread = threading.Thread(target=self._probe, name="cyborg-quota-probe", daemon=True)
        with self._lock:
            # A call that began before a probe closed the breaker belongs to the previous outage.
            if self.is_open or began < self._closed_at or self._ended.is_set():
                return
            self._opened_at = self._clock()
            self._probe_at = self._opened_at + PROBE_SECONDS
            try:
                thread.start()
            except RuntimeError:  # the process is ending, or may start no more threads: the next call waits again
                self._opened_at = None
        LOG.error(
            "The ledger's database is unreachable: binds are refused with 503 until it answers; the charges are "
            "repaired then. %s",
            error or "It did not answer SELECT 1.",
        )
        self.want_repair()

    def close(self) -> None:
        """Stop the thread, and start no other one."""
        self._ended.set()

    def _probe(self) -> None:
        """Probe until the database is reached, which closes the breaker."""
        while not self._ended.wait(PROBE_SECONDS):
            has_answered = self._answers()
            now = self._clock()
            self._probe_at = now + PROBE_SECONDS
            if has_answered:
                LOG.warning("The ledger's database is reachable again after %.0f s.", now - (self._opened_at or now))
                self._closed_at, self._opened_at = now, None
                return

    def _answers(self) -> bool:
        try:
            return self._ping()
        except Exception:
            LOG.exception("The probe of the ledger's database failed.")
            return False
