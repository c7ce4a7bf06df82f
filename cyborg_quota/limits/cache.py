# SPDX-License-Identifier: Apache-2.0
"""Answers of a source that is slow and may be away: kept for a time, asked for once at a time, never made up.

Of the age of an answer:

    0 ... ttl                  used, the source is not asked
    ttl ... ttl + patience     one thread asks again; the others use it meanwhile
    ttl ... ttl + stale        used, with a warning, while the source does not answer
    beyond                     not used: LimitsUnavailable until the source answers
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
"""So many answers are kept; beyond that, the one that was refreshed longest ago is forgotten."""

PAUSE_SECONDS: Final = 2.0
"""After a source failed to answer, nobody asks it again for so long: a hung one would hold every caller in turn."""

_MAX_CALLS_PER_LOOKUP: Final = 4
"""So many calls one answer may take: to find Keystone, to log in there, to find its API, and the question."""

_WARN_EVERY_SECONDS: Final = 60.0
_EVERYTHING: Final = object()
"""Stands among the keys for the source as a whole."""


class LimitSourceError(Exception):
    """The source did not answer. ``reason`` is for a person, and holds no secret.

    ``whole``: nothing else would have been answered either. Otherwise only this question was refused.
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
    """Shared by threads. An answer may be None: that there is nothing is an answer too, kept as long as any.

    All times in seconds. ``patience_seconds`` is how long one question may take; ``clock`` must be monotonic.
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
        self._answers: dict[Hashable, _Answer] = {}  # in the order in which they were refreshed
        self._flights: dict[Hashable, threading.Event] = {}
        self._outages: dict[Hashable, _Outage] = {}
        self._warned_at: float | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """The answer to ``key``: a kept one, or what ``ask`` returns now. Raises LimitsUnavailable.

        ``ask`` raises Unanswered where there is no answer; whatever else it raises comes out, and is not kept.
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
                    flight = self._take_off(key, now)
            if is_paused and outage is not None:
                return self._stale_answer(answer, outage, now)  # type: ignore[no-any-return]
            assert flight is not None
            if is_mine:
                return self._ask(key, flight, ask)
            if answer is not None and age is not None and age < self._ttl + self._patience:
                return answer.value  # type: ignore[no-any-return]
            if not flight.wait(_MAX_CALLS_PER_LOOKUP * self._patience):
                raise exceptions.LimitsUnavailable("another thread still waits for the answer", self._clock() - now)

    def _take_off(self, key: Hashable, now: float) -> threading.Event:
        """This thread asks. In an outage nobody else does, until there is an answer or plenty of time has passed."""
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
                    self._outages.pop(_EVERYTHING, None)  # a refusal is an answer too
                outage = self._note_outage(_EVERYTHING if error.whole else key, error.reason, began, now)
                answer = self._answers.get(key)
            return self._stale_answer(answer, outage, now)  # type: ignore[no-any-return]
        except BaseException:
            with self._lock:
                # Not the source's fault: the next may try at once.
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
            over = self._outages.pop(_EVERYTHING, None)
            self._answers.pop(key, None)
            self._answers[key] = answer
            while len(self._answers) > self._most:
                del self._answers[next(iter(self._answers))]
            now = self._clock()
            if over is not None:
                self._warned_at = None
        if over is not None:
            LOG.warning("Limits can be read again, after %.0f s (%s)", now - over.began, over.reason)

    def _note_outage(self, name: Hashable, reason: str, began: float, now: float) -> _Outage:
        known = self._outages.pop(name, None)
        outage = _Outage(reason, began if known is None else known.began, now + PAUSE_SECONDS)
        self._outages[name] = outage
        while len(self._outages) > self._most:
            del self._outages[next(one for one in self._outages if one is not _EVERYTHING)]
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
                "Limits cannot be read, for %.0f s now: %s. Answers of before are used until they are %.0f s old",
                now - outage.began,
                outage.reason,
                self._ttl + self._stale,
            )
        return answer.value
