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

from benchmarks.imports import make_engine
from cyborg_quota import QuotaEngine
from cyborg_quota.db import overrides, schema
from cyborg_quota.db.database import Database
from cyborg_quota.types import LimitOverride
from tests import base, clouds, fixtures

CALLS = 300
_TICKS = os.sysconf("SC_CLK_TCK")


def server_seconds(backend: str) -> float:
    """The processor time of all processes of the servers of this user, in seconds. 0 for SQLite."""
    names = {"mariadb": ("mariadbd", "mysqld"), "postgresql": ("postgres",)}.get(backend, ())
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # the process has ended
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if name in names:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def microseconds(engine: QuotaEngine, backend: str, calls: int) -> float:
    """The processor time of a reserve and its rollback, client and server together."""
    context = base.Context("p7")
    client, server = time.process_time(), server_seconds(backend)
    for _ in range(calls):
        engine.rollback(context, engine.reserve(context, {"fpga": 1}))
    return (time.process_time() - client + server_seconds(backend) - server) / calls * 1e6


def run(backend: str, count: int, rounds: int) -> None:
    """Measure one database, the two variants in turn, and print the result."""
    engines: list[QuotaEngine] = []
    for variant in ("none", "many"):
        url = fixtures.fresh_disk_url(backend, f"overrides_{variant}")
        database = Database(fixtures.settings(url))
        schema.sync(database)
        clouds.add_projects(database.engine, 0, 2000)
        engine = make_engine(url)
        engine.administration.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
        now = database.read(overrides.now)
        span = (now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=10))
        made = [
            LimitOverride((10**6, number), f"p{number}", ("gpu", "fpga")[number % 2], 10**6, *span)
            for number in range(count if variant == "many" else 0)
        ]
        database.write(lambda connection, made=made: overrides.insert(connection, made))  # type: ignore[misc]
        database.close()
        microseconds(engine, backend, CALLS)
        engines.append(engine)
    figures: list[tuple[float, float]] = []
    for turn in range(rounds):
        order = engines if turn % 2 else engines[::-1]
        pair = {id(engine): microseconds(engine, backend, CALLS) for engine in order}
        figures.append((pair[id(engines[0])], pair[id(engines[1])]))
    none, many = (statistics.median(column) for column in zip(*figures, strict=True))
    ratio = statistics.median(second / first for first, second in figures)
    print(f"{backend}: none {none:.0f} us, {count} overrides {many:.0f} us, median ratio {ratio:.3f}", flush=True)
    for engine in engines:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overrides", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="run on this database; may be repeated")
    arguments = parser.parse_args()
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(backend, arguments.overrides, arguments.rounds)


if __name__ == "__main__":
    main()
