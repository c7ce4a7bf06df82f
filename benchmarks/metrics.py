# SPDX-License-Identifier: Apache-2.0
"""Measures a scrape of 10,000 projects of 2 resources, and what the counters cost a reserve.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.metrics

A scrape reads the ledger (max_age 0), and is measured over HTTP, with client and server in this process: the elapsed
time, and the processor time of this process (without that of the database server). The counters are in the multiprocess
mode of prometheus_client. Engines with and without counters reserve in turns; these figures are processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import urllib.request

os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(
    prefix="cyborg-quota-metrics-"
)  # before the library is imported

import cyborg_quota
from benchmarks.overrides import processor_microseconds
from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.metrics import setup
from cyborg_quota.metrics.engine import MeasuredEngine
from cyborg_quota.metrics.exporter import Exporter
from tests import base, clouds, fixtures
from tests.api import server
from tests.servers import machine

PROJECTS = 10_000
CALLS = 300
MAX_SCRAPE_SECONDS, MAX_RATIO = 1.0, 1.05


def make_ledger(backend: str, projects: int) -> str:
    """A ledger with this many projects of two usage rows each, and a limit of gpu each."""
    url = fixtures.fresh_disk_url(backend, "metrics")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    clouds.add_projects(database.engine, 0, projects)
    database.close()
    return url


def scrape_seconds(exporter: Exporter, address: str, scrapes: int) -> tuple[list[float], list[float], int, int]:
    """The elapsed and the processor time of scrapes, and the lines and the statements of the last one."""
    exporter.start()
    machine.wait_until(lambda: exporter._election.is_elected, 30)
    elapsed, processor, lines, reads = [], [], 0, 0
    for _ in range(scrapes):
        began, processor_began = time.monotonic(), time.process_time()
        with (
            clouds.captured() as statements,
            urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response,
        ):
            lines = response.read().count(b"\n")
        elapsed.append(time.monotonic() - began)
        processor.append(time.process_time() - processor_began)
        # (The lease is renewed meanwhile.)
        reads = len([text for text, _ in clouds.queries(statements) if "quota_usages" in text])
    exporter.stop()
    return elapsed, processor, lines, reads


def reserve_microseconds(engine: QuotaEngine) -> float:
    """The processor time of a reserve, its commit and its release."""
    context = base.Context("p7")

    def attach() -> None:
        uuids = engine.reserve(context, {"fpga": 1})
        engine.commit(context, uuids)
        engine.release(context, uuids)

    return processor_microseconds(attach, set(), CALLS)


def run(backend: str, rounds: int) -> None:
    """Measure one database, and print the results."""
    url = make_ledger(backend, PROJECTS)
    address = f"127.0.0.1:{machine.free_port()}"
    conf = server.settings(
        url, metrics__listen=address, metrics__projects=["*"], metrics__max_age=0.0, limits__enforcement_model="flat"
    )
    conf.set_override("audit_interval", 0, group="metrics")
    measured = cyborg_quota.make_engine(conf)
    measured.administration.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    assert isinstance(measured, MeasuredEngine)
    exporter = setup.make_exporter(conf, measured)
    assert exporter is not None
    elapsed, processor, lines, reads = scrape_seconds(exporter, address, rounds)
    verdict = "yes" if statistics.median(elapsed) < MAX_SCRAPE_SECONDS else "NO"
    times, processor_times = (", ".join(f"{one:.2f}" for one in seconds) for seconds in (elapsed, processor))
    print(
        f"{backend}: scrape of {PROJECTS} projects, {lines} lines, {reads} read of the counters: {times} s (under"
        f" {MAX_SCRAPE_SECONDS} s: {verdict}), of which processor time of this process {processor_times} s"
    )
    plain = QuotaEngine(measured._driver, authority=measured._authority)
    plain.register_resources(measured.resources)
    measured.administration.set_limit(base.ADMIN, "fpga", 10**6, "p7")
    ratios = []
    for turn in range(rounds * 4):
        order = (plain, measured) if turn % 2 else (measured, plain)
        cost = {type(engine): reserve_microseconds(engine) for engine in order}
        ratios.append(cost[MeasuredEngine] / cost[QuotaEngine])
    ratio = statistics.median(ratios)
    verdict = "yes" if ratio <= MAX_RATIO else "NO"
    print(
        f"{backend}: processor time of reserve, commit and release with counters / without:"
        f" {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}; at most {MAX_RATIO}: {verdict})"
    )
    measured.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--on", choices=fixtures.BACKENDS, action="append", help="run on this database; may be repeated"
    )
    arguments = parser.parse_args()
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(backend, arguments.rounds)


if __name__ == "__main__":
    main()
