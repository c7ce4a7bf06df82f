# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the project tree: reserve + commit under 1, 3 and 8 levels, and with up to 10,000 siblings.

python -m tests.servers run --durable -- python -m benchmarks.tree
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid

from benchmarks import harness
from cyborg_quota import Claim, QuotaEngine
from cyborg_quota.db import limits as limit_tables
from cyborg_quota.db import projects, schema
from cyborg_quota.db.database import Database
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.strict_hierarchy import StrictHierarchy
from tests import base, fixtures, trees

MOST = 10**9
LEVELS = (1, 3, 8)
SIBLINGS = (10, 400, 10_000)


def make_engine(url: str) -> QuotaEngine:
    """Return an engine with limits from the database, and with the durability of the server."""
    driver = DbQuotaDriver(
        DriverSettings(database=fixtures.settings(url, sqlite_synchronous=True)),
        DatabaseLimitDriver(StrictHierarchy(), InitialLimits(child=None)),
    )
    engine = QuotaEngine(driver)
    engine.register_resources(["gpu"])
    return engine


def worker(url: str, leaves: list[str]) -> harness.Worker:
    """Return a worker that reserves and commits one gpu; process n charges leaf n."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        context = base.Context(leaves[number % len(leaves)])

        def cycle() -> None:
            uuids = engine.reserve_many(context, [Claim(str(uuid.uuid4()), {"gpu": 1})])
            engine.commit(context, uuids)

        return cycle

    return start


def plant(database: Database) -> dict[int, list[str]]:
    """Make eight leaves under one root for each number of levels. (One level: a single project.)"""
    database.write(lambda connection: limit_tables.set_default(connection, "gpu", MOST))
    leaves: dict[int, list[str]] = {1: ["flat"]}
    for levels in LEVELS[1:]:
        tree: dict[str, str | None] = {f"root{levels}": None}
        leaves[levels] = [f"leaf{levels}-{number}" for number in range(8)]
        for leaf in leaves[levels]:
            above: str | None = f"root{levels}"
            for level in range(1, levels - 1):
                between = f"{leaf}-above{level}"
                tree[between], above = above, between
            tree[leaf] = above
        trees.plant(database, tree)
    return leaves


def add_siblings(database: Database, count: int) -> str:
    """Add a leaf at level three with ``count`` - 1 siblings; returns the leaf."""
    top, middle = f"top{count}", f"middle{count}"
    trees.plant(database, {top: None, middle: top, f"among{count}": middle})

    def fill(names: list[str]) -> None:
        def work(connection: object) -> None:
            for name in names:
                projects.ensure(connection, name)  # type: ignore[arg-type]
                connection.execute(  # type: ignore[attr-defined]
                    projects._SET_PARENT, {"b_project": name, "b_parent": middle}
                )

        database.write(work)

    names = iter(f"sibling{count}-{number}" for number in range(count - 1))
    while chunk := list(itertools.islice(names, 500)):
        fill(chunk)
    return f"among{count}"


def run(backend: str, rounds: int, seconds: float) -> dict[str, object]:
    """Measure one database; prints each result."""
    url = fixtures.fresh_url(backend, "tree")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    leaves = plant(database)
    results: dict[str, object] = {}
    variants = {f"{levels} level{'s' * (levels > 1)}": worker(url, leaves[levels]) for levels in LEVELS}
    for processes in (1, 8):
        database.close()
        figures = harness.compare(variants, processes, rounds, seconds, against="1 level")
        title = f"{backend}, {processes} process(es) on different leaves under one root; ratio to one level"
        print(harness.table(title, figures), flush=True)
        results[f"levels, {processes} processes"] = {
            name: dataclasses.asdict(figure) for name, figure in figures.items()
        }
    by_siblings = {f"{count} siblings": worker(url, [add_siblings(database, count)]) for count in SIBLINGS}
    database.close()
    figures = harness.compare(by_siblings, 1, rounds, seconds, against=f"{SIBLINGS[0]} siblings")
    print(harness.table(f"{backend}, 3 levels, 1 process; ratio to {SIBLINGS[0]} siblings", figures), flush=True)
    results["siblings"] = {name: dataclasses.asdict(figure) for name, figure in figures.items()}
    return results


if __name__ == "__main__":
    harness.main(__doc__, run)
