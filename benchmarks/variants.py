# SPDX-License-Identifier: Apache-2.0
"""Measures the code without each of its optional variants, beside the code as it is, and prints a table.

    python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.variants
    ... python -m benchmarks.variants --on postgresql --variant "no connection cache" --rounds 5

It takes about twenty minutes. Run it on a machine without other load.

A variant stays only if it is worth 10 % of the rate, of the p99 or of the processor time in one of the cases: below
0.9 (rate), above 1.1 (p99, processor time). The decision records have the figures.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import random
import statistics
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from unittest import mock

import sqlalchemy as sa

from benchmarks import harness, tree
from benchmarks.report import Report
from cyborg_quota import Claim
from cyborg_quota.db import connect, schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits import tables as limit_tables
from tests import base, fixtures, trees

PRESENT: Final = "as it is"
PROJECTS: Final = 100
LIMIT: Final = 10**9
PROCESSES: Final = (8, 16)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Variant(NamedTuple):
    """How to run the code without one variant. ``patches``: attributes to set in the worker's process."""

    backends: Sequence[str]
    patches: Sequence[tuple[Any, str, Any]]
    record: str


def _never(*_arguments: object) -> None:
    """Run no single statement: the multi-statement transaction does it."""


VARIANTS: Final = {
    "no single statement": Variant(("mariadb", "postgresql"), [(Database, "_run_single_statement", _never)], "0022"),
    "no connection cache": Variant(
        ("mariadb", "postgresql", "sqlite"),
        [(connect.ConnectionCache, "put", lambda _cache, cached: connect._return_to_pool(cached))],
        "0022",
    ),
}
"""By name."""


def worker(url: str, leaves: Sequence[str], variant: Variant | None) -> harness.Worker:
    """Return a worker that reserves and commits in one of the projects, chosen at random."""

    def start(number: int) -> harness.Cycle:
        for target, name, value in () if variant is None else variant.patches:
            mock.patch.object(target, name, value).start()
        engine = tree.make_engine(url)
        rng = random.Random(number)

        def cycle() -> None:
            context = base.Context(leaves[rng.randrange(len(leaves))])
            engine.commit(context, engine.reserve_many(context, [Claim(str(uuid.uuid4()), {"gpu": 1})]))

        for leaf in leaves:  # fill the caches, as in a conductor that runs
            context = base.Context(leaf)
            engine.commit(context, engine.reserve(context, {"gpu": 1}))
        return cycle

    return start


def plant(url: str) -> dict[str, list[str]]:
    """Make the projects of each case."""
    database = Database(fixtures.settings(url))
    schema.sync(database)
    database.write(lambda connection: limit_tables.set_default(connection, "gpu", LIMIT))
    below = [f"below{number}" for number in range(PROJECTS)]
    trees.plant(database, {"root": None, **dict.fromkeys(below, "root")})
    database.close()
    flat = [f"flat{number}" for number in range(PROJECTS)]
    return {"1 project": flat[:1], "100 projects": flat, "100 below one root": below}


def server_meter(backend: str, url: str) -> Callable[[], float] | None:
    """A function that returns the processor time of the server and of its processes, in seconds."""
    if backend == "sqlite":
        return None
    query = "SHOW data_directory" if backend == "postgresql" else "SELECT @@pid_file"
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        path = pathlib.Path(str(connection.exec_driver_sql(query).scalar_one()))
    file = path / "postmaster.pid" if backend == "postgresql" else path
    server = int(file.read_text().split()[0])

    def measure() -> float:
        while True:
            _, own, ended = _stat(server)
            processes = [_stat(int(entry.name)) for entry in pathlib.Path("/proc").glob("[0-9]*")]
            children = sum(stat[1] for stat in processes if stat and stat[0] == server)
            if ended == _stat(server)[2]:  # otherwise a child may have ended meanwhile, and not be counted
                return (own + ended + children) / _TICKS

    return measure


def _stat(process: int) -> list[int]:
    """The parent of a process, and its own processor time and that of its ended children, in ticks; [] if it ended."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []
    return [int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: medians of the ratios to the code as it is, over the rounds."""

    backend: str
    case: str
    variant: str
    rate: float
    p99: float
    processor_time: float

    def __str__(self) -> str:
        where = f"{self.backend:10} {self.case:34} {self.variant:30}"
        return f"{where} {self.rate:6.2f} {self.p99:6.2f} {self.processor_time:6.2f}"


HEADER: Final = f"{'database':10} {'case':34} {'variant':30} {'rate':>6} {'p99':>6} {'CPU':>6}   (ratios)"


def run(report: Report, backend: str, rounds: int, seconds: float, names: Sequence[str] | None = None) -> None:
    """Measure the variants of one database."""
    chosen = {
        name: variant
        for name, variant in VARIANTS.items()
        if backend in variant.backends and (names is None or name in names)
    }
    if chosen:
        url = fixtures.fresh_url(backend, "variants")
        cases = plant(url)
        meter = server_meter(backend, url)
        report.say(HEADER)
        for case, leaves in cases.items():
            for processes in PROCESSES:
                workers = {name: worker(url, leaves, variant) for name, variant in {PRESENT: None, **chosen}.items()}
                measure = functools.partial(harness.run_round, processes=processes, seconds=seconds, meter=meter)
                rows = _compare(backend, f"{case}, {processes} processes", workers, rounds, measure)
                report.say("\n".join(map(str, rows)))
                report.details[f"variants, {backend}, {case}, {processes}"] = [dataclasses.asdict(row) for row in rows]


def _compare(
    backend: str,
    case: str,
    workers: dict[str, harness.Worker],
    rounds: int,
    run_round: Callable[[harness.Worker], harness.Sample],
) -> list[Row]:
    samples: dict[str, list[harness.Sample]] = {name: [] for name in workers}
    for number in range(rounds):
        # Alternately, and in the opposite order in every second round.
        for name in list(workers) if number % 2 else reversed(workers):
            samples[name].append(run_round(workers[name]))

    def ratio(name: str, value: Callable[[harness.Sample], float]) -> float:
        return statistics.median(
            value(sample) / value(other) for sample, other in zip(samples[name], samples[PRESENT], strict=True)
        )

    return [
        Row(
            backend,
            case,
            name,
            ratio(name, lambda sample: sample.rate),
            ratio(name, lambda sample: sample.percentile(99)),
            ratio(name, lambda sample: sample.processor_seconds / sample.cycles),
        )
        for name in workers
        if name != PRESENT
    ]


def main() -> None:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="measure this one; may be repeated")
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="on this database; may be repeated")
    arguments = parser.parse_args()
    report = Report()
    for backend in arguments.on or fixtures.BACKENDS:
        if fixtures.missing_server(backend) is None:
            run(report, backend, arguments.rounds, arguments.seconds, arguments.variant)
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
