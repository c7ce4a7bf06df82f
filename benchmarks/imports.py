# SPDX-License-Identifier: Apache-2.0
"""Measures how long charges wait while an import moves projects with usage: the longest call, and the import.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.imports

With ``--rows 20``, each project has 20 usage rows instead of 2. ``--at-bound`` moves as many projects as one import may
(limits/changes.py bounds the number of usage rows; the bound is lower on SQLite).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from typing import Any

import sqlalchemy as sa

from benchmarks import disk
from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits.changes import MAX_MOVED_ROWS, MAX_MOVED_ROWS_OF_ONE_WRITER
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, clouds, fixtures

CHARGERS = 2


def make_engine(url: str) -> QuotaEngine:
    """Return an engine with limits from the database, and with the durability of the server."""
    database_settings = fixtures.settings(url, sqlite_synchronous=True, statement_timeout_seconds=60, retry_seconds=120)
    limits = DatabaseLimitDriver(Flat(), InitialLimits(child=None))
    engine = QuotaEngine(DbQuotaDriver(DriverSettings(database=database_settings), limits))
    engine.register_resources(["fpga", "gpu"])
    return engine


def charge(url: str, projects: int, seed: int, stop: Any, answers: Any) -> None:
    """Reserve and roll back in random projects until ``stop`` is set; then put the call durations on ``answers``."""
    engine = make_engine(url)
    rng = random.Random(seed)
    seconds = []
    while not stop.is_set():
        context = base.Context(f"p{rng.randrange(projects)}")
        start = time.monotonic()
        uuids = engine.reserve(context, {"fpga": 1})
        seconds.append(time.monotonic() - start)
        engine.rollback(context, uuids)
    answers.put(seconds)


def run(backend: str, projects: int, rows: int) -> None:
    """Measure one database, and print the result."""
    url = disk.fresh_url(backend, "imports")
    schema.sync(Database(fixtures.settings(url)))
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    clouds.add_projects(sql, 0, projects)
    clouds.add_usages(sql, [(f"p{index}", f"old{row}") for index in range(projects) for row in range(rows - 2)])
    engine = make_engine(url)
    engine.limits.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    engine.close()
    processes = multiprocessing.get_context("fork")
    stop, answers = processes.Event(), processes.Queue()
    chargers = [processes.Process(target=charge, args=(url, projects, seed, stop, answers)) for seed in range(CHARGERS)]
    for charger in chargers:
        charger.start()
    time.sleep(2.0)
    start = time.monotonic()
    moved = engine.limits.import_limits(base.ADMIN, clouds.rotated(projects, 1))
    seconds = time.monotonic() - start
    time.sleep(1.0)
    stop.set()
    calls = sorted(duration for _ in chargers for duration in answers.get())
    for charger in chargers:
        charger.join()
    assert not engine.audit(base.ADMIN)
    engine.close()
    print(
        f"{backend}: {len(moved):,} moves of {rows} usage rows each in {seconds:.2f} s; of {len(calls):,} charges "
        f"the longest took {calls[-1]:.3f} s, the median {statistics.median(calls) * 1000:.1f} ms",
        flush=True,
    )


def most_moved_rows(backend: str) -> int:
    """Return the maximum number of usage rows that one import moves."""
    return MAX_MOVED_ROWS_OF_ONE_WRITER if backend == "sqlite" else MAX_MOVED_ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projects", type=int, default=10_000)
    parser.add_argument("--rows", type=int, action="append", help="usage rows of each project (2); may be repeated")
    parser.add_argument("--at-bound", action="store_true", help="as many projects as one import may move")
    parser.add_argument("--only", action="append", help="a database: sqlite, mariadb or postgresql")
    arguments = parser.parse_args()
    for backend in arguments.only or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            for rows in arguments.rows or [2]:
                most = most_moved_rows(backend) // rows
                projects = most if arguments.at_bound else arguments.projects
                if projects > most:
                    print(f"{backend}: one import may move {most:,} projects of {rows} usage rows, not {projects:,}")
                else:
                    run(backend, projects, rows)


if __name__ == "__main__":
    main()
