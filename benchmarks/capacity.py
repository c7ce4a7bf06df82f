# SPDX-License-Identifier: Apache-2.0
"""Measures claims of capacity: with ANY among 4,278 providers, with a given provider, and beside Placement.

python -m tests.servers run --durable --only mariadb --only postgresql -- \
    python -m benchmarks.capacity --placement .venv-cyborg/env/bin/python

Placement's object layer (placement_side.py) runs on MariaDB only: its environment has no driver for PostgreSQL.
"""

from __future__ import annotations

import argparse
import functools
import logging
import pathlib
import random
import statistics
import subprocess
import uuid

import sqlalchemy as sa

from benchmarks import cinder_processes, disk, harness, overrides
from benchmarks.report import Figure, Report
from benchmarks.speed import run_in_fork, show
from cyborg_quota import ANY, QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base, fixtures, trees

PROVIDERS = 4278
TOTAL = 8
GIVEN = 100
"""The number of further providers, which ANY does not choose, for claims that name a provider."""
LARGE_TOTAL = 10**6
PROJECTS = 100
TREE: dict[str, str | None] = {"root": None, "middle": "root", "leaf": "middle"}
SCRIPT = pathlib.Path(__file__).with_name("placement_side.py")
CPU_CALLS = 400
_PIECE = 500


class Cloud:
    """A database with PROVIDERS providers, each with TOTAL gpu, and PROJECTS projects."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.url = disk.fresh_url(backend, "capacity")
        schema.sync(Database(fixtures.settings(self.url)))
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool)
        totals = {n: TOTAL if n <= PROVIDERS else LARGE_TOTAL for n in range(1, PROVIDERS + GIVEN + 1)}
        providers = [f"({n}, '{uuid.UUID(int=n)}', 'n{n}', 0, {int(n <= PROVIDERS)})" for n in totals]
        inventories = [f"({n}, 'gpu', {m}, 0, 1, {m}, 1, 1, {m}, 0, {m})" for n, m in totals.items()]
        self._insert("resource_providers (id, uuid, name, generation, can_host)", providers)
        self._insert(
            "inventories (provider_id, resource, total, reserved, min_unit, max_unit, step_size, allocation_ratio,"
            " capacity, used, free)",
            inventories,
        )
        database = Database(fixtures.settings(self.url))
        trees.plant(database, TREE)
        database.close()
        engine = fixtures.make_engine(self.url)
        for number in range(PROJECTS):
            context = base.Context(f"p{number}")
            engine.rollback(context, engine.reserve(context, {"gpu": 1}))
        engine.close()

    def _insert(self, target: str, rows: list[str]) -> None:
        with self.sql.begin() as connection:
            for start in range(0, len(rows), _PIECE):
                connection.exec_driver_sql(f"INSERT INTO {target} VALUES {', '.join(rows[start : start + _PIECE])}")

    def empty(self) -> None:
        """Delete all reservations, so that each round finds the same free capacity."""
        with self.sql.begin() as connection:
            connection.exec_driver_sql("DELETE FROM reservations")
            connection.exec_driver_sql("UPDATE inventories SET used = 0, free = capacity")
            connection.exec_driver_sql("UPDATE quota_usages SET reserved = 0, used = 0, subtree = 0")
        analyze = {"mysql": "ANALYZE TABLE inventories, reservations", "postgresql": "VACUUM ANALYZE"}
        with self.sql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(analyze.get(self.sql.dialect.name, "ANALYZE"))

    def engine(self) -> QuotaEngine:
        limits = fixtures.DictLimits()
        limits.own[None, "gpu"] = 10**9
        return fixtures.make_engine(self.url, limits)

    def round(self, provider: str | None, *, ends: str | None = None) -> harness.Round:
        """A round of reserves with this provider ("" means a random one), which ``ends`` (a call) then ends."""

        def start(number: int) -> harness.Cycle:
            engine = self.engine()
            rng = random.Random(number)
            # As in a process that has run for some time, the paths of all projects and the providers are cached.
            for index in range(PROJECTS):
                given = f"n{PROVIDERS + 1 + index % GIVEN}" if provider == "" else None
                context = base.Context(f"p{index}")
                engine.rollback(context, engine.reserve(context, {"gpu": 1}, provider=given))

            def cycle() -> None:
                claim(engine, rng, provider, ends)

            return cycle

        def turn(processes: int, seconds: float) -> harness.Sample:
            self.empty()
            return run_in_fork(start)(processes, seconds)

        return turn


def claim(
    engine: QuotaEngine, rng: random.Random, provider: str | None, ends: str | None, project_id: str | None = None
) -> None:
    """One cycle, in this project or in a random one (None)."""
    context = base.Context(project_id or f"p{rng.randrange(PROJECTS)}")
    name = f"n{PROVIDERS + rng.randint(1, GIVEN)}" if provider == "" else provider
    uuids = engine.reserve(context, {"gpu": 1}, consumer=str(uuid.uuid4()), provider=name)
    if ends is not None:
        getattr(engine, ends)(context, uuids)


def placement_rounds(python: str, backend: str) -> dict[str, harness.Round]:
    """Placement's replace_all and its allocation candidates, on a database of the same server."""
    url = fixtures.fresh_url(backend, "placement")
    command = [python, str(SCRIPT), "make", str(PROVIDERS), str(TOTAL)]
    subprocess.run(command, input=f"{url}\n", text=True, check=True, stderr=subprocess.DEVNULL)
    return {
        f"Placement, {mode}": cinder_processes.turns(python, [url], PROVIDERS, mode, script=SCRIPT)
        for mode in ("replace", "candidates")
    }


