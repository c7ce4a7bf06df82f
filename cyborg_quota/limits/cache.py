# SPDX-License-Identifier: Apache-2.0
"""A cache of the responses of a limit source that may be slow or unavailable.

The age of a response determines its use:

    0 ... ttl                  used without a request
    ttl ... ttl + patience     one thread requests a new one; the other threads use the old one until then
    ttl ... ttl + stale        used, with a warning, while the source is unavailable
    older                      not used: LimitsUnavailable until the source responds
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MOST_ANSWERS: Final = 20_000
"""The maximum number of cached responses. The one that was refreshed least recently is evicted."""

PAUSE_SECONDS: Final = 2.0
"""The pause after a failed request, so that a source that hangs does not block each caller in turn."""

_MAX_CALLS_PER_LOOKUP: Final = 4
"""The maximum number of HTTP calls of a lookup: discovery, authentication, API discovery, and the request."""

_WARN_EVERY_SECONDS: Final = 60.0
_EVERYTHING: Final = object()
"""The key that represents the whole source in ``_outages``."""


class LimitSourceError(Exception):
    """The limit source did not answer a request. ``reason`` is a text without secrets.

    ``whole``: the source is unavailable for all requests. Otherwise only this request failed.
    """

    def __init__(self, reason: str, *, whole: bool) -> None:
        self.reason = reason
        self.whole = whole
        super().__init__(reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    value: Any
    asked_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Outage:
    reason: str
    began: float
    next_try: float


class Cache:
    """A thread-safe cache. None is a valid response and is cached like any other.

    All times are in seconds. ``patience_seconds`` is the timeout of one request. ``clock`` must be monotonic.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float,
        stale_seconds: float,
        patience_seconds: float,
        most_answers: int = MOST_ANSWERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = ttl_seconds
        self._stale = stale_seconds
        self._patience = patience_seconds
        self._most = most_answers
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}  # least recently refreshed first
        self._flights: dict[Hashable, threading.Event] = {}
        self._outages: dict[Hashable, _Outage] = {}
        self._warned_at: float | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Return the cached response for ``key``, or call ``ask`` for a new one. Raises LimitsUnavailable.

        ``ask`` raises LimitSourceError if the source does not answer. Other exceptions propagate and are not cached.
        """
        while True:
            with self._lock:
                now = self._clock()
                answer = self._answers.get(key)
                age = None if answer is None else now - answer.asked_at
                if answer is not None and age is not None and age < self._ttl:
                    return answer.value  # type: ignore[no-any-return]
                outage = self._outages.get(_EVERYTHING) or self._outages.get(key)
                flight = self._flights.get(key)
                is_paused = outage is not None and now < outage.next_try
                is_mine = flight is None and not is_paused
                if is_mine:
                    flight = self._begin_request(key, now)
            if is_paused and outage is not None:
                return self._stale_answer(answer, outage, now)  # type: ignore[no-any-return]
            assert flight is not None
            if is_mine:
                return self._ask(key, flight, ask)
            if answer is not None and age is not None and age < self._ttl + self._patience:
                return answer.value  # type: ignore[no-any-return]
            if not flight.wait(_MAX_CALLS_PER_LOOKUP * self._patience):
                raise exceptions.LimitsUnavailable("another thread still waits for a response", self._clock() - now)

    def _begin_request(self, key: Hashable, now: float) -> threading.Event:
        """Register the request of this thread. In an outage, no other thread sends one until it ends or times out."""
        for name in {_EVERYTHING, key} & set(self._outages):
            self._pause(name, now + _MAX_CALLS_PER_LOOKUP * self._patience)
        flight = self._flights[key] = threading.Event()
        return flight

    def _pause(self, name: Hashable, until: float) -> None:
        self._outages[name] = dataclasses.replace(self._outages[name], next_try=until)

    def _ask(self, key: Hashable, flight: threading.Event, ask: Callable[[], T]) -> T:
        began = self._clock()
        try:
            value = ask()
        except LimitSourceError as error:
            with self._lock:
                now = self._clock()
                if not error.whole:
                    self._outages.pop(_EVERYTHING, None)  # the source did respond
                outage = self._note_outage(_EVERYTHING if error.whole else key, error.reason, began, now)
                answer = self._answers.get(key)
            return self._stale_answer(answer, outage, now)  # type: ignore[no-any-return]
        except BaseException:
            with self._lock:
                # Not an outage of the source: the next caller may send a request immediately.
                for name in {_EVERYTHING, key} & set(self._outages):
                    self._pause(name, began)
            raise
        else:
            self._keep(key, _Answer(value, began))
            return value
        finally:
            with self._lock:
                del self._flights[key]
            flight.set()

    def _keep(self, key: Hashable, answer: _Answer) -> None:
        with self._lock:
            self._outages.pop(key, None)
            ended = self._outages.pop(_EVERYTHING, None)
            self._answers.pop(key, None)
            self._answers[key] = answer
            while len(self._answers) > self._most:
                del self._answers[next(iter(self._answers))]
            now = self._clock()
            if ended is not None:
                self._warned_at = None
        if ended is not None:
            LOG.warning("Limit source available again after %.0f s (%s)", now - ended.began, ended.reason)

    def _note_outage(self, name: Hashable, reason: str, began: float, now: float) -> _Outage:
        known = self._outages.pop(name, None)
        outage = _Outage(reason, began if known is None else known.began, now + PAUSE_SECONDS)
        self._outages[name] = outage
        while len(self._outages) > self._most:
            del self._outages[next(name for name in self._outages if name is not _EVERYTHING)]
        return outage

    def _stale_answer(self, answer: _Answer | None, outage: _Outage, now: float) -> Any:
        if answer is None or now - answer.asked_at >= self._ttl + self._stale:
            raise exceptions.LimitsUnavailable(outage.reason, now - outage.began)
        with self._lock:
            warn = self._warned_at is None or now - self._warned_at >= _WARN_EVERY_SECONDS
            if warn:
                self._warned_at = now
        if warn:
            LOG.warning(
                "Limit source unavailable for %.0f s (%s); using cached limits up to %.0f s old.",
                now - outage.began,
                outage.reason,
                self._ttl + self._stale,
            )
        return answer.value
