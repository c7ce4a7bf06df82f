# SPDX-License-Identifier: Apache-2.0
"""A ledger of a million: what its size costs a charge, and how fast a million reservations are expired and purged."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks import floor, harness
from benchmarks.report import Figure, Report
from benchmarks.seeding import Seeded
from cyborg_quota import Claim, QuotaEngine
from tests import base, fixtures

MOST = 10**9
SPREAD = 10_000
"""Over so many projects the reservations of a batch job are spread."""

_FORK = multiprocessing.get_context("fork")
_BATCH_ROWS = 2000
_LONGEST_SECONDS = 10.0
_TURNS = (("floor", 0.25), ("ours", 0.5), ("floor", 0.25))
"""Who does how much of all there is: ours in one go, for a sweeper with much before it orders it."""

T = TypeVar("T")


def make_engine(url: str) -> QuotaEngine:
    """As an operator has it: durable, batches of the default size, a limit in force."""
    limits = fixtures.DictLimits()
    limits.limits[None, "gpu"] = MOST
    return fixtures.make_engine(url, limits, batch_rows=_BATCH_ROWS, sqlite_synchronous=True)


def charging(url: str, projects: list[str]) -> harness.Worker:
    """Reserve and commit in these projects, in turns of chance; each was charged before."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        chance = random.Random(number)

        def charge(project_id: str) -> None:
            context = base.Context(project_id)
            engine.commit(context, engine.reserve_many(context, [Claim(str(uuid.uuid4()), {"gpu": 1})], group="g"))

        for project_id in projects:
            charge(project_id)
        return lambda: charge(chance.choice(projects))

    return start


