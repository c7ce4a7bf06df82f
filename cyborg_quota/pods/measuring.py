# SPDX-License-Identifier: Apache-2.0
"""Measures the use of several clouds in parallel, with a time limit for each. No database.

A thread that waits for a server cannot be ended. After its time limit a measurement is abandoned: its answer is
ignored, and its thread ends with the request that it waits for. The threads are daemons, so that the program does not
wait for them at its end.
"""

from __future__ import annotations

import collections
import dataclasses
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


@dataclasses.dataclass
class _Measurement:
    """One that runs. ``deadline``: of time.monotonic()."""

    name: str
    deadline: float
    is_abandoned: bool = False

    def check(self, _count: int = 0) -> None:
        if self.is_abandoned:
            raise _Abandoned

    def run(
        self, endpoint: str, read: ReadEndpoint, answers: queue.SimpleQueue[tuple[_Measurement, Usage | str]]
    ) -> None:
        answers.put((self, self._read(endpoint, read)))

    def _read(self, endpoint: str, read: ReadEndpoint) -> Usage | str:
        try:
            return read(endpoint, self.check)
        except _Abandoned:
            return "abandoned"
        except exceptions.QuotaError as error:
            return str(error)
        except Exception:
            LOG.exception("%s could not be measured.", self.name)
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
    answers: queue.SimpleQueue[tuple[_Measurement, Usage | str]] = queue.SimpleQueue()
    waiting = collections.deque(endpoints.items())
    running: list[_Measurement] = []
    try:
        while waiting or running:
            while waiting and len(running) < MAX_PARALLEL:
                name, endpoint = waiting.popleft()
                one = _Measurement(name, time.monotonic() + timeout_seconds)
                threading.Thread(
                    target=one.run, args=(endpoint, read, answers), name=f"measure {name}", daemon=True
                ).start()
                running.append(one)
            tick()
            wait = min(one.deadline for one in running) - time.monotonic()
            try:
                one, answer = answers.get(timeout=min(max(wait, 0.001), _TICK_SECONDS))
            except queue.Empty:
                pass
            else:
                if one in running:
                    running.remove(one)
                    yield one.name, answer
            now = time.monotonic()
            for late in [one for one in running if one.deadline <= now]:
                late.is_abandoned = True
                running.remove(late)
                yield late.name, f"It did not answer within {timeout_seconds:g} seconds."
    finally:
        for one in running:
            one.is_abandoned = True
