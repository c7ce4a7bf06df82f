# SPDX-License-Identifier: Apache-2.0
"""Starts processes whose clocks are wrong, with libfaketime."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import fixtures

from tests import fixtures as our_fixtures
from tests.faults import clock_worker

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
    """Makes calls in a process whose clock is ahead by a number of seconds (negative: behind).

    The process serves all tests of this one, in turn: to start one takes longer than its calls. Without a skew, it is
    this process.
    """

    def __init__(self, url: str, skew_seconds: int) -> None:
        super().__init__()
        self._url = url
        self.skew_seconds = skew_seconds

    def _setUp(self) -> None:
        if self.skew_seconds:
            self.call: Callable[..., Any] = _process(self.skew_seconds, os.getpid()).call
            self.addCleanup(self.call, "close")
            self.call("use", self._url)
        else:
            calls = clock_worker.Calls(self._url)
            self.addCleanup(calls.close)
            self.call = calls.call


@functools.cache
def _process(skew_seconds: int, _pid: int) -> _Process:
    return _Process(skew_seconds)


class _Process:
    def __init__(self, skew_seconds: int) -> None:
        environ = {**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        environ |= {"LD_PRELOAD": str(library()), "FAKETIME": f"{skew_seconds:+d}s"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.clock_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=TOP,
        )
        our_fixtures.at_exit(self._end)

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


LIVES_SECONDS = (2, 8, 32)
"""A longer one follows if a busy machine made the calls too late for the one before."""


def find_skew_violations(workers: list[Worker], rng: random.Random, *, naive: bool = False) -> list[str]:
    """Make all workers reserve, then expire too early, then too late; returns the violations, as sentences."""
    for life_seconds in LIVES_SECONDS:
        problems = _violations(workers, rng, "naive_expire" if naive else "expire", life_seconds)
        if problems is not None:
            return problems
    raise AssertionError(f"the calls take longer than {LIVES_SECONDS[-1]} seconds")


def _violations(workers: list[Worker], rng: random.Random, sweep: str, life_seconds: int) -> list[str] | None:
    """None: the machine was too slow."""
    problems: list[str] = []
    for worker in workers:
        worker.call("expire")  # connected, and caches filled
    began = time.monotonic()
    made: dict[str, Worker] = {}
    for worker in workers:
        for how in ("reserve", "reserve_until"):
            (uuid,) = worker.call(how, {"gpu": 1}, life_seconds)
            made[uuid] = worker
    all_made = time.monotonic()
    swept = sum(worker.call(sweep) for worker in workers)
    if swept:
        problems.append(f"{swept} reservations expired before their time")
    uuids = list(made)
    rng.shuffle(uuids)
    problems += _settle_in_time(workers, uuids)
    if time.monotonic() - began > life_seconds - 1:
        for uuid in uuids:
            workers[0].call("release", [uuid])
        return None
    time.sleep(max(0.0, all_made + life_seconds + 0.2 - time.monotonic()))
    worker = rng.choice(workers)
    overdue = uuids.pop()
    if (answer := worker.call("commit", [overdue])) != "ReservationExpired":
        problems.append(f"a clock {worker.skew_seconds} s off commits what is overdue: {answer}")
    slowest = min(workers, key=lambda one: one.skew_seconds)
    expired = slowest.call(sweep)
    if expired != len(uuids):
        problems.append(f"a clock {slowest.skew_seconds} s off expires {expired} of {len(uuids)} that are overdue")
    return problems


def _settle_in_time(workers: list[Worker], uuids: list[str]) -> list[str]:
    """Each worker settles a reservation of any worker."""
    problems = []
    for worker in workers:
        uuid = uuids.pop()
        if worker.call("commit", [uuid]) is not None:
            problems.append(f"a clock {worker.skew_seconds} s off cannot commit what is in time")
        worker.call("release", [uuid])
    return problems
