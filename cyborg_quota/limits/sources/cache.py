# SPDX-License-Identifier: Apache-2.0
"""A cache of the responses of a limit source that may be slow or unavailable.

The age of a response determines its use:

    0 ... ttl                  used without a request
    ttl ... ttl + timeout      one thread requests a new one; the other threads use the old one until then
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

from cyborg_quota import exceptions, forks

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESPONSES: Final = 20_000
"""The maximum number of cached responses. The one that was refreshed least recently is evicted."""

PAUSE_SECONDS: Final = 2.0
"""The pause after a failed request, so that a source that hangs does not block each caller in turn."""

_MAX_CALLS_PER_LOOKUP: Final = 4
"""The maximum number of HTTP calls of a lookup: discovery, authentication, API discovery, and the request."""

_WARN_EVERY_SECONDS: Final = 60.0
_EVERYTHING: Final = object()
"""The key that represents the whole source in ``_outages``."""


class LimitSourceError(Exception):
    """The limit source did not respond to a request. ``reason`` is a text without secrets.

    ``is_total``: the source is unavailable for all requests. Otherwise only this request failed.
    """

    def __init__(self, reason: str, *, is_total: bool) -> None:
        self.reason = reason
        self.is_total = is_total
        super().__init__(reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Response:
    value: Any
    requested_at: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Outage:
    reason: str
    began: float
    next_try: float


class Cache:
    """A thread-safe cache. None is a valid response and is cached like any other.

    All times are in seconds. ``timeout_seconds`` is the timeout of one request. ``clock`` must be monotonic.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float,
        stale_seconds: float,
        timeout_seconds: float,
        max_responses: int = MAX_RESPONSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = ttl_seconds
        self._stale = stale_seconds
        self._timeout = timeout_seconds
        self._max_responses = max_responses
        self._clock = clock
        self._lock = threading.Lock()
        self._responses: dict[Hashable, _Response] = {}  # least recently refreshed first
        self._requests: dict[Hashable, threading.Event] = {}
        self._outages: dict[Hashable, _Outage] = {}
        self._warned_at: float | None = None
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Keep the responses. The threads that were waiting for others do not exist in the child."""
        self._lock = threading.Lock()
        self._requests = {}

    def get(self, key: Hashable, fetch: Callable[[], T]) -> T:
        """Return the cached response for ``key``, or call ``fetch`` for a new one. Raises LimitsUnavailable.

        ``fetch`` raises LimitSourceError if the source does not respond. Other exceptions propagate and are not cached.
        """
        while True:
            with self._lock:
                now = self._clock()
                response = self._responses.get(key)
                age = None if response is None else now - response.requested_at
                if response is not None and age is not None and age < self._ttl:
                    return response.value  # type: ignore[no-any-return]
                outage = self._outages.get(_EVERYTHING) or self._outages.get(key)
                request = self._requests.get(key)
                is_paused = outage is not None and now < outage.next_try
                is_requester = request is None and not is_paused
                if is_requester:
                    request = self._begin_request(key, now)
            if is_paused and outage is not None:
                return self._stale_value(response, outage, now)  # type: ignore[no-any-return]
            assert request is not None
            if is_requester:
                return self._fetch(key, request, fetch)
            if response is not None and age is not None and age < self._ttl + self._timeout:
                return response.value  # type: ignore[no-any-return]
            if not request.wait(_MAX_CALLS_PER_LOOKUP * self._timeout):
                raise exceptions.LimitsUnavailable("another thread still waits for a response", self._clock() - now)

    def _begin_request(self, key: Hashable, now: float) -> threading.Event:
        """Register the request of this thread. In an outage, no other thread sends one until it ends or times out."""
        self._pause(key, now + _MAX_CALLS_PER_LOOKUP * self._timeout)
        request = self._requests[key] = threading.Event()
        return request

    def _pause(self, key: Hashable, until: float) -> None:
        for name in {_EVERYTHING, key} & set(self._outages):
            self._outages[name] = dataclasses.replace(self._outages[name], next_try=until)

    def _fetch(self, key: Hashable, request: threading.Event, fetch: Callable[[], T]) -> T:
        began = self._clock()
        try:
            value = fetch()
        except LimitSourceError as error:
            with self._lock:
                now = self._clock()
                if not error.is_total:
                    self._outages.pop(_EVERYTHING, None)  # the source did respond
                outage = self._note_outage(_EVERYTHING if error.is_total else key, error.reason, began, now)
                response = self._responses.get(key)
            return self._stale_value(response, outage, now)  # type: ignore[no-any-return]
        except BaseException:
            with self._lock:
                # Not an outage of the source: the next caller may send a request immediately.
                self._pause(key, began)
            raise
        else:
            self._keep(key, _Response(value, began))
            return value
        finally:
            with self._lock:
                self._requests.pop(key, None)  # (A child that was forked meanwhile has none.)
            request.set()

    def _keep(self, key: Hashable, response: _Response) -> None:
        with self._lock:
            self._outages.pop(key, None)
            ended = self._outages.pop(_EVERYTHING, None)
            self._responses.pop(key, None)
            self._responses[key] = response
            while len(self._responses) > self._max_responses:
                del self._responses[next(iter(self._responses))]
            now = self._clock()
            if ended is not None:
                self._warned_at = None
        if ended is not None:
            LOG.warning("Limit source available again after %.0f s (%s)", now - ended.began, ended.reason)

    def _note_outage(self, name: Hashable, reason: str, began: float, now: float) -> _Outage:
        known = self._outages.pop(name, None)
        outage = _Outage(reason, began if known is None else known.began, now + PAUSE_SECONDS)
        self._outages[name] = outage
        while len(self._outages) > self._max_responses:
            del self._outages[next(name for name in self._outages if name is not _EVERYTHING)]
        return outage

    def _stale_value(self, response: _Response | None, outage: _Outage, now: float) -> Any:
        if response is None or now - response.requested_at >= self._ttl + self._stale:
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
        return response.value