def run(report: Report, backend: str, *, count: int, rounds: int, seconds: float) -> None:
    """Seed, expire, compare with a small ledger, purge; then expire and purge beside two who charge."""
    small_rows, small_settled = max(1, count // 1000), max(1, count // 100)
    report.say(f"{backend}: seeding {count:,} usage rows and {count:,} overdue reservations")
    small, big = Seeded(backend, "small", small_rows), Seeded(backend, "big", count)
    small.add_settled(small_settled, small_rows)
    spread = min(SPREAD, count)
    big.add_overdue(count, spread)
    case = f"{count:,} rows"
    swept(report, backend, big, "expiry", count)
    ways = {"small": charging(small.url, _some(small)), "big": charging(big.url, _some(big))}
    figures = harness.compare(ways, 1, rounds, seconds, against="small")
    report.details[f"{backend}, size"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
    name = f"reserve + commit, cost against {small_rows:,} rows"
    report.add(Figure(backend, case, name, 1 / figures["big"].ratio, " x", 1.3, 1.0, is_most=True))
    swept(report, backend, big, "purge", big.scalar("SELECT COUNT(*) FROM reservations WHERE deleted"))
    beside(report, backend, big, max(count // 5, 1))


def swept(report: Report, backend: str, big: Seeded, name: str, count: int) -> None:
    """One sweeper alone, beside the bare driver: they take turns at all there is to be done."""
    case = f"{big.projects:,} rows"
    ways: dict[str, Callable[[int], object]] = {
        "floor": lambda rows: FLOORS[name](big.url, rows, _BATCH_ROWS),
        "ours": lambda rows: sweep(big.url, JOBS[name], rows),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    left = count
    for number, (way, share) in enumerate(_TURNS):
        is_last = number == len(_TURNS) - 1
        began = time.perf_counter()
        ways[way](count if is_last else int(count * share))
        seconds = time.perf_counter() - began
        # (Counted by the database: a sweeper that is stopped finishes what it has begun, and says no more.)
        before, left = left, big.scalar(LEFT[name])
        rates[way].append((before - left) / seconds)
    assert left == 0, f"{left} of {count} are left"
    rate, bare = (statistics.median(rates[way]) for way in ("ours", "floor"))
    report.add(Figure(backend, case, f"{name}, a second", rate, must=20_000, aim=50_000))
    report.add(Figure(backend, case, f"({name} of the bare driver, a second)", bare))
    report.add(Figure(backend, case, f"{name}, ours / floor", rate / bare))
    report.details[f"{backend}, {name}"] = rates
    engine = make_engine(big.url)
    assert not engine.audit(base.ADMIN), "the audit finds something"
    engine.close()


def _some(ledger: Seeded) -> list[str]:
    """A hundred of its projects, from the first to the last."""
    return [f"p{number}" for number in range(0, ledger.projects, max(1, ledger.projects // 100))]


Job = Callable[[QuotaEngine, Callable[[int], None]], int]
JOBS: dict[str, Job] = {
    "expiry": lambda engine, progress: engine.expire(base.ADMIN, progress=progress),
    "purge": lambda engine, progress: engine.purge(base.ADMIN, 0, progress=progress),
}
LEFT = {
    "expiry": "SELECT COUNT(*) FROM reservations WHERE state = 'reserved'",
    "purge": "SELECT COUNT(*) FROM reservations WHERE deleted",
}
FLOORS = {"expiry": floor.expire, "purge": floor.purge}


def beside(report: Report, backend: str, big: Seeded, count: int) -> None:
    """Two processes charge projects that the sweeper's rows are of, while it expires, and then purges."""
    projects = [f"p{number}" for number in range(min(100, big.projects))]
    quiet, _ = foreground(big.url, projects, lambda: time.sleep(_LONGEST_SECONDS / 2))
    report.add(Figure(backend, "2 charge", "p99 without upkeep", quiet.percentile(99), " ms"))
    big.add_overdue(count, min(SPREAD, big.projects))
    for name, job in JOBS.items():
        upkeep = functools.partial(sweep, big.url, job, seconds=_LONGEST_SECONDS)
        sample, (rows, seconds) = foreground(big.url, projects, upkeep)
        report.add(Figure(backend, f"{name} beside 2", "p99", sample.percentile(99), " ms", 25.0, is_most=True))
        report.add(Figure(backend, f"{name} beside 2", "rows a second", rows / seconds))


class _Enough(Exception):
    """It has run for long enough."""


def sweep(url: str, job: Job, most: int | None = None, seconds: float = math.inf) -> tuple[int, float]:
    """Do the job until it is done, or for so long or about so many rows; rows and seconds."""
    engine = make_engine(url)
    rows = 0
    began = time.perf_counter()

    def progress(batch: int) -> None:
        nonlocal rows
        rows += batch
        if time.perf_counter() - began > seconds or (most is not None and rows >= most):
            raise _Enough

    with contextlib.suppress(_Enough):
        job(engine, progress)
    taken = time.perf_counter() - began
    engine.close()
    return rows, taken


def foreground(url: str, projects: list[str], meanwhile: Callable[[], T]) -> tuple[harness.Sample, T]:
    """Two processes that charge for as long as ``meanwhile`` takes; and what that returned."""
    ready, over = _FORK.Barrier(3), _FORK.Event()
    pipes = [_FORK.Pipe(duplex=False) for _ in range(2)]

    def child(number: int, writer: Any) -> None:
        try:
            cycle = charging(url, projects)(number)
            ready.wait(60)
            latencies = []
            while not over.is_set():
                began = time.perf_counter()
                cycle()
                latencies.append(time.perf_counter() - began)
            writer.send(latencies)
        except BaseException as error:
            writer.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)

    children = [_FORK.Process(target=child, args=(number, writer)) for number, (_, writer) in enumerate(pipes)]
    for one in children:
        one.start()
    ready.wait(60)
    began = time.perf_counter()
    answer = meanwhile()
    seconds = time.perf_counter() - began
    over.set()
    latencies = [one for taken in harness.gather(children, [reader for reader, _ in pipes]) for one in taken]
    return harness.Sample(len(latencies), seconds, latencies), answer
