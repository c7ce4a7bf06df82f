# SPDX-License-Identifier: Apache-2.0
"""Measures a scrape of 10,000 projects of 2 resources, and what the counters cost a reserve.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.metrics

A scrape reads the ledger, and calls the WSGI application in this process: the elapsed time, and the processor time of
this process (without that of the database server). An engine with counters and two without reserve, commit and release
in turns, one call each; the figures are the ratios of the medians of all calls, in processor time of this process. The
second engine without counters shows how much the ratio scatters.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import NamedTuple

import cyborg_quota
from benchmarks import disk
from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.metrics.counters import MeasuredEngine
from cyborg_quota.metrics.exporter import LedgerApplication
from tests import base, clouds, fixtures
from tests.api import server

PROJECTS = 10_000
CALLS = 400
"""Calls per round."""
MAX_SCRAPE_SECONDS, MAX_RATIO = 1.0, 1.05


def make_ledger(backend: str, projects: int) -> str:
    """A ledger with this many projects of two usage rows each, and a limit of gpu each."""
    url = disk.fresh_url(backend, "metrics")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    clouds.add_projects(database.engine, 0, projects)
    database.close()
    return url


def scrape_seconds(application: LedgerApplication, scrapes: int) -> tuple[list[float], list[float], int, int]:
    """The elapsed and the processor time of scrapes, and the lines and the statements of the last one."""
    elapsed, processor, lines, reads = [], [], 0, 0
    for _ in range(scrapes):
        began, processor_began = time.monotonic(), time.process_time()
        with clouds.captured() as statements:
            lines = application.text().count("\n")
        elapsed.append(time.monotonic() - began)
        processor.append(time.process_time() - processor_began)
        reads = len([text for text, _ in clouds.queries(statements) if "quota_usages" in text])
    return elapsed, processor, lines, reads


class Cost(NamedTuple):
    """Processor time in seconds. ``reserve``: of a reserve alone; ``cycle``: with its commit and its release."""

    reserve: float
    cycle: float


def cost_of(engine: QuotaEngine) -> Cost:
    """The cost of one call of each kind."""
    context = base.Context("p7")
    began = time.process_time()
    uuids = engine.reserve(context, {"fpga": 1})
    reserved = time.process_time()
    engine.commit(context, uuids)
    engine.release(context, uuids)
    return Cost(reserved - began, time.process_time() - began)


def compare_counters(backend: str, measured: QuotaEngine, calls: int) -> None:
    """Print what the counters cost a reserve, and a reserve with its commit and its release."""
    measured.limits.set_limit(base.ADMIN, "fpga", 10**6, "p7")
    engines = {"with counters": measured}
    for name in ("without", "again without"):
        engines[name] = QuotaEngine(measured._driver, authority=measured._authority)
        engines[name].register_resources(measured.resources)
    costs: dict[str, list[Cost]] = {name: [] for name in engines}
    names = list(engines)
    for _ in range(calls):
        random.shuffle(names)
        for name in names:
            costs[name].append(cost_of(engines[name]))
    for field, what in (("reserve", "a reserve"), ("cycle", "a reserve, its commit and its release")):
        median = {name: statistics.median(getattr(cost, field) for cost in costs[name]) for name in engines}
        ratio, control = (median[name] / median["without"] for name in ("with counters", "again without"))
        verdict = "yes" if ratio <= MAX_RATIO else "NO"
        print(
            f"{backend}: processor time of {what}, {calls} calls: {median['without'] * 1e6:.0f} microseconds"
            f" without counters; with counters {ratio:.3f} of it (at most {MAX_RATIO}: {verdict}); again without:"
            f" {control:.3f}"
        )


def run(backend: str, rounds: int, only: str | None) -> None:
    """Measure one database, and print the results."""
    url = make_ledger(backend, 10 if only == "counters" else PROJECTS)
    conf = server.settings(url, metrics__listen=["127.0.0.1:1"], limits__enforcement_model="flat")
    measured = cyborg_quota.make_engine(conf)
    measured.limits.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    assert isinstance(measured, MeasuredEngine)
    if only != "counters":
        elapsed, processor, lines, reads = scrape_seconds(LedgerApplication(measured, ["*"]), rounds)
        verdict = "yes" if statistics.median(elapsed) < MAX_SCRAPE_SECONDS else "NO"
        times, processor_times = (", ".join(f"{one:.2f}" for one in seconds) for seconds in (elapsed, processor))
        print(
            f"{backend}: scrape of {PROJECTS} projects, {lines} lines, {reads} read of the counters: {times} s (under"
            f" {MAX_SCRAPE_SECONDS} s: {verdict}), of which processor time of this process {processor_times} s"
        )
    if only != "scrape":
        compare_counters(backend, measured, rounds * CALLS)
    measured.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--on", choices=fixtures.BACKENDS, action="append", help="run on this database; may be repeated"
    )
    parser.add_argument("--only", choices=("scrape", "counters"), help="measure only this")
    arguments = parser.parse_args()
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(backend, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
