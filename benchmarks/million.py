# SPDX-License-Identifier: Apache-2.0
"""Measures a ledger with a million rows: the cost of a charge, and the rate of expiry and purge."""

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
"""The number of projects over which the reservations of a batch job are spread."""

_FORK = multiprocessing.get_context("fork")
_BATCH_ROWS = 2000
_LONGEST_SECONDS = 10.0
_TURNS = (("floor", 0.25), ("ours", 0.5), ("floor", 0.25))
"""The share of the rows that each variant processes, in this order. Ours gets its share in one run."""

T = TypeVar("T")


def make_engine(url: str) -> QuotaEngine:
    """Return an engine with production settings: durable, batches of the default size, with a limit."""
    limits = fixtures.DictLimits()
    limits.own[None, "gpu"] = MOST
    return fixtures.make_engine(url, limits, batch_rows=_BATCH_ROWS, sqlite_synchronous=True)


def charging(url: str, projects: list[str]) -> harness.Worker:
    """Return a worker that reserves and commits in random projects of these, all charged before."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        rng = random.Random(number)

        def charge(project_id: str) -> None:
            context = base.Context(project_id)
            engine.commit(context, engine.reserve_many(context, [Claim(str(uuid.uuid4()), {"gpu": 1})], group="g"))

        for project_id in projects:
            charge(project_id)
        return lambda: charge(rng.choice(projects))

    return start


def run(report: Report, backend: str, *, count: int, rounds: int, seconds: float) -> None:
    """Seed, expire, compare with a small ledger, purge; then expire and purge while two processes charge."""
    small_rows, small_settled = max(1, count // 1000), max(1, count // 100)
    report.say(f"{backend}: seeding {count:,} usage rows and {count:,} overdue reservations")
    small, big = Seeded(backend, "small", small_rows), Seeded(backend, "big", count)
    small.add_settled(small_settled, small_rows)
    spread = min(SPREAD, count)
    big.add_overdue(count, spread)
    case = f"{count:,} rows"
    swept(report, backend, big, "expiry", count)
    variants = {"small": charging(small.url, _some(small)), "big": charging(big.url, _some(big))}
    figures = harness.compare(variants, 1, rounds, seconds, against="small")
    report.details[f"{backend}, size"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
    name = f"reserve + commit, cost against {small_rows:,} rows"
    report.add(Figure(backend, case, name, 1 / figures["big"].ratio, " x", 1.3, 1.0, is_most=True))
    swept(report, backend, big, "purge", big.scalar("SELECT COUNT(*) FROM reservations WHERE deleted"))
    beside(report, backend, big, max(count // 5, 1))


def swept(report: Report, backend: str, big: Seeded, name: str, count: int) -> None:
    """Compare one sweeper with the bare driver: they process the rows in turns."""
    case = f"{big.projects:,} rows"
    variants: dict[str, Callable[[int], object]] = {
        "floor": lambda rows: FLOORS[name](big.url, rows, _BATCH_ROWS),
        "ours": lambda rows: sweep(big.url, JOBS[name], rows),
    }
    rates: dict[str, list[float]] = {way: [] for way in variants}
    left = count
    for number, (way, share) in enumerate(_TURNS):
        is_last = number == len(_TURNS) - 1
        start = time.perf_counter()
        variants[way](count if is_last else int(count * share))
        seconds = time.perf_counter() - start
        # (Counted in the database: a stopped sweeper finishes its batch without reporting it.)
        before, left = left, big.scalar(LEFT[name])
        rates[way].append((before - left) / seconds)
    assert left == 0, f"{left} of {count} are left"
    rate, bare = (statistics.median(rates[way]) for way in ("ours", "floor"))
    report.add(Figure(backend, case, f"{name}, a second", rate, must=5_000))
    report.add(Figure(backend, case, f"({name} of the bare driver, a second)", bare))
    report.add(Figure(backend, case, f"{name}, ours / floor", rate / bare))
    report.details[f"{backend}, {name}"] = rates
    engine = make_engine(big.url)
    assert not engine.audit(base.ADMIN), "the audit finds something"
    engine.close()


def _some(ledger: Seeded) -> list[str]:
    """Return about a hundred of its projects, evenly spread."""
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
    """Measure two processes that charge the sweeper's projects while it expires and purges."""
    projects = [f"p{number}" for number in range(min(100, big.projects))]
    quiet, _ = foreground(big.url, projects, lambda: time.sleep(_LONGEST_SECONDS / 2))
    report.add(Figure(backend, "2 charge", "p99 without maintenance", quiet.percentile(99), " ms"))
    big.add_overdue(count, min(SPREAD, big.projects))
    for name, job in JOBS.items():
        maintenance = functools.partial(sweep, big.url, job, seconds=_LONGEST_SECONDS)
        sample, (rows, seconds) = foreground(big.url, projects, maintenance)
        report.add(Figure(backend, f"{name} beside 2", "p99", sample.percentile(99), " ms", 25.0, is_most=True))
        report.add(Figure(backend, f"{name} beside 2", "rows a second", rows / seconds))


class _LimitReached(Exception):
    """Raised to stop a job after the given time or number of rows."""


def sweep(url: str, job: Job, max_rows: int | None = None, seconds: float = math.inf) -> tuple[int, float]:
    """Run the job to its end, or until about ``max_rows`` rows or ``seconds``; returns rows and seconds."""
    engine = make_engine(url)
    rows = 0
    start = time.perf_counter()

    def progress(batch: int) -> None:
        nonlocal rows
        rows += batch
        if time.perf_counter() - start > seconds or (max_rows is not None and rows >= max_rows):
            raise _LimitReached

    with contextlib.suppress(_LimitReached):
        job(engine, progress)
    taken = time.perf_counter() - start
    engine.close()
    return rows, taken


def foreground(url: str, projects: list[str], work: Callable[[], T]) -> tuple[harness.Sample, T]:
    """Charge in two processes while ``work`` runs; returns the sample and the result of ``work``."""
    ready, over = _FORK.Barrier(3), _FORK.Event()
    pipes = [_FORK.Pipe(duplex=False) for _ in range(2)]

    def child(number: int, writer: Any) -> None:
        try:
            cycle = charging(url, projects)(number)
            ready.wait(60)
            latencies = []
            while not over.is_set():
                start = time.perf_counter()
                cycle()
                latencies.append(time.perf_counter() - start)
            writer.send(latencies)
        except BaseException as error:
            writer.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)

    children = [_FORK.Process(target=child, args=(number, writer)) for number, (_, writer) in enumerate(pipes)]
    for process in children:
        process.start()
    ready.wait(60)
    start = time.perf_counter()
    answer = work()
    seconds = time.perf_counter() - start
    over.set()
    latencies = [
        latency for durations in harness.gather(children, [reader for reader, _ in pipes]) for latency in durations
    ]
    return harness.Sample(len(latencies), seconds, latencies), answer
