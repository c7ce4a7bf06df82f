# SPDX-License-Identifier: Apache-2.0
"""Compares reserve + commit with the bare driver and with Cinder's quota, alternately, on the same servers."""

from __future__ import annotations

import dataclasses
import functools
import random
import uuid
from collections.abc import Callable

import sqlalchemy as sa

from benchmarks import cinder_processes, floor, harness
from benchmarks.report import Figure, Report
from cyborg_quota import Claim, QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.config import ConfigLimitDriver
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures

LIMIT = 10**9


def limited(url: str) -> QuotaEngine:
    """An engine with limits in the tables."""
    return fixtures.make_engine(url, DatabaseLimitDriver(Flat(), InitialLimits()))


def configured(url: str) -> QuotaEngine:
    """An engine with limits of the configuration."""
    return fixtures.make_engine(url, ConfigLimitDriver({"gpu": LIMIT}))


def set_limits(url: str) -> None:
    """Store what ``limited`` enforces: as operators have it, one default, and one limit of a project."""
    administration = limited(url).limits
    administration.set_limit(base.ADMIN, "gpu", LIMIT)
    administration.set_limit(base.ADMIN, "gpu", LIMIT, "p0")


def ours(
    url: str, projects: list[str], size: int = 1, *, make_engine: Callable[[str], QuotaEngine] = limited
) -> harness.Worker:
    """Return a worker that reserves and commits through the public API, with a limit."""

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        rng = random.Random(number)

        def cycle() -> None:
            context = base.Context(projects[rng.randrange(len(projects))])
            claims = [Claim(str(uuid.uuid4()), {"gpu": 1}) for _ in range(size)]
            engine.commit(context, engine.reserve_many(context, claims, group="g"))

        for project_id in projects:  # fill the caches, as in a conductor that runs
            context = base.Context(project_id)
            engine.commit(context, engine.reserve(context, {"gpu": 1}))
        return cycle

    return start


def run_in_fork(worker: harness.Worker) -> harness.Round:
    """Return a round that runs the worker in forked processes."""
    return lambda processes, seconds: harness.run_round(worker, processes, seconds)


def usage_ids(url: str, projects: list[str]) -> dict[str, int]:
    """Create a usage row for each project; returns their IDs."""
    engine = fixtures.make_engine(url)
    for project_id in projects:
        context = base.Context(project_id)
        engine.rollback(context, engine.reserve(context, {"gpu": 1}))
    engine.close()
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    with sql.connect() as connection:
        rows = connection.execute(sa.text("SELECT project_id, id FROM quota_usages WHERE resource = 'gpu'"))
        return {row.project_id: row.id for row in rows if row.project_id in projects}


CASES = (
    # title, processes, projects; must and aim of ours / floor; must of ours / Cinder
    ("1 process, 1 project", 1, 1, 0.5, 0.7, 3.0),
    ("8 processes, 1 project", 8, 1, 0.4, 0.6, 8.0),
    ("8 processes, 100 projects", 8, 100, 0.4, 0.6, 8.0),
)


def run(report: Report, backend: str, python: str | None, *, rounds: int, seconds: float) -> None:
    """Run all cases on one database."""
    url = fixtures.fresh_url(backend, "speed")
    schema.sync(Database(fixtures.settings(url)))
    ids = usage_ids(url, [f"p{number}" for number in range(100)])
    set_limits(url)
    cinder_url = fixtures.fresh_url(backend, "cinder")
    if python is not None:
        cinder_processes.make(python, cinder_url, 100)
    for title, processes, count, must, aim, multiple in CASES:
        projects = {name: ids[name] for name in sorted(ids)[:count]}
        variants: dict[str, harness.Round] = {
            "floor": run_in_fork(floor.worker(url, projects)),
            "ours": run_in_fork(ours(url, sorted(projects))),
            "config": run_in_fork(ours(url, sorted(projects), make_engine=configured)),
        }
        if python is not None:
            variants["cinder"] = cinder_processes.turns(python, [cinder_url], count)
        figures = show(report, f"{backend}, {title}", variants, processes, rounds=rounds, seconds=seconds)
        add = functools.partial(Figure, backend, title)
        report.add(add("ours, cycles a second", figures["ours"].rate))
        report.add(add("ours / floor", figures["ours"].ratio, "", must, aim))
        report.add(add("[limits] driver = config / floor", figures["config"].ratio))
        if python is not None:
            of_cinder = figures["cinder"].ratio
            report.add(add("ours / Cinder", figures["ours"].ratio / of_cinder, "", multiple))
            report.add(add("(floor / Cinder)", 1 / of_cinder))
            if processes > 1 and count == 1:
                slower = figures["ours"].p99 / figures["cinder"].p99
                report.add(add("p99, ours / Cinder", slower, "", 0.1, is_most=True))
                report.add(add("(p99, floor / Cinder)", figures["floor"].p99 / figures["cinder"].p99))
    attach = {"one": run_in_fork(ours(url, ["p0"])), "eight": run_in_fork(ours(url, ["p0"], 8))}
    figures = show(report, f"{backend}, an attach of one and of eight", attach, 1, rounds=rounds, seconds=seconds)
    cost = 1 / figures["eight"].ratio
    report.add(Figure(backend, "an 8-accelerator attach", "cost of one", cost, " x", 2.5, 1.5, is_most=True))


def show(
    report: Report, title: str, variants: dict[str, harness.Round], processes: int, *, rounds: int, seconds: float
) -> dict[str, harness.Summary]:
    """Measure the variants alternately; prints the table, and returns its figures."""
    samples: dict[str, list[harness.Sample]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run_round in variants.items():
            samples[name].append(run_round(processes, seconds))
    figures = harness.summarize(samples, against=next(iter(variants)))
    report.say(harness.table(f"{title}; ratio to {next(iter(variants))}", figures))
    report.details[title] = {name: dataclasses.asdict(figure) for name, figure in figures.items()}
    return figures
