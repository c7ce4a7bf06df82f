# SPDX-License-Identifier: Apache-2.0
"""Kills a worker at random times."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

Ready = Callable[[], None]


def kill_repeatedly(work: Callable[[int, Ready], None], kills: int, seed: int, longest_seconds: float = 0.03) -> None:
    """Fork a worker, and kill it (SIGKILL) at a random time after it was ready; repeat this.

    ``work(turn, ready)`` connects, calls ``ready()``, and does not return.
    """
    rng = random.Random(seed)
    for turn in range(kills):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                work(turn, lambda: os.close(writer))  # noqa: B023 - the child sees this turn's alone
            finally:
                os._exit(1)  # reached only if the work raised an exception, which is detected below
        os.close(writer)
        os.read(reader, 1)  # blocks until the child has closed its end
        os.close(reader)
        time.sleep(rng.uniform(0, longest_seconds))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            raise AssertionError(f"worker {turn} ended unexpectedly, with status {os.waitstatus_to_exitcode(status)}")
