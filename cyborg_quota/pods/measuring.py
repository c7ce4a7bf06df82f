# SPDX-License-Identifier: Apache-2.0
"""Measures the use of several clouds in parallel, with a time limit for each. No database.

A thread that waits for a server cannot be ended. After its time limit a measurement is abandoned: its answer is
ignored, and its thread ends with the request that it waits for. The threads are daemons, so that the program does not
wait for them at its end.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.types.capacity import ReadEndpoint, ResourceUse

LOG = logging.getLogger(__name__)

MAX_PARALLEL: Final = 16
"""The maximum number of measurements at the same time."""

_TICK_SECONDS: Final = 0.5

Usage = Mapping[str, ResourceUse]


class _Abandoned(Exception):
    """Raised in the thread of a measurement whose time limit has passed."""


def _answer_of(name: str, endpoint: str, read: ReadEndpoint, check: Callable[[int], None]) -> Usage | str:
    """What there is at the endpoint, or the reason why that is not known."""
    try:
        return read(endpoint, check)
    except _Abandoned:
        return "abandoned"
    except exceptions.QuotaError as error:
        return str(error)
    except Exception:
        LOG.exception("%s could not be measured.", name)
        return "An unexpected error, see the log."


def measure(
    endpoints: Mapping[str, str],
    read: ReadEndpoint,
    *,
    timeout_seconds: float,
    tick: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, Usage | str]]:
    """Yield each name with its use, or with the reason why it was not measured, as soon as that is known.

    ``endpoints``: by name. ``tick``: called at least once a second; what it raises ends the iteration. The iteration
    takes at most ``timeout_seconds`` for each MAX_PARALLEL of them.
    """
    answers: queue.SimpleQueue[tuple[str, Usage | str]] = queue.SimpleQueue()
    waiting = collections.deque(endpoints)
    deadlines: dict[str, float] = {}  # of those that run, by time.monotonic()

    def run(name: str) -> None:
        def check(_count: int) -> None:
            if name not in deadlines:
                raise _Abandoned

        answers.put((name, _answer_of(name, endpoints[name], read, check)))

    try:
        while waiting or deadlines:
            while waiting and len(deadlines) < MAX_PARALLEL:
                name = waiting.popleft()
                deadlines[name] = time.monotonic() + timeout_seconds
                threading.Thread(target=run, args=(name,), name=f"measure {name}", daemon=True).start()
            tick()
            wait = min(deadlines.values()) - time.monotonic()
            with contextlib.suppress(queue.Empty):
                name, answer = answers.get(timeout=min(max(wait, 0.001), _TICK_SECONDS))
                if deadlines.pop(name, None) is not None:
                    yield name, answer
            now = time.monotonic()
            for name in [name for name, deadline in deadlines.items() if deadline <= now]:
                del deadlines[name]
                yield name, f"It did not answer within {timeout_seconds:g} seconds."
    finally:
        deadlines.clear()
