# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of many open reservations of one project for another project, and the cost of the cap on them.

python -m tests.servers run --durable -- python -m benchmarks.flood
"""

from __future__ import annotations

import dataclasses
import time
import uuid

import sqlalchemy as sa

from benchmarks import harness
from cyborg_quota import Claim, QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base, fixtures

FLOOD = 10_000
CAP = 10_000


def make_engine(url: str, max_open: int) -> QuotaEngine:
    """Return an engine with a limit, and with the durability of the server."""
    limits = fixtures.DictLimits()
    limits.limits[None, "gpu"] = 10**9
    return fixtures.make_engine(url, limits, max_open=max_open)


def worker(url: str, project_id: str, max_open: int) -> harness.Worker:
    """Return a worker that reserves and commits one gpu of a project."""

    def start(_number: int) -> harness.Cycle:
        engine = make_engine(url, max_open)
        context = base.Context(project_id)

        def cycle() -> None:
            engine.commit(context, engine.reserve(context, {"gpu": 1}, consumer=str(uuid.uuid4())))

        return cycle

    return start


def make_flooded_ledger(backend: str, name: str, *, amount: int = 1, count: int = FLOOD) -> tuple[str, float]:
    """Make a ledger with ``count`` open reservations of one project; returns its URL and the rate per second."""
    url = fixtures.fresh_url(backend, name)
    schema.sync(Database(fixtures.settings(url)))
    engine = make_engine(url, CAP)
    flooder = base.Context("flooder")
    start_time = time.monotonic()
    for _ in range(count // 100):
        engine.reserve_many(flooder, [Claim(None, {"gpu": amount})] * 100, 3600)
    seconds = time.monotonic() - start_time
    engine.close()
    return url, count / seconds if count else 0.0


def sweep(url: str) -> dict[str, float]:
    """Measure an expiry run without overdue reservations, then the expiry of the whole flood."""
    engine = make_engine(url, CAP)
    start_time = time.monotonic()
    assert engine.expire(base.ADMIN) == 0
    empty_seconds = time.monotonic() - start_time
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
    start_time = time.monotonic()
    count = engine.expire(base.ADMIN)
    seconds = time.monotonic() - start_time
    engine.close()
    return {"empty_sweep_ms": 1000 * empty_seconds, "expired_per_second": count / seconds}


def run(backend: str, rounds: int, seconds: float) -> dict[str, object]:
    """Measure one database; prints each result."""
    results: dict[str, object] = {}
    quiet_url, _ = make_flooded_ledger(backend, "quiet", count=0)
    url, per_second = make_flooded_ledger(backend, "flooded", count=FLOOD - 200)
    variants = {
        "no flood, no cap": worker(quiet_url, "other", -1),
        "no flood": worker(quiet_url, "other", CAP),
        "other project, flood": worker(url, "other", CAP),
        "flooding project": worker(url, "flooder", CAP),
    }
    for processes in (1, 8):
        figures = harness.compare(variants, processes, rounds, seconds, against="no flood")
        title = f"{backend}, {processes} process(es), {FLOOD - 200} open reservations of one project"
        print(harness.table(title, figures), flush=True)
        results[f"{processes} processes"] = {name: dataclasses.asdict(figure) for name, figure in figures.items()}
    expiry = {"flood_per_second": per_second, **sweep(url)}
    print("  " + ", ".join(f"{name} {figure:.1f}" for name, figure in expiry.items()), flush=True)
    return {**results, **expiry}


if __name__ == "__main__":
    harness.main(__doc__, run)