def measure_any(report: Report, cloud: Cloud, python: str | None, rounds: int, seconds: float) -> None:
    """Claims a second with ANY, beside Placement."""
    variants = {"ANY": cloud.round(ANY), "ANY + rollback": cloud.round(ANY, ends="rollback")}
    if python is not None and cloud.backend == "mariadb":
        variants |= placement_rounds(python, cloud.backend)
    for processes in (1, 8):
        if processes > 1:
            variants.pop("Placement, candidates", None)  # (a call takes seconds)
        case = f"claims with ANY, {processes} process{'es' * (processes > 1)}"
        figures = show(report, f"{cloud.backend}, {case}", variants, processes, rounds=rounds, seconds=seconds)
        report.add(Figure(cloud.backend, case, "claims a second", figures["ANY"].rate))
        for mode, must, aim in (("replace", 8.0, 12.0), ("candidates", None, None)):
            if f"Placement, {mode}" in figures:
                ratio = 1 / figures[f"Placement, {mode}"].ratio
                report.add(Figure(cloud.backend, case, f"ours / Placement's {mode}", ratio, " x", must, aim))


def measure_given(report: Report, cloud: Cloud, rounds: int, seconds: float) -> None:
    """What a claim with a given provider costs, compared with a reserve without one."""
    variants = {
        f"{name}{' + ' + ends if ends else ''}": cloud.round(provider, ends=ends)
        for ends in (None, "commit", "rollback")
        for name, provider in (("no provider", None), ("given", ""))
    }
    for processes in (1, 8):
        case = f"a given provider, {processes} process{'es' * (processes > 1)}"
        figures = show(report, f"{cloud.backend}, {case}", variants, processes, rounds=rounds, seconds=seconds)
        for ends in ("", " + commit", " + rollback"):
            cost = figures[f"no provider{ends}"].ratio / figures[f"given{ends}"].ratio
            report.add(Figure(cloud.backend, case, f"reserve{ends}: cost", cost, " x", 1.35, is_most=True))


def measure_processor_time(report: Report, cloud: Cloud, rounds: int, case: str, project_id: str | None) -> None:
    """The processor time of client and server, of a reserve alone."""
    engine, rng = cloud.engine(), random.Random(1)
    database = Database(fixtures.settings(cloud.url))
    call = functools.partial(claim, engine, rng, project_id=project_id)
    for provider in (None, ""):
        for _ in range(CPU_CALLS):
            call(provider, "rollback")
    pids = overrides.server_pids(database)  # (after the first call: PostgreSQL has a process for each connection)
    ratios = []
    for turn in range(rounds):
        cloud.empty()
        order = (None, "") if turn % 2 else ("", None)
        spent = {
            provider: overrides.processor_microseconds(functools.partial(call, provider, None), pids, CPU_CALLS)
            for provider in order
        }
        ratios.append(spent[""] / spent[None])
    ratio = statistics.median(ratios)
    report.add(Figure(cloud.backend, case, "processor time of a reserve", ratio, " x", 1.35, is_most=True))
    engine.close()
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds of each variant (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="the duration of a round (default: 2)")
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="this database; may be repeated")
    parser.add_argument("--only", choices=("any", "given", "time"), action="append", help="this part; may be repeated")
    parser.add_argument("--placement", help="the Python of an environment with openstack-placement and PyMySQL")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    report = Report()
    parts = arguments.only or ("any", "given", "time")
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is not None:
            continue
        cloud = Cloud(backend)
        if "any" in parts:
            measure_any(report, cloud, arguments.placement, arguments.rounds, arguments.seconds)
        if "given" in parts:
            measure_given(report, cloud, arguments.rounds, arguments.seconds)
        if "time" in parts:
            for case, project_id in (("a given provider", None), ("a given provider, tree of three", "leaf")):
                measure_processor_time(report, cloud, 2 * arguments.rounds, case, project_id)
    print(report.table())
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
