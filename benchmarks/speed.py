# SPDX-License-Identifier: Apache-2.0
"""Ours against the bare driver and against Cinder's quota, on the same servers, taking turns.

tools/benchmark.sh                                     starts durable servers, installs Cinder, runs this
python -m benchmarks.speed --cinder VENV/bin/python    on the servers of CYBORG_QUOTA_TEST_*
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import pathlib
import platform
import random
import subprocess
import uuid
from collections.abc import Callable

import sqlalchemy as sa

from benchmarks import floor, harness
from cyborg_quota import Claim
from cyborg_quota.db import schema
from cyborg_quota.db.api import Database
from tests import base, fixtures

MOST = 10**9
SCRIPT = pathlib.Path(__file__).with_name("cinder_side.py")

Round = Callable[[int, float], harness.Sample]
"""One turn of so many processes and so many seconds."""


def ours(url: str, projects: list[str], size: int = 1) -> harness.Worker:
    """Reserve and commit through the public face, with a limit in force."""

    def start(number: int) -> harness.Cycle:
        limits = fixtures.DictLimits()
        limits.limits[None, "gpu"] = MOST
        engine = fixtures.make_engine(url, limits)
        chance = random.Random(number)

        def cycle() -> None:
            context = base.Context(projects[chance.randrange(len(projects))])
            claims = [Claim(str(uuid.uuid4()), {"gpu": 1}) for _ in range(size)]
            engine.commit(context, engine.reserve_many(context, claims, group="g"))

        return cycle

    return start


def cinder(python: str, url: str, projects: int) -> Round:
    """Cinder's own functions, in processes of its own environment."""

    def turn(processes: int, seconds: float) -> harness.Sample:
        children = [
            subprocess.Popen(
                [python, str(SCRIPT), "run", url, str(projects), str(number), str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(processes)
        ]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n", "a Cinder process failed"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        answers = [json.loads(child.communicate()[0]) for child in children]
        latencies = [latency for taken, _ in answers for latency in taken]
        return harness.Sample(len(latencies), max(elapsed for _, elapsed in answers), latencies)

    return turn


def own(worker: harness.Worker) -> Round:
    """A way of our own interpreter's."""
    return lambda processes, seconds: harness.run_round(worker, processes, seconds)


def usage_ids(url: str, projects: list[str]) -> dict[str, int]:
    """Make a usage row for each project; their ids."""
    engine = fixtures.make_engine(url)
    for project_id in projects:
        context = base.Context(project_id)
        engine.rollback(context, engine.reserve(context, {"gpu": 1}))
    engine.close()
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    with sql.connect() as connection:
        rows = connection.execute(sa.text("SELECT project_id, id FROM quota_usages WHERE resource = 'gpu'"))
        return {row.project_id: row.id for row in rows if row.project_id in projects}


def measure(backend: str, python: str | None, rounds: int, seconds: float) -> dict[str, object]:
    """All cases on one database, printed as they come."""
    url = fixtures.fresh_url(backend, "speed")
    schema.sync(Database(fixtures.settings(url)))
    many = [f"p{number}" for number in range(100)]
    ids = usage_ids(url, many)
    one = {"p0": ids["p0"]}
    cinder_url = fixtures.fresh_url(backend, "cinder")
    if python is not None:
        subprocess.run([python, str(SCRIPT), "make", cinder_url, "100"], check=True, stderr=subprocess.DEVNULL)
    results: dict[str, object] = {}
    for title, processes, projects in (
        ("one process, one project", 1, one),
        ("8 processes, one project", 8, one),
        ("8 processes, 100 projects", 8, ids),
    ):
        ways: dict[str, Round] = {
            "floor": own(floor.worker(url, projects)),
            "ours": own(ours(url, sorted(projects))),
        }
        if python is not None:
            ways["cinder"] = cinder(python, cinder_url, len(projects))
        results[title] = show(f"{backend}, {title}; ratio to the floor", ways, processes, rounds, seconds)
    attach = {"one accelerator": own(ours(url, ["p0"])), "8 accelerators": own(ours(url, ["p0"], 8))}
    results["attach"] = show(f"{backend}, an attach; ratio to one accelerator", attach, 1, rounds, seconds)
    return results


def show(title: str, ways: dict[str, Round], processes: int, rounds: int, seconds: float) -> dict[str, object]:
    """Let the ways take turns; print their table, and return its figures."""
    samples: dict[str, list[harness.Sample]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, turn in ways.items():
            samples[name].append(turn(processes, seconds))
    figures = harness.summarize(samples, against=next(iter(ways)))
    print(harness.table(title, figures), flush=True)
    return {name: dataclasses.asdict(one) for name, one in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cinder", help="the Python of an environment with cinder; without it, Cinder is left out")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way has its turn (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a turn is (default: 3)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    backends = [one for one in ("mariadb", "postgresql") if fixtures.admin_url(one)]
    results = {one: measure(one, arguments.cinder, arguments.rounds, arguments.seconds) for one in backends}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
