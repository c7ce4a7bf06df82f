# SPDX-License-Identifier: Apache-2.0
"""Starts processes whose clocks are wrong, with libfaketime."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import fixtures

TOP = pathlib.Path(__file__).parents[2]
SKEW_SECONDS = 600
_PLACES = ("/usr/lib", "/usr/lib64", "/lib", "/usr/local/lib")


def library() -> str | None:
    """Return the path of libfaketime; None if it is not installed."""
    for place in _PLACES:
        for path in sorted(pathlib.Path(place).glob("**/libfaketime.so.1")):
            return str(path)
    return None


class Worker(fixtures.Fixture):
    """A process that makes calls, and whose clock is ahead by a number of seconds (negative: behind)."""

    def __init__(self, url: str, skew_seconds: int) -> None:
        super().__init__()
        self._url = url
        self.skew_seconds = skew_seconds

    def _setUp(self) -> None:
        environ = {**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        if self.skew_seconds:
            environ |= {"LD_PRELOAD": str(library()), "FAKETIME": f"{self.skew_seconds:+d}s"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.clock_worker", self._url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=TOP,
        )
        self.addCleanup(self._end)

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def call(self, *words: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


LIFE_SECONDS = 2


def find_skew_violations(workers: list[Worker], rng: random.Random, *, naive: bool = False) -> list[str]:
    """Make all workers reserve, then expire too early, then too late; returns the violations, as sentences."""
    sweep = "naive_expire" if naive else "expire"
    problems: list[str] = []
    for worker in workers:
        worker.call("expire")  # connected, and caches filled
    began = time.monotonic()
    made: dict[str, Worker] = {}
    for worker in workers:
        for how in ("reserve", "reserve_until"):
            (uuid,) = worker.call(how, {"gpu": 1}, LIFE_SECONDS)
            made[uuid] = worker
    all_made = time.monotonic()
    swept = sum(worker.call(sweep) for worker in workers)
    is_early = time.monotonic() - began < LIFE_SECONDS - 1
    if is_early and swept:
        problems.append(f"{swept} reservations expired before their time")
    # Each worker settles a reservation of another worker, in time.
    uuids = list(made)
    rng.shuffle(uuids)
    for worker in workers:
        uuid = uuids.pop()
        if worker.call("commit", [uuid]) is not None and is_early:
            problems.append(f"a clock {worker.skew_seconds} s off cannot commit what is in time")
        worker.call("release", [uuid])
    time.sleep(max(0.0, all_made + LIFE_SECONDS + 0.2 - time.monotonic()))
    worker = rng.choice(workers)
    overdue = uuids.pop()
    if (answer := worker.call("commit", [overdue])) != "ReservationExpired":
        problems.append(f"a clock {worker.skew_seconds} s off commits what is overdue: {answer}")
    slowest = min(workers, key=lambda one: one.skew_seconds)
    expired = slowest.call(sweep)
    if expired != len(uuids):
        problems.append(f"a clock {slowest.skew_seconds} s off expires {expired} of {len(uuids)} that are overdue")
    return problems
