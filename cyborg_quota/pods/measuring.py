# SPDX-License-Identifier: Apache-2.0
"""Measures the use of several clouds in parallel, with a time limit. No database.

A thread that waits for a server cannot be ended. After the time limit, its answer is ignored. The threads are daemons,
so that the program does not wait for them at its end.
"""

from __future__ import annotations

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

_TICK_SECONDS: Final = 0.5

Usage = Mapping[str, ResourceUse]


def measure(
    endpoints: Mapping[str, str],
    read: ReadEndpoint,
    *,
    timeout_seconds: float,
    tick: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, Usage | str]]:
    """Yield each name with its use, or with the reason why it was not measured, as soon as that is known.

    ``endpoints``: by name; each is read in a thread of its own. ``tick``: called at least once a second; what it raises
    ends the iteration. The iteration takes at most ``timeout_seconds``.
    """
    answers: queue.SimpleQueue[tuple[str, Usage | str]] = queue.SimpleQueue()

    def run(name: str) -> None:
        answer: Usage | str
        try:
            answer = read(endpoints[name])
        except exceptions.QuotaError as error:
            answer = str(error)
        except Exception:
            LOG.exception("%s could not be measured.", name)
            answer = "Unexpected error; see the log."
        answers.put((name, answer))

    waiting, deadline = list(endpoints), time.monotonic() + timeout_seconds
    for name in waiting:
        threading.Thread(target=run, args=(name,), name=f"measure {name}", daemon=True).start()
    while waiting and (left_seconds := deadline - time.monotonic()) > 0:
        tick()
        with contextlib.suppress(queue.Empty):
            name, answer = answers.get(timeout=min(left_seconds, _TICK_SECONDS))
            waiting.remove(name)
            yield name, answer
    yield from ((name, f"It did not answer within {timeout_seconds:g} seconds.") for name in waiting)
