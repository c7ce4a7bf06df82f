# SPDX-License-Identifier: Apache-2.0
"""What one project's open reservations cost another's reserve + commit, and what the cap on them costs.

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


def make_engine(url: str, most: int) -> QuotaEngine:
    """An engine with a limit in force, durable as the server is."""
    limits = fixtures.DictLimits()
    limits.limits[None, "gpu"] = 10**9
    return fixtures.make_engine(url, limits, max_open=most)


def worker(url: str, project_id: str, most: int) -> harness.Worker:
    """Reserve and commit one gpu of a project."""

    def start(_number: int) -> harness.Cycle:
        engine = make_engine(url, most)
        context = base.Context(project_id)

        def cycle() -> None:
            engine.commit(context, engine.reserve(context, {"gpu": 1}, consumer=str(uuid.uuid4())))

        return cycle

    return start


def flooded(backend: str, name: str, *, amount: int = 1, count: int = FLOOD) -> tuple[str, float]:
    """A database in which one project has so many reservations open, and how many a second were made."""
    url = fixtures.fresh_url(backend, name)
    schema.sync(Database(fixtures.settings(url)))
    engine = make_engine(url, CAP)
    flooder = base.Context("flooder")
    began = time.monotonic()
    for _ in range(count // 100):
        engine.reserve_many(flooder, [Claim(None, {"gpu": amount})] * 100, 3600)
    seconds = time.monotonic() - began
    engine.close()
    return url, count / seconds if count else 0.0


def sweep(url: str) -> dict[str, float]:
    """Expire the flood, which is overdue now: how fast, and what an empty sweep costs beside one."""
    engine = make_engine(url, CAP)
    began = time.monotonic()
    assert engine.expire(base.ADMIN) == 0
    idle = time.monotonic() - began
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
    began = time.monotonic()
    count = engine.expire(base.ADMIN)
    seconds = time.monotonic() - began
    engine.close()
    return {"empty_sweep_ms": 1000 * idle, "expired_per_second": count / seconds}


def run(backend: str, rounds: int, seconds: float) -> dict[str, object]:
    """One database's figures, printed as they come."""
    results: dict[str, object] = {}
    quiet, _ = flooded(backend, "quiet", count=0)
    url, per_second = flooded(backend, "flooded", count=FLOOD - 200)
    ways = {
        "nobody else, no cap": worker(quiet, "other", -1),
        "nobody else": worker(quiet, "other", CAP),
        "beside the flood": worker(url, "other", CAP),
        "the flooder, counted": worker(url, "flooder", CAP),
    }
    for processes in (1, 8):
        figures = harness.compare(ways, processes, rounds, seconds, against="nobody else")
        title = f"{backend}, {processes} process(es), {FLOOD - 200} open reservations of one project"
        print(harness.table(title, figures), flush=True)
        results[f"{processes} processes"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
    swept = {"flood_per_second": per_second, **sweep(url)}
    print("  " + ", ".join(f"{name} {figure:.1f}" for name, figure in swept.items()), flush=True)
    return {**results, **swept}


if __name__ == "__main__":
    harness.main(__doc__, run)
