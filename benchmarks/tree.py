# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the project tree and of a second resource, beside the bare driver.

The cases of the attach benchmark for projects below two ancestors; reserve + commit under 1, 3 and 8 levels, of one
and of two resources, and with up to 10,000 siblings.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid

import sqlalchemy as sa

from benchmarks import disk, floor, harness, speed
from benchmarks.report import Figure, Report
from cyborg_quota import Claim, QuotaEngine
from cyborg_quota.db import path_state, projects, schema
from cyborg_quota.db.database import Database
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits import tables as limit_tables
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import StrictHierarchy
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types import ResourceKey
from tests import base, fixtures, trees

MOST = 10**9
GPU = [ResourceKey("gpu")]
LEVELS = (1, 3, 8)
SIBLINGS = (10, 400, 10_000)


def make_engine(url: str) -> QuotaEngine:
    """Return an engine with limits from the database, and with the durability of the server."""
    driver = DbQuotaDriver(
        DriverSettings(database=fixtures.settings(url, sqlite_synchronous=True)),
        DatabaseLimitDriver(StrictHierarchy(), InitialLimits(child=None)),
    )
    engine = QuotaEngine(driver)
    engine.register_resources(["fpga", "gpu"])
    return engine


def new_ledger(backend: str, name: str) -> str:
    """Return the URL of a new ledger, with a default limit of MOST for ``fpga`` and ``gpu``."""
    url = disk.fresh_url(backend, name)
    database = Database(fixtures.settings(url))
    schema.sync(database)
    set_defaults(database)
    database.close()
    return url


def set_defaults(database: Database) -> None:
    for resource in ("fpga", "gpu"):
        database.write(lambda connection, name=resource: limit_tables.set_default(connection, name, MOST))  # type: ignore[misc]


def worker(url: str, leaves: list[str], resources: tuple[str, ...] = ("gpu",)) -> harness.Worker:
    """Return a worker that reserves and commits one of each resource; process n charges leaf n."""
    deltas = dict.fromkeys(resources, 1)

    def start(number: int) -> harness.Cycle:
        engine = make_engine(url)
        context = base.Context(leaves[number % len(leaves)])

        def cycle() -> None:
            uuids = engine.reserve_many(context, [Claim(str(uuid.uuid4()), deltas)])
            engine.commit(context, uuids)

        return cycle

    return start


def run_rule(report: Report, backend: str, url: str, rule: str, *, must: float, rounds: int, seconds: float) -> None:
    """Compare reserve + commit of ``gpu``, which the rule bounds, with that of ``fpga``, which it does not bound."""
    variants = {"without": worker(url, ["leaf"], ("fpga",)), "with": worker(url, ["leaf"])}
    for processes in (1, 4) if backend != "sqlite" else (1,):
        case = f"{rule}, {processes} process{'es' * (processes > 1)}"
        measured = harness.compare(variants, processes, rounds, seconds, against="without")
        figures = _show(report, f"{backend}, {case}", measured)
        report.add(Figure(backend, case, "rate, without = 1", figures["with"].ratio, must=must))


def plant(database: Database) -> dict[int, list[str]]:
    """Make eight leaves under one root for each number of levels. (One level: a single project.)"""
    set_defaults(database)
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


def plant_attach(database: Database, count: int) -> dict[str, list[str]]:
    """Make ``count`` projects without a parent, and of each kind of tree as many below two ancestors."""
    numbers = range(count)
    for number in numbers:
        top, middle = f"top{number}", f"middle{number}"
        trees.plant(database, {top: None, middle: top, f"p{number}": middle})
    trees.plant(database, {"top": None, "middle": "top", **{f"below{number}": "middle" for number in numbers}})
    kinds = {"flat": "flat", "tree of three": "p", "one tree": "below"}
    return {kind: [f"{name}{number}" for number in numbers] for kind, name in kinds.items()}


def run_attach(report: Report, backend: str, rounds: int, seconds: float) -> None:
    """The cases of the attach benchmark: projects below two ancestors of their own, or (one tree) below the same two.

    In one tree, the processes wait for the usage rows of the ancestors: these are contended, as one project's row is.
    """
    url = fixtures.fresh_url(backend, "tree_attach")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    projects = plant_attach(database, 100)
    database.close()
    speed.usage_ids(url, [name for names in projects.values() for name in names])
    speed.set_limits(url)
    for title, processes, count, *_ in speed.CASES:
        variants = {
            kind: speed.run_in_fork(speed.ours(url, names[:count], make_engine=make_engine))
            for kind, names in projects.items()
            if count > 1 or kind != "one tree"
        }
        figures = speed.show(report, f"{backend}, a tree, {title}", variants, processes, rounds=rounds, seconds=seconds)
        report.add(Figure(backend, title, "tree of three / flat", figures["tree of three"].ratio, "", 0.9))
        if count > 1:
            report.add(Figure(backend, title, "in one tree / flat", figures["one tree"].ratio))


