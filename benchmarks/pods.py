# SPDX-License-Identifier: Apache-2.0
"""Measures the selection of a pod: 10,000 projects that are bound to 50 pods (a headroom = 1).

Once with pods that have room, and once with pods that are all full, where the bindings stay too.
"""

from __future__ import annotations

import itertools
import random

import sqlalchemy as sa

from benchmarks import disk, harness
from benchmarks.report import Figure, Report
from benchmarks.tree import MOST, make_engine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits import tables as limit_tables
from cyborg_quota.pods.tables import BindingKey
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures

PROJECTS = 10_000
PODS = 50
PROCESSES = 8


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with PODS measured pods, to which PROJECTS projects are bound."""
    url = disk.fresh_url(backend, "pods")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    database.write(lambda connection: limit_tables.set_default(connection, "gpu", MOST))
    database.close()
    engine = make_engine(url)
    for number in range(PODS):
        engine.pods.add(base.ADMIN, f"pod{number}")
        engine.pods.set_usage(base.ADMIN, f"pod{number}", {"gpu": ResourceUse(100, 50), "fpga": ResourceUse(10, 0)})
    engine.close()
    now = sa.func.current_timestamp()
    rows = []
    for number in range(PROJECTS):
        key = BindingKey.of(f"p{number}", {})
        values = {"project_id": key.project_id, "affinity_hash": key.parameters["b_hash"], "pod": f"pod{number % PODS}"}
        rows.append({**values, "availability_zone": "", "resource_affinity": "{}", "reason": "first", "current": 1})
    bindings = sa.table("pod_bindings", *(sa.column(name) for name in (*rows[0], "starts_at")))
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.insert(bindings).values(starts_at=now), rows)
    return url


def fill(url: str) -> None:
    """Measure all pods as full."""
    engine = make_engine(url)
    for number in range(PODS):
        engine.pods.set_usage(base.ADMIN, f"pod{number}", {"gpu": ResourceUse(100, 100), "fpga": ResourceUse(10, 0)})
    engine.close()


def worker(url: str, call: str) -> harness.Worker:
    """Return a worker that calls ``headroom`` or ``select`` of the engine, for a random project in each cycle."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        chance = random.Random(number)

        def headroom() -> None:
            engine.headroom(base.ADMIN, f"p{chance.randrange(PROJECTS)}")

        def select() -> None:
            engine.pods.select(base.ADMIN, request={"gpu": 1}, project_id=f"p{chance.randrange(PROJECTS)}")

        return headroom if call == "headroom" else select

    return start


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The cost of a selection that keeps the binding as a multiple of a headroom, and selections per second."""
    url = make_cloud(backend)
    variants = {call: worker(url, call) for call in ("headroom", "select")}
    for state, processes in itertools.product(("", "full "), (1, PROCESSES)):
        if state:
            fill(url)
        figures = harness.compare(variants, processes, rounds, seconds, against="headroom")
        case = f"select a pod, {PROJECTS:,} projects, {PODS} {state}pods, {processes} processes"
        report.details[f"{backend}, {case}"] = harness.table(case, figures)
        ratio = 1 / figures["select"].ratio
        report.add(Figure(backend, case, "time, headroom = 1", ratio, "", 1.2, 1.0, is_most=True))
        if processes == PROCESSES:
            report.add(Figure(backend, case, "selections a second", figures["select"].rate, "", 1000, 2000))
