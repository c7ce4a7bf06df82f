# SPDX-License-Identifier: Apache-2.0
"""The time that a caller waits for, of which retries take their part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import tenacity
from oslo_db import exception as oslo_exc

_SHARE: Final = 48


class Call(threading.local):
    """When this thread's call began, where it is made of several transactions: ``with call: ...``

    (contextlib's way, with a generator, takes five times as long, twice an attach.)
    """

    began: float | None = None

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_failure: object) -> None:
        self.began = None


def waiting(first_seconds: float, longest_seconds: float, ends: float) -> Callable[[tenacity.RetryCallState], float]:
    """tenacity's wait: longer each time, by chance; after a conflict at most a 48th of what is left until ``ends``.

    Whoever has been refused for long comes more often. On a Galera cluster the writers of one node can refuse those of
    the others for seconds, and who waited half a second each time could have no turn at all. (A database that is away
    is not asked more often for that.)
    """

    def wait(state: tenacity.RetryCallState) -> float:
        longest = longest_seconds
        if state.outcome is not None and isinstance(state.outcome.exception(), oslo_exc.DBDeadlock):
            longest = min(longest, max(0.0, ends - time.monotonic()) / _SHARE)
        return tenacity.wait_random_exponential(multiplier=first_seconds, min=0, max=longest)(state)

    return wait
