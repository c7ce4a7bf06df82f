# SPDX-License-Identifier: Apache-2.0
"""The retry deadline of a call, and the waits between its retries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import tenacity
from oslo_db import exception as oslo_exc

_SHARE: Final = 48


class Call(threading.local):
    """The start time of this thread's call, if the call consists of several transactions: ``with call: ...``

    (A context manager made by contextlib takes five times as long, and each attach enters it twice.)
    """

    began: float | None = None

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_failure: object) -> None:
        self.began = None


def waiting(first_seconds: float, longest_seconds: float, ends: float) -> Callable[[tenacity.RetryCallState], float]:
    """A wait for tenacity: random exponential backoff; after a conflict at most 1/48 of the time left until ``ends``.

    Thus a transaction that has been refused for long retries more often. On a Galera cluster the writers of one node
    can refuse those of other nodes for seconds, and with waits of half a second a transaction might never succeed. (The
    bound does not apply to an unavailable database, which is not asked more often.)
    """

    def wait(state: tenacity.RetryCallState) -> float:
        longest = longest_seconds
        if state.outcome is not None and isinstance(state.outcome.exception(), oslo_exc.DBDeadlock):
            longest = min(longest, max(0.0, ends - time.monotonic()) / _SHARE)
        return tenacity.wait_random_exponential(multiplier=first_seconds, min=0, max=longest)(state)

    return wait
