# SPDX-License-Identifier: Apache-2.0
"""Processes whose clocks are wrong, with libfaketime, and what they do to one ledger."""

from __future__ import annotations

import contextlib
import datetime
import functools
import multiprocessing
import os
import pathlib
import random
import select
import time
from multiprocessing.managers import BaseManager
from typing import Any
from unittest import mock

import fixtures
import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import overrides
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, hooks
from tests import fixtures as our_fixtures

CONTEXT = base.Context("p")
SKEW_SECONDS = 600
_PLACES = ("/usr/lib", "/usr/lib64", "/lib", "/usr/local/lib")
_NAIVE_EXPIRE = (
    "UPDATE reservations SET state = 'expired', deleted = TRUE, live = NULL, claim_ordinal = NULL, deleted_at = :now"
    " WHERE state = 'reserved' AND expire <= :now"
)


def library() -> str | None:
    """Return the path of libfaketime; None if it is not installed."""
    found = (path for place in _PLACES for path in sorted(pathlib.Path(place).glob("**/libfaketime.so.1")))
    return next(map(str, found), None)


class Calls:
    """The calls on one database, in a process whose clock may be wrong."""

    def __init__(self, url: str) -> None:
        self.engine = our_fixtures.make_engine(
            url, DatabaseLimitDriver(Flat(), InitialLimits(), missing_is_unlimited=True)
        )

    def close(self) -> None:
        self.engine.close()

    def time(self) -> float:
        return time.time()

    def reserve(self, seconds: int, is_moment: bool = False) -> list[str]:
        """Reserve one for some seconds, or until a moment that this process computes."""
        return self.engine.reserve(CONTEXT, {"gpu": 1}, at(seconds) if is_moment else seconds)

    def commit(self, uuids: list[str]) -> None:
        self.engine.commit(CONTEXT, uuids)

    def release(self, uuids: list[str]) -> None:
        self.engine.release(CONTEXT, uuids)

    def expire(self) -> int:
        return self.engine.expire(base.ADMIN)

    def naive_expire(self) -> int:
        """The naive implementation: it compares the expiry with the clock of this process."""
        with hooks.database_of(self.engine).engine.begin() as connection:
            return connection.execute(sa.text(_NAIVE_EXPIRE), {"now": at(0).replace(tzinfo=None)}).rowcount

    def room(self) -> int:
        """How many of a resource fit, by the limits in the tables."""
        usage = self.engine.get_usages(CONTEXT)["gpu"]
        over = self.engine.check(CONTEXT, {"gpu": max(usage.available or 0, 0) + 1})
        assert [one.limit for one in over] == [usage.limit], (over, usage)
        return usage.available or 0

    def override(self, limit: int, start: float, end: float) -> str:
        """Make an override; its span is in seconds from now, by the clock of the database."""
        now = self.engine._driver.database.read(overrides.now)
        span = [now + datetime.timedelta(seconds=seconds) for seconds in (start, end)]
        return self.engine.limits.set_overrides(base.ADMIN, {"gpu": limit}, "p", span[1], start=span[0])[0].id


def at(seconds: float) -> datetime.datetime:
    """Return a time, by the clock of this process."""
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


class _Manager(BaseManager):
    """Makes the calls in another process."""


_Manager.register("Calls", Calls)


def _sleep_by_select() -> None:
    """libfaketime 0.9 does not support the system call with which Python sleeps until a given time."""
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None


@functools.cache
def _process(skew_seconds: int, _pid: int) -> Any:
    """Start a process with such a clock. It serves all tests of this one: to start one takes longer than its calls."""
    manager = _Manager(ctx=multiprocessing.get_context("spawn"))
    environ = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    environ |= {"LD_PRELOAD": str(library()), "FAKETIME": f"{skew_seconds:+d}s"}
    with mock.patch.dict(os.environ, environ):
        manager.start(_sleep_by_select)
    our_fixtures.at_exit(manager.shutdown)
    return manager


class Worker(fixtures.Fixture):
    """Makes calls in a process whose clock is ahead by a number of seconds (negative: behind; 0: in this process)."""

    def __init__(self, url: str, skew_seconds: int) -> None:
        super().__init__()
        self._url = url
        self.skew_seconds = skew_seconds

    def _setUp(self) -> None:
        self.calls = (_process(self.skew_seconds, os.getpid()).Calls if self.skew_seconds else Calls)(self._url)
        self.addCleanup(self.calls.close)


LIVES_SECONDS = (2, 8, 32)
"""A longer one follows if a busy machine made the calls too late for the one before."""


def check_skew(workers: list[Worker], rng: random.Random) -> None:
    """Make all workers reserve, then expire too early, then too late. Raises AssertionError."""
    if not any(_is_checked(workers, rng, life_seconds) for life_seconds in LIVES_SECONDS):
        raise AssertionError(f"the calls take longer than {LIVES_SECONDS[-1]} seconds")


def _is_checked(workers: list[Worker], rng: random.Random, life_seconds: int) -> bool:
    """False: the machine was too slow."""
    for worker in workers:
        worker.calls.expire()  # connected, and caches filled
    began = time.monotonic()
    uuids: list[str] = []
    for worker in workers:
        uuids += worker.calls.reserve(life_seconds) + worker.calls.reserve(life_seconds, True)
    all_made = time.monotonic()
    swept = sum(worker.calls.expire() for worker in workers)
    assert not swept or time.monotonic() - began > life_seconds, f"{swept} reservations expired before their time"
    rng.shuffle(uuids)
    left = list(workers)
    with contextlib.suppress(exceptions.ReservationExpired):
        while left:  # each settles a reservation of any worker
            uuid = uuids.pop()
            left[-1].calls.commit([uuid])
            left.pop().calls.release([uuid])
    if time.monotonic() - began > life_seconds - 1:
        workers[0].calls.release(uuids)
        return False
    assert not left, f"a clock {left[-1].skew_seconds} s off cannot commit what is in time"
    time.sleep(max(0.0, all_made + life_seconds + 0.2 - time.monotonic()))
    with contextlib.suppress(exceptions.ReservationExpired):
        rng.choice(workers).calls.commit([uuids.pop()])
        raise AssertionError("what is overdue was committed")
    slowest = min(workers, key=lambda one: one.skew_seconds)
    expired = slowest.calls.expire()
    assert expired == len(uuids), f"{expired} of {len(uuids)} that are overdue expired"
    return True
