# SPDX-License-Identifier: Apache-2.0
"""Measures the headroom of a project at depth 8 among 20,000 projects (a check = 1), and the usage list with it."""

from __future__ import annotations

import itertools
import statistics
import time

import sqlalchemy as sa

from benchmarks import disk, harness
from benchmarks.report import Figure, Report
from benchmarks.tree import MOST, make_engine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits import tables as limit_tables
from tests import base, clouds, fixtures, trees

PROJECTS = 20_000
DEPTH = 8
PAGE_ROWS = 100
LEAF = f"deep{DEPTH}"


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with PROJECTS projects in three levels, and one path of DEPTH levels among them."""
    url = disk.fresh_url(backend, "headroom")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    database.write(lambda connection: limit_tables.set_default(connection, "gpu", MOST))
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    clouds.add_projects(sql, 0, PROJECTS)
    path = ["top", *(f"deep{depth}" for depth in range(2, DEPTH + 1))]
    trees.plant(database, {child: parent for parent, child in itertools.pairwise(path)})
    database.close()
    engine = make_engine(url)
    for number in range(20):
        engine.reserve(base.ADMIN, {"gpu": 1}, project_id=LEAF, consumer=f"open-{number}")
    engine.close()
    return url


def worker(url: str, call: str) -> harness.Worker:
    """Return a worker that calls ``check`` or ``headroom`` of the engine."""

    def start(_number: int) -> harness.Cycle:
        engine = make_engine(url)
        context = base.Context(LEAF)
        if call == "check":
            return lambda: engine.check(context, {"gpu": 1}) and None
        return lambda: engine.headroom(context) and None

    return start


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The cost of a headroom as a multiple of that of a check, and of the usage list with and without headrooms."""
    url = make_cloud(backend)
    variants = {call: worker(url, call) for call in ("check", "headroom")}
    figures = harness.compare(variants, 1, rounds, seconds, against="check")
    case = f"headroom at depth {DEPTH} among {PROJECTS:,} projects"
    report.details[f"{backend}, {case}"] = harness.table(case, figures)
    ratio = 1 / figures["headroom"].ratio
    report.add(Figure(backend, case, "time, check = 1", ratio, "", 1.5, 1.0, is_most=True))
    engine = make_engine(url)
    engine.list_usages(base.ADMIN, LEAF)  # connects
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for with_headroom, durations in times.items():
            start = time.perf_counter()
            records = engine.list_usages(base.ADMIN, with_headroom=with_headroom)
            durations.append(time.perf_counter() - start)
            assert len(records) > PROJECTS
    case = f"usage list of {PROJECTS:,} projects, {len(records):,} rows"
    for with_headroom, durations in times.items():
        name = "time with headrooms" if with_headroom else "time"
        report.add(Figure(backend, case, name, statistics.median(durations), " s", is_most=True))
    after = (records[len(records) // 2].project_id, None)
    durations = []
    for _ in range(rounds):
        start = time.perf_counter()
        page = engine.list_usages(base.ADMIN, with_headroom=True, limit=PAGE_ROWS, after=after)
        durations.append(time.perf_counter() - start)
        assert len(page) == PAGE_ROWS
    name = f"time of a page of {PAGE_ROWS} rows"
    report.add(Figure(backend, case, name, statistics.median(durations), " s", is_most=True))
    engine.close()
