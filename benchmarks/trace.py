# SPDX-License-Identifier: Apache-2.0
"""Compares a replay on durable SQLite with a bare sqlite3 script that does the same durable transactions.

The bare script uses our schema and indexes; it checks no state, handles no error, and stores no position.
"""

from __future__ import annotations

import csv
import pathlib
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator

import sqlalchemy as sa

from benchmarks import disk, simulation
from benchmarks.report import Figure, Report
from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits.sources.config import NoopLimitDriver
from cyborg_quota.replay.replay import Replay
from cyborg_quota.replay.tables import Position
from cyborg_quota.replay.traces import HEADER, Trace
from tests import base, fixtures

Event = tuple[str, str, str, str, int]
"""Kind, consumer, project, resource, amount."""

_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def generate(path: pathlib.Path, instances: int = 1500, seed: int = 7) -> None:
    """Write a random trace: 98 % of the instances are attached, about half of those detached, 2 % rolled back."""
    rng = random.Random(seed)
    events = []
    for number in range(instances):
        project, amount = f"app_{int(rng.paretovariate(0.8)) % 150}", rng.choice((1, 1, 1, 2, 4, 8))
        begin = rng.randrange(1_000_000)
        ending = "rollback" if rng.random() < 0.02 else "commit"
        steps = [(begin, "reserve"), (begin + rng.randrange(60), ending)]
        if ending == "commit" and rng.random() < 0.55:
            steps.append((begin + 60 + rng.randrange(500_000), "release"))
        events += [(when, len(events) + index, kind, f"instance_{number}", project, amount)
                   for index, (when, kind) in enumerate(steps)]  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for when, _, kind, consumer, project, amount in sorted(events):
            writer.writerow([when, kind, consumer, project, "gpu", amount])


def ours(path: pathlib.Path, url: str) -> tuple[int, float]:
    """Replay as the command does; returns events and seconds."""
    settings = fixtures.settings(url, sqlite_synchronous=True)
    engine = QuotaEngine(DbQuotaDriver(DriverSettings(database=settings), NoopLimitDriver()))
    trace, database = Trace(str(path)), Database(settings)
    replay = Replay(engine, base.ADMIN, trace, Position(database, trace.digest, {}))
    start = time.perf_counter()
    replay.run()
    seconds = time.perf_counter() - start
    database.close()
    engine.close()
    return replay.done, seconds


def bare(path: pathlib.Path, url: str) -> tuple[int, float]:
    """Replay with sqlite3 only, each event in BEGIN IMMEDIATE ... COMMIT; returns events and seconds."""
    connection = sqlite3.connect(str(sa.make_url(url).database), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    events = list(_events(path))
    start = time.perf_counter()
    usages: dict[tuple[str, str], int] = {}
    for event in events:
        project, resource = event[2:4]
        connection.execute("BEGIN IMMEDIATE")
        if (project, resource) not in usages:
            usages[project, resource] = int(
                connection.execute(
                    "INSERT INTO quota_usages (project_id, resource, pod, reserved, used, subtree, generation)"
                    " VALUES (?, ?, '', 0, 0, 0, 0)",
                    (project, resource),
                ).lastrowid or 0
            )  # fmt: skip
        _bare_event(connection, event, usages[project, resource])
        connection.execute("COMMIT")
    seconds = time.perf_counter() - start
    connection.close()
    return len(events), seconds


def _bare_event(connection: sqlite3.Connection, event: Event, usage: int) -> None:
    kind, consumer, project, resource, amount = event
    if kind == "reserve":
        connection.execute(
            "INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state,"
            f" consumer_id, group_id, live, claim_ordinal)"
            f" VALUES ({_NOW}, 0, ?, ?, ?, ?, ?, '2100-01-01 00:00:00.000000',"
            " 'reserved', ?, 'g', 1, 1)",
            (str(uuid.uuid4()), usage, project, resource, amount, consumer),
        )
        counters = f"reserved = reserved + {amount}, subtree = subtree + {amount}"
    elif kind == "commit":
        _bare_settle(connection, "state = 'committed'", "reserved", project, consumer)
        counters = f"reserved = reserved - {amount}, used = used + {amount}"
    else:
        before, after = ("reserved", "rolled_back") if kind == "rollback" else ("committed", "released")
        ended = f"state = '{after}', deleted = 1, deleted_at = {_NOW}, live = NULL, claim_ordinal = NULL"
        _bare_settle(connection, ended, before, project, consumer)
        column = "reserved" if kind == "rollback" else "used"
        counters = f"{column} = {column} - {amount}, subtree = subtree - {amount}"
    connection.execute(
        f"UPDATE quota_usages SET {counters}, updated_at = {_NOW} WHERE id = ? AND used + reserved <= 2147483647",
        (usage,),
    )


def _bare_settle(connection: sqlite3.Connection, values: str, state: str, project: str, consumer: str) -> None:
    connection.execute(
        f"UPDATE reservations SET {values}, updated_at = {_NOW}"
        f" WHERE project_id = ? AND consumer_id = ? AND live = 1 AND state = '{state}'",
        (project, consumer),
    )


def _events(path: pathlib.Path) -> Iterator[Event]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["event"], row["consumer"], row["project"], row["resource"], int(row["amount"])


def run(report: Report, path: pathlib.Path | None, *, rounds: int) -> None:
    """Run both variants alternately, each on a new file on the disk."""
    with tempfile.TemporaryDirectory() as directory:
        if path is None:
            path = pathlib.Path(directory) / "trace.csv"
            generate(path)
        rates: dict[str, list[float]] = {"bare": [], "ours": []}
        for _ in range(rounds):
            for name, variant in (("bare", bare), ("ours", ours)):
                url = disk.fresh_url("sqlite", "trace")
                database = Database(fixtures.settings(url))
                schema.sync(database)
                database.close()
                events, seconds = variant(path, url)
                rates[name].append(events / seconds)
        simulation.run(report, path, events)
    ratio = statistics.median(
        our_rate / bare_rate for our_rate, bare_rate in zip(rates["ours"], rates["bare"], strict=True)
    )
    case = f"trace, {events:,} events"
    report.details["trace"] = rates
    report.add(Figure("sqlite", case, "bare sqlite3, events a second", statistics.median(rates["bare"])))
    report.add(Figure("sqlite", case, "ours, events a second", statistics.median(rates["ours"])))
    report.add(Figure("sqlite", case, "ours / bare", ratio, "", 0.25, 0.5))
