# SPDX-License-Identifier: Apache-2.0
"""Measures the history: one project's entries in a history of 100,000, its purge, and a large import.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.history
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import sqlalchemy as sa

from benchmarks import disk
from benchmarks.imports import make_engine
from benchmarks.report import Figure, Report
from cyborg_quota.db import change_log, schema
from cyborg_quota.db.database import Database
from cyborg_quota.types import Author, RecordedChange
from tests import base, clouds, fixtures

PROJECTS = 2000
CHANGES_A_TRANSACTION = 100
MOST_MS = 50.0
"""For the history of one project, in a history of 100,000 changes."""


def median_ms(call: Callable[[], object], times: int = 21) -> float:
    """The median duration of a call, after one call that is not measured."""
    call()
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1000


def fill(database: Database, count: int) -> None:
    """Write a history of ``count`` changes of the limits of PROJECTS projects, and these limits."""
    sql = sa.create_engine(database._url, poolclass=sa.NullPool)
    limits: dict[str, int] = {}
    for generation in range(count // CHANGES_A_TRANSACTION):
        changes = []
        for number in range(CHANGES_A_TRANSACTION):
            project_id = f"p{(generation * CHANGES_A_TRANSACTION + number) % PROJECTS}"
            after = generation + 1
            changes.append(RecordedChange("set limit", project_id, "gpu", limits.get(project_id), after))
            limits[project_id] = after

        def work(connection: sa.Connection, changes: list[RecordedChange] = changes) -> None:
            change_log.serialize(connection)
            change_log.record(connection, Author("alice", reason="benchmark"), changes)

        database.write(work)
    rows = [{"project_id": name, "resource": "gpu", "hard_limit": limit} for name, limit in limits.items()]
    with sql.begin() as connection:
        statement = (
            "INSERT INTO project_limits (project_id, resource, pod, hard_limit)"
            " VALUES (:project_id, :resource, '', :hard_limit)"
        )
        connection.execute(sa.text(statement), rows)


def run(report: Report, backend: str, count: int, projects: int) -> None:
    """Measure one database."""
    url = disk.fresh_url(backend, "history")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    engine = make_engine(url)
    admin = engine.limits
    admin.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    fill(database, count)
    pages = {
        "one project": lambda: admin.history(base.ADMIN, "p7"),
        "one project, 20 entries": lambda: admin.history(base.ADMIN, "p7", limit=20),
        "the newest 20": lambda: admin.history(base.ADMIN, limit=20),
    }
    case = f"history of {count:,} changes"
    for name, call in pages.items():
        must = MOST_MS if name.startswith("one project") else None
        report.add(Figure(backend, case, name, median_ms(call), " ms", must, is_most=True))

    def add(name: str, start: float) -> None:
        report.add(Figure(backend, case, name, time.monotonic() - start, " s", is_most=True))

    clouds.add_projects(sa.create_engine(url, poolclass=sa.NullPool), PROJECTS, projects)
    entries = [{"id": f"new{number}", "limits": {"gpu": 1}} for number in range(projects)]
    start = time.monotonic()
    changes = len(admin.import_limits(base.ADMIN, {"projects": entries}))
    add(f"import of {changes:,} changes", start)
    start = time.monotonic()
    assert admin.purge_history(base.ADMIN, 0) > count
    add("purge of all", start)
    engine.close()
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--projects", type=int, default=20_000, help="projects of the import")
    arguments = parser.parse_args()
    report = Report()
    for backend in fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(report, backend, arguments.changes, arguments.projects)
    print(report.table())


if __name__ == "__main__":
    main()
