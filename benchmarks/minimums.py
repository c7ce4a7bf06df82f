# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit in a tree of three levels, with and without a minimum of the leaf (without = 1)."""

from __future__ import annotations

import dataclasses
import uuid

from benchmarks import disk, harness
from benchmarks.report import Figure, Report
from benchmarks.tree import MOST, make_engine
from cyborg_quota import Claim
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits import tables as limit_tables
from tests import base, fixtures

TREE = {"root": None, "middle": "root", "leaf": "middle"}
PROCESSES = (1, 4)


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with TREE, where the leaf has a minimum of ``gpu``, and none of ``fpga``."""
    url = disk.fresh_url(backend, "minimums")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    for resource in ("fpga", "gpu"):
        database.write(lambda connection, name=resource: limit_tables.set_default(connection, name, MOST))  # type: ignore[misc]
    database.close()
    engine = make_engine(url)
    for project_id, parent_id in TREE.items():
        engine.limits.add_project(base.ADMIN, project_id, parent_id)
    engine.limits.set_minimums(base.ADMIN, {"gpu": MOST // 2}, "leaf")
    engine.close()
    return url


def worker(url: str, resource: str) -> harness.Worker:
    """Return a worker that reserves and commits one of ``resource`` in the leaf."""

    def start(_number: int) -> harness.Cycle:
        engine, context = make_engine(url), base.Context("leaf")

        def cycle() -> None:
            engine.commit(context, engine.reserve_many(context, [Claim(str(uuid.uuid4()), {resource: 1})]))

        return cycle

    return start


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate with a minimum as a part of that without one, measured alternately."""
    url = make_cloud(backend)
    variants = {"without a minimum": worker(url, "fpga"), "with a minimum": worker(url, "gpu")}
    for processes in PROCESSES if backend != "sqlite" else PROCESSES[:1]:
        figures = harness.compare(variants, processes, rounds, seconds, against="without a minimum")
        case = f"a minimum in a tree of three, {processes} processes"
        report.say(harness.table(f"{backend}, {case}", figures))
        report.details[f"{backend}, {case}"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
        report.add(Figure(backend, case, "rate, without = 1", figures["with a minimum"].ratio, must=0.5))
