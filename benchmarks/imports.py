# SPDX-License-Identifier: Apache-2.0
"""How long charges wait while an import moves 10,000 projects that hold something: the longest call, and the import.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.imports
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from typing import Any

import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from tests import base, clouds, fixtures

CHARGERS = 2


def make_engine(url: str) -> QuotaEngine:
    """An engine with limits from the database, durable as the server is."""
    how = fixtures.settings(url, sqlite_synchronous=True, statement_timeout_seconds=60, retry_seconds=120)
    limits = DatabaseLimitDriver(Flat(), InitialLimits(child=None))
    engine = QuotaEngine(DbQuotaDriver(DriverSettings(database=how), limits))
    engine.register_resources(["fpga", "gpu"])
    return engine


def charge(url: str, projects: int, seed: int, stop: Any, answers: Any) -> None:
    """Reserve and roll back, a random project each time, until told to stop; then hand over what each call took."""
    engine = make_engine(url)
    chance = random.Random(seed)
    seconds = []
    while not stop.is_set():
        context = base.Context(f"p{chance.randrange(projects)}")
        began = time.monotonic()
        uuids = engine.reserve(context, {"fpga": 1})
        seconds.append(time.monotonic() - began)
        engine.rollback(context, uuids)
    answers.put(seconds)


def run(backend: str, projects: int) -> None:
    """One database's figures."""
    url = fixtures.fresh_disk_url(backend, "imports")
    schema.sync(Database(fixtures.settings(url)))
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    clouds.add_projects(sql, 0, projects)
    engine = make_engine(url)
    engine.administration.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    engine.close()
    processes = multiprocessing.get_context("fork")
    stop, answers = processes.Event(), processes.Queue()
    crew = [processes.Process(target=charge, args=(url, projects, seed, stop, answers)) for seed in range(CHARGERS)]
    for one in crew:
        one.start()
    time.sleep(2.0)
    began = time.monotonic()
    moved = engine.administration.import_limits(base.ADMIN, clouds.rotated(projects, 1))
    seconds = time.monotonic() - began
    time.sleep(1.0)
    stop.set()
    calls = sorted(one for _ in crew for one in answers.get())
    for one in crew:
        one.join()
    assert not engine.audit(base.ADMIN)
    engine.close()
    print(
        f"{backend}: {len(moved):,} moves in {seconds:.2f} s; of {len(calls):,} charges the longest took "
        f"{calls[-1]:.3f} s, the middle one {statistics.median(calls) * 1000:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projects", type=int, default=10_000)
    given = parser.parse_args()
    for backend in fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(backend, given.projects)


if __name__ == "__main__":
    main()
