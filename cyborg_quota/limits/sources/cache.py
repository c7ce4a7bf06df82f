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
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, TypeVar

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


@dataclasses.dataclass(eq=False)
class LimitSourceError(Exception):
    """The limit source did not respond to a request. ``reason`` is a text without secrets.

    ``is_total``: the source is unavailable for all requests. Otherwise only this request failed.
    """

    reason: str
    is_total: bool = dataclasses.field(kw_only=True)


class _Response(NamedTuple):
    value: Any
    requested_at: float


class _Outage(NamedTuple):
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
        self._responses: dict[Hashable, _Response] = {}  # least recently refreshed first
        self._outages: dict[Hashable, _Outage] = {}
        self._warned_at = -math.inf
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Keep the responses. The threads that were waiting for others do not exist in the child."""
        self._answered = threading.Condition(threading.Lock())
        self._requests: set[Hashable] = set()

    def get(self, key: Hashable, fetch: Callable[[], T]) -> T:
        """Return the cached response for ``key``, or call ``fetch`` for a new one. Raises LimitsUnavailable.

        ``fetch`` raises LimitSourceError if the source does not respond. Other exceptions propagate and are not cached.
        """
        with self._answered:
            response = self._usable(key)
            if response is not None:
                return response.value  # type: ignore[no-any-return]
            began = self._clock()
            self._requests.add(key)
            # In an outage, no other thread sends a request until this one ends or times out.
            self._pause(key, began + _MAX_CALLS_PER_LOOKUP * self._timeout)
        try:
            value = fetch()
        except LimitSourceError as error:
            with self._answered:
                return self._stale_response(key, self._note_outage(key, error, began)).value  # type: ignore[no-any-return]
        except BaseException:
            with self._answered:
                # Not an outage of the source: the next caller may send a request immediately.
                self._pause(key, began)
            raise
        else:
            with self._answered:
                self._keep(key, _Response(value, began))
            return value
        finally:
            with self._answered:
                self._requests.discard(key)  # (A child that was forked meanwhile has none.)
                self._answered.notify_all()

    def _usable(self, key: Hashable) -> _Response | None:
        """The response to use now; None: the caller requests one. May wait for that of another thread."""
        while True:
            now = self._clock()
            response = self._responses.get(key)
            age = math.inf if response is None else now - response.requested_at
            if age < self._ttl:
                return response
            outage = self._outages.get(_EVERYTHING) or self._outages.get(key)
            if outage is not None and now < outage.next_try:
                return self._stale_response(key, outage)
            if key not in self._requests:
                return None
            if age < self._ttl + self._timeout:
                return response
            if not self._answered.wait_for(lambda: key not in self._requests, _MAX_CALLS_PER_LOOKUP * self._timeout):
                raise exceptions.LimitsUnavailable("another thread still waits for a response", self._clock() - now)

    def _pause(self, key: Hashable, until: float) -> None:
        for name in {_EVERYTHING, key} & set(self._outages):
            self._outages[name] = self._outages[name]._replace(next_try=until)

    def _keep(self, key: Hashable, response: _Response) -> None:
        self._put(self._responses, key, response)
        self._outages.pop(key, None)
        ended = self._outages.pop(_EVERYTHING, None)
        if ended is not None:
            self._warned_at = -math.inf
            seconds = self._clock() - ended.began
            LOG.warning("Limit source available again after %.0f s (%s)", seconds, ended.reason)

    def _note_outage(self, key: Hashable, error: LimitSourceError, began: float) -> _Outage:
        if not error.is_total:
            self._outages.pop(_EVERYTHING, None)  # the source did respond
        name = _EVERYTHING if error.is_total else key
        began = self._outages[name].began if name in self._outages else began
        outage = _Outage(error.reason, began, self._clock() + PAUSE_SECONDS)
        self._put(self._outages, name, outage)
        return outage

    def _put(self, items: dict[Hashable, Any], key: Hashable, item: Any) -> None:
        """Add the newest item. (The outage of the whole source is the newest one while it lasts.)"""
        items.pop(key, None)
        items[key] = item
        while len(items) > self._max_responses:
            del items[next(iter(items))]

    def _stale_response(self, key: Hashable, outage: _Outage) -> _Response:
        now, response = self._clock(), self._responses.get(key)
        if response is None or now - response.requested_at >= self._ttl + self._stale:
            raise exceptions.LimitsUnavailable(outage.reason, now - outage.began)
        if now - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = now
            LOG.warning(
                "Limit source unavailable for %.0f s (%s); using cached limits up to %.0f s old.",
                now - outage.began,
                outage.reason,
                self._ttl + self._stale,
            )
        return response
