# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker between a Cyborg process and the ledger's database. Does not import Cyborg.

    closed --a call found the server unreachable--> open --a ping reached it--> closed

While it is open, calls fail immediately instead of waiting for the database. The thread that will repair the charges
pings it meanwhile (repair.py). Each process has one guard.
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

PING_SECONDS: Final = 2.0
"""The interval between pings while the breaker is open."""
_UNATTENDED_SECONDS: Final = 30.0
"""If nothing has pinged for this time, calls are made again: otherwise, the breaker could stay open for ever."""

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
    :param want_repair: called when charges may differ from Cyborg's records, also when the breaker opens. Until it is
        closed, something must call ``reaches`` every PING_SECONDS.
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
        """Reset the state, in a forked child, where a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_SLOTS)
        self._is_checking = threading.Lock()
        self._opened_at: float | None = None
        self._closed_at = self._pinged_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether calls fail immediately."""
        return self._opened_at is not None and self._clock() - self._pinged_at < _UNATTENDED_SECONDS

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
        if self._slots.acquire(timeout=_SLOT_SECONDS):
            try:
                return self.call(function, *args, **options)
            finally:
                self._slots.release()
        if not self._is_checking.acquire(timeout=_SLOT_SECONDS):
            raise LedgerNotCalled("other threads of this process are still waiting for it")
        try:
            if not self.reaches():
                raise self._offline()
        finally:
            self._is_checking.release()
        return self.call(function, *args, **options)

    def _offline(self) -> LedgerNotCalled:
        now = self._clock()
        return LedgerNotCalled(
            f"it became unreachable {now - (self._opened_at or now):.0f} s ago; calls fail immediately until a probe "
            "reaches it",
            math.ceil(max(0.0, self._pinged_at + PING_SECONDS - now)) + 1,
        )

    def reaches(self) -> bool:
        """Ping the database in this thread, for a few seconds at most, and open or close the breaker.

        Call this before work that has no timeout.
        """
        began, has_answered = self._clock(), False
        try:
            has_answered = self._ping()
        except Exception:
            LOG.exception("The ping of the ledger's database failed.")
        self._pinged_at = now = self._clock()
        if not has_answered:
            self._open(began, None)
        elif self._opened_at is not None:
            LOG.warning("The ledger's database is reachable again after %.0f s.", now - self._opened_at)
            self._closed_at, self._opened_at = now, None
        return has_answered

    def _open(self, began: float, error: Exception | None) -> None:
        with self._lock:
            # A call that began before a ping closed the breaker belongs to the previous outage.
            if self.is_open or began < self._closed_at:
                return
            self._opened_at = self._pinged_at = self._clock()
        LOG.error(
            "The ledger's database is unreachable: binds are refused with 503 until it answers; the charges are "
            "repaired then. %s",
            error or "It did not answer SELECT 1.",
        )
        self.want_repair()
