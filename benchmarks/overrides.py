# SPDX-License-Identifier: Apache-2.0
"""Measures what live overrides cost a reserve: processor time of client and server, without and with 1,000 overrides.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.overrides
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import statistics
import time
from collections.abc import Callable

import sqlalchemy as sa

from benchmarks import disk
from benchmarks.imports import make_engine
from benchmarks.report import Figure, Report
from cyborg_quota import QuotaEngine
from cyborg_quota.db import models, overrides, schema
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.types import LimitOverride
from tests import base, clouds, fixtures

CALLS = 300
SETTLE_SECONDS = 0.5
MOST = 1.05
"""The processor time with 1,000 live overrides, as a multiple of that without any."""
_TICKS = os.sysconf("SC_CLK_TCK")


def server_pids(database: Database) -> set[str]:
    """The processes of the server of this database. (Other servers may run on the machine.) Empty for SQLite."""
    with database.engine.connect() as connection:
        if database.engine.dialect.name == "sqlite":
            return set()
        if database.engine.dialect.name in ("mysql", "mariadb"):
            return {pathlib.Path(connection.exec_driver_sql("SELECT @@pid_file").scalar_one()).read_text().strip()}
        parent = _fields(str(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()))[1]
    pids = {path.name for path in pathlib.Path("/proc").glob("[0-9]*") if _fields(path.name)[1:2] == [parent]}
    return {*pids, parent}


def _fields(pid: str) -> list[str]:
    """The fields of /proc/PID/stat, from the state on; empty for a process that has ended."""
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def server_seconds(pids: set[str]) -> float:
    """The processor time that the server's processes have used."""
    return sum(int(field) for pid in pids for field in _fields(pid)[11:13]) / _TICKS


def processor_microseconds(call: Callable[[], object], pids: set[str], calls: int) -> float:
    """The processor time of a call: of this process and of the server's processes."""

    def seconds() -> float:
        return time.process_time() + server_seconds(pids)

    start = seconds()
    for _ in range(calls):
        call()
    return (seconds() - start) / calls * 1e6


def microseconds(engine: QuotaEngine, pids: set[str], calls: int) -> float:
    """The processor time of a reserve and its rollback."""
    context = base.Context("p7")
    return processor_microseconds(lambda: engine.rollback(context, engine.reserve(context, {"fpga": 1})), pids, calls)


def run(report: Report, backend: str, count: int, rounds: int) -> None:
    """Measure one database, the two variants in turn: in two databases, even equal rows differ by 8 %."""
    url = disk.fresh_url(backend, "overrides")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    clouds.add_projects(database.engine, 0, 2000)
    engine = make_engine(url)
    engine.limits.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
    microseconds(engine, set(), CALLS)
    pids = server_pids(database)
    figures: list[tuple[float, float]] = []
    for turn in range(rounds):
        pair = {}
        for is_many in (False, True) if turn % 2 else (True, False):
            replace_overrides(database, count if is_many else 0)
            pair[is_many] = microseconds(engine, pids, CALLS)
        figures.append((pair[False], pair[True]))
    none, many = (statistics.median(column) for column in zip(*figures, strict=True))
    ratio = statistics.median(second / first for first, second in figures)
    case = "reserve and rollback, processor time of client and server"
    report.add(Figure(backend, case, "without overrides", none, " us", is_most=True))
    report.add(Figure(backend, case, f"with {count:,} overrides", many, " us", is_most=True))
    report.add(Figure(backend, case, f"with {count:,} overrides, without = 1", ratio, "", MOST, is_most=True))
    engine.close()
    database.close()


def replace_overrides(database: Database, count: int) -> None:
    """Store ``count`` overrides instead of the present ones, and wait until the server has removed the old rows."""
    now = database.read(overrides.now)
    span = (now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=10))
    made = [
        LimitOverride((10**6, number), f"p{number}", ("gpu", "fpga")[number % 2], 10**6, *span)
        for number in range(count)
    ]

    def work(connection: Connection) -> None:
        connection.execute(sa.delete(models.limit_overrides))
        overrides.insert(connection, made)

    database.write(work)
    time.sleep(SETTLE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overrides", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="this database; may be repeated")
    arguments = parser.parse_args()
    report = Report()
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(report, backend, arguments.overrides, arguments.rounds)
    print(report.table())


if __name__ == "__main__":
    main()