def add_siblings(database: Database, count: int) -> str:
    """Add a leaf at level three with ``count`` - 1 siblings; returns the leaf."""
    top, middle = f"top{count}", f"middle{count}"
    trees.plant(database, {top: None, middle: top, f"among{count}": middle})

    def fill(names: list[str]) -> None:
        def work(connection: object) -> None:
            for name in names:
                projects.ensure(connection, name)  # type: ignore[arg-type]
                connection.execute(  # type: ignore[attr-defined]
                    projects._SET_PARENT, {"b_project": name, "b_parent": middle, "b_origin": None}
                )

        database.write(work)

    names = iter(f"sibling{count}-{number}" for number in range(count - 1))
    while chunk := list(itertools.islice(names, 500)):
        fill(chunk)
    return f"among{count}"


def floor_workers(url: str, leaves: dict[int, list[str]]) -> dict[str, harness.Worker]:
    """Return the bare driver's workers for one level and for three."""
    engine = make_engine(url)
    for names in leaves.values():
        for name in names:
            context = base.Context(name)
            engine.rollback(context, engine.reserve(context, {"fpga": 1, "gpu": 1}))
    database = Database(fixtures.settings(url))
    with database.engine.connect() as connection:
        query = sa.text("SELECT project_id, id FROM quota_usages WHERE resource = 'gpu'")
        ids: dict[str, int] = {row.project_id: row.id for row in connection.execute(query)}
    paths = {
        name: database.read(lambda connection, leaf=name: path_state.read_path(connection, leaf, GPU))  # type: ignore[misc]
        for name in leaves[3]
    }
    database.close()
    engine.close()
    ancestors = {name: [ids[ancestor] for ancestor in path.project_ids[1:]] for name, path in paths.items()}
    return {
        "floor, 1 level": floor.worker(url, {name: ids[name] for name in leaves[1]}),
        "floor, 3 levels": floor.worker(url, {name: ids[name] for name in leaves[3]}, ancestors=ancestors),
    }


def run(report: Report, backend: str, rounds: int, seconds: float) -> None:
    """Measure one database."""
    run_attach(report, backend, rounds, seconds)
    url = fixtures.fresh_url(backend, "tree")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    leaves = plant(database)
    variants = floor_workers(url, leaves)
    variants |= {f"{levels} level{'s' * (levels > 1)}": worker(url, leaves[levels]) for levels in LEVELS}
    variants["two resources"] = worker(url, leaves[1], ("fpga", "gpu"))
    for processes in (1, 8):
        database.close()
        title = f"{backend}, {processes} process{'es' * (processes > 1)}"
        about = f"{title}, different leaves under one root; ratio to one level"
        figures = _show(report, about, harness.compare(variants, processes, rounds, seconds, against="1 level"))
        case = f"a tree, {processes} process{'es' * (processes > 1)}"
        report.add(Figure(backend, case, "3 levels / 1 level", figures["3 levels"].ratio, "", 0.85))
        report.add(Figure(backend, case, "8 levels / 1 level", figures["8 levels"].ratio))
        one_to_floor = 1 / figures["floor, 1 level"].ratio
        report.add(Figure(backend, case, "1 level / floor", one_to_floor))
        of_floor = figures["3 levels"].ratio / figures["floor, 3 levels"].ratio
        report.add(Figure(backend, case, "3 levels / floor", of_floor))
        cost = 1 / figures["two resources"].ratio
        report.add(Figure(backend, f"two resources, {processes}", "cost of one", cost, " x", 1.5, is_most=True))
    by_siblings = {f"{count} siblings": worker(url, [add_siblings(database, count)]) for count in SIBLINGS}
    database.close()
    about = f"{backend}, 3 levels, 1 process; ratio to {SIBLINGS[0]} siblings"
    _show(report, about, harness.compare(by_siblings, 1, rounds, seconds, against=f"{SIBLINGS[0]} siblings"))


def _show(report: Report, title: str, figures: dict[str, harness.Summary]) -> dict[str, harness.Summary]:
    report.say(harness.table(title, figures))
    report.details[title] = {name: dataclasses.asdict(figure) for name, figure in figures.items()}
    return figures
