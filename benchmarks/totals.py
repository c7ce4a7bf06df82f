# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit on 100 projects, with and without a total limit over all projects (without = 1)."""

from __future__ import annotations

import dataclasses
import itertools
import random
import uuid

from benchmarks import harness
from benchmarks.report import Figure, Report
from benchmarks.tree import MOST, make_engine, new_ledger
from cyborg_quota import Claim
from tests import base

PROJECTS = 100
PROCESSES = (8, 16)


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with PROJECTS roots. ``gpu`` has a total limit, and ``fpga`` none."""
    url = new_ledger(backend, "totals")
    engine = make_engine(url)
    for number in range(PROJECTS):
        context = base.Context(f"p{number}")
        engine.rollback(context, engine.reserve(context, {"fpga": 1, "gpu": 1}))
    engine.limits.set_total_limits(base.ADMIN, {"gpu": MOST})
    engine.close()
    return url


def worker(url: str, resource: str) -> harness.Worker:
    """Return a worker that reserves and commits one of ``resource``, in another project in each cycle."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        order = random.Random(number).sample(range(PROJECTS), PROJECTS)
        contexts = itertools.cycle([base.Context(f"p{project}") for project in order])

        def cycle() -> None:
            context = next(contexts)
            engine.commit(context, engine.reserve_many(context, [Claim(str(uuid.uuid4()), {resource: 1})]))

        return cycle

    return start


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate and the p99 with a total, and the rate as a part of that without one, measured alternately.

    On servers only: SQLite has one writer.
    """
    if backend == "sqlite":
        return
    url = make_cloud(backend)
    variants = {"without a total": worker(url, "fpga"), "with a total": worker(url, "gpu")}
    for processes in PROCESSES:
        figures = harness.compare(variants, processes, rounds, seconds, against="without a total")
        case = f"a total limit, {PROJECTS} projects, {processes} processes"
        report.say(harness.table(f"{backend}, {case}", figures))
        report.details[f"{backend}, {case}"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
        report.add(Figure(backend, case, "rate, without = 1", figures["with a total"].ratio))
        for name, figure in figures.items():
            report.add(Figure(backend, case, f"cycles a second {name}", figure.rate))
            report.add(Figure(backend, case, f"p99 {name}", figure.p99, " ms"))
