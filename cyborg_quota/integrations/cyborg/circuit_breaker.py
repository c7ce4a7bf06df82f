# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker between a Cyborg process and the ledger's database. Pure: no thread, no clock, no I/O.

    closed --a call found the server unreachable--> open --a probe reached it--> closed

While it is open, calls fail immediately instead of waiting for the database, and probes detect when it is back.
"""

from __future__ import annotations

import math


class CircuitBreaker:
    """Times are seconds of one monotonic clock, read by the caller. Not thread-safe: the caller holds a lock.

    :param probe_seconds: the time between two probes.
    """

    def __init__(self, probe_seconds: float) -> None:
        self._probe_seconds = probe_seconds
        self._opened_at: float | None = None
        self._closed_at = -math.inf
        self._probe_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    def record_unreachable(self, began: float, now: float) -> bool:
        """Record a call, started at ``began``, that could not reach the server; returns whether it opened the breaker.

        A call that began before a probe closed the breaker belongs to the previous outage, and is ignored.
        """
        if self.is_open or began < self._closed_at:
            return False
        self._opened_at = now
        self._probe_at = now + self._probe_seconds
        return True

    def record_probe(self, now: float, *, reached: bool) -> bool:
        """Record the end of a probe; returns whether it closed the breaker. The first successful probe closes it."""
        self._probe_at = now + self._probe_seconds
        if not reached or not self.is_open:
            return False
        self._opened_at = None
        self._closed_at = now
        return True

    def open_seconds(self, now: float) -> float:
        """Seconds since the breaker opened; 0 while it is closed."""
        return 0.0 if self._opened_at is None else now - self._opened_at

    def retry_after_seconds(self, now: float) -> int:
        """The Retry-After of a refused call, in whole seconds: the time until the next probe has ended."""
        return math.ceil(max(0.0, self._probe_at - now)) + 1
