# SPDX-License-Identifier: Apache-2.0
"""Long runs of the fault tests: each scenario gets its share of the time, in rounds on new ledgers.

Every round ends with the check of tests/faults/ledger_check.py: audit finds no drift, ``reserved`` returns to 0, no
limit was exceeded, no answered call is lost, nothing is charged twice. The exit status is 0 if no round found a
violation.

    tools/soak.sh                                  all scenarios, half an hour
    tools/soak.sh --minutes 480 --seed 7           8 hours; the same seed repeats the same choices
    tools/soak.sh --only galera --only crash       these scenarios only
    tools/soak.sh --list                           lists the scenarios

A scenario whose server or package is missing is skipped, and counted as skipped. The figures are also written to
soak.json.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import platform
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from tests import fixtures, servers
from tests.faults import clocks, load, outages, test_commit_lost, test_crash, test_simulation
from tests.faults import cluster as cluster_faults
from tests.faults.ledger_check import Report
from tests.faults.load import Ledger
from tests.faults.proxy import Proxy
from tests.servers import galera

TOP = pathlib.Path(__file__).parents[2]
CYBORG, NOVA = "tests.cyborgs.soak", "tests.novas.soak"
DEFAULT_MINUTES = 30.0
NOVA_MINUTES = 3.5
"""With the start of the servers, less than 4 minutes."""
SERVERS = ("mariadb", "postgresql")
MOST_PROBLEMS = 5
"""A scenario stops after this number of violations."""


class Skipped(Exception):
    """A requirement of the scenario is missing."""


@dataclasses.dataclass
class Tally:
    """The result of one scenario."""

    name: str
    rounds: int = 0
    cycles: int = 0
    faults: int = 0
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    checks: int = 0
    seconds: float = 0.0
    problems: list[str] = dataclasses.field(default_factory=list)
    skipped: str = ""


class Stage:
    """The environment of a scenario: random numbers, its time, and methods to report its rounds."""

    def __init__(self, name: str, seconds: float, seed: int) -> None:
        self.tally = Tally(name)
        self.seed = seed
        self.rng = random.Random(f"{seed} {name}")
        self._began = time.monotonic()
        self.seconds = seconds
        self._is_ended = False

    @property
    def is_over(self) -> bool:
        """Return whether its share of the time is used up. (A round that has begun is finished.)"""
        is_late = self._is_ended or time.monotonic() - self._began >= self.seconds
        return is_late or len(self.tally.problems) >= MOST_PROBLEMS

    def end(self) -> None:
        """End the scenario, because another round does not fit into the rest of its time."""
        self._is_ended = True

    def draw(self) -> int:
        """Draw a seed for the next round."""
        return self.rng.randrange(2**32)

    def report(self, report: Report, faults: int) -> None:
        """Report the end of a round, and its number of faults."""
        tally = self.tally
        tally.rounds += 1
        tally.cycles += report.calls
        tally.faults += faults
        tally.errors.update(report.errors)
        tally.checks += report.checks
        tally.problems += report.problems
        tally.seconds = time.monotonic() - self._began
        print(
            f"\r{tally.name}: round {tally.rounds}, {tally.cycles} calls, {tally.faults} faults,"
            f" {len(tally.problems)} problems, {tally.seconds:.0f} of {self.seconds:.0f} s ",
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A name for --only, a description for --list, and a function that runs until ``stage.is_over``."""

    name: str
    about: str
    run: Callable[[Stage], None]


def backends(*names: str) -> list[str]:
    """Return the databases of the scenario that are available here."""
    found = [name for name in names if fixtures.missing_server(name) is None]
    if not found:
        raise Skipped("no " + " and no ".join(names))
    return found


def crash(stage: Stage) -> None:
    """Workers are killed, 100 a round, on each database."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            test_crash.kill_workers(ledger, 100, stage.draw())
            stage.report(ledger.check(), 100)


def commit_lost(stage: Stage) -> None:
    """Connections are cut at COMMIT."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, Proxy(ledger.url) as proxy:
            cuts = test_commit_lost.cut_under_load(ledger, [proxy], 8.0, stage.draw())
            stage.report(ledger.check(), cuts)


def killed(stage: Stage) -> None:
    """A durable server is killed and restarted."""
    for backend in _turns(stage, backends(*SERVERS)):
        with _server(backend, durable=True) as server, _ledger_on(server) as ledger:
            kills = outages.kill_server(ledger, server, 12.0, stage.draw())
            stage.report(ledger.check(), kills)


def paused(stage: Stage) -> None:
    """A server is suspended for 20 s, with the default timeouts: callers get an error within ten."""
    for backend in _turns(stage, backends(*SERVERS)):
        with _server(backend) as server, _ledger_on(server) as ledger:
            outages.pause_server(ledger, server, 20.0, stage.draw())
            report = ledger.check()
            longest = ledger.journal.longest_seconds()
            if longest > 10.0:
                report.problems.append(f"a caller waited {longest:.1f} s for its answer")
            stage.report(report, 1)


def dropped(stage: Stage) -> None:
    """Connections are dropped by the server."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            count = outages.drop_connections(ledger, 8.0, stage.draw())
            stage.report(_without_outages(ledger.check()), count)


def cluster(stage: Stage) -> None:
    """Galera: all nodes up; a node killed, isolated, suspended; with the default timeouts of a cluster."""
    reason = galera.missing()
    if reason is not None:
        raise Skipped(reason)
    with galera.Galera() as nodes:
        acts: list[tuple[int, Callable[[Any], None]]] = [
            (0, lambda _: time.sleep(8.0)),
            (1, cluster_faults.kill_one(nodes, 6.0)),
            (1, cluster_faults.isolate_one(nodes, 15.0)),
            (1, cluster_faults.pause_one(nodes, 20.0)),
        ]
        for faults, act in _turns(stage, acts):
            with cluster_faults.create_ledger(nodes, "ledger") as ledger:
                projects = cluster_faults.HOT * 20 + cluster_faults.SPREAD
                cluster_faults.load(nodes, ledger, act, projects, seed=stage.draw())
                report = ledger.check()
                longest = ledger.journal.longest_seconds()
                if longest > 10.0:
                    report.problems.append(f"a caller waited {longest:.1f} s for its answer")
                stage.report(report if faults else _without_outages(report), faults)


def clock_skew(stage: Stage) -> None:
    """Hosts are ten minutes fast and slow."""
    if clocks.library() is None:
        raise Skipped("no libfaketime")
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, contextlib.ExitStack() as stack:
            skews = (clocks.SKEW_SECONDS, -clocks.SKEW_SECONDS, 0)
            workers = [stack.enter_context(clocks.Worker(ledger.url, skew)) for skew in skews]
            for _ in range(4):
                problems = clocks.find_skew_violations(workers, stage.rng)
                stage.report(Report(calls=20, checks=5, problems=problems), 2)


def simulation(stage: Stage) -> None:
    """The histories of the model, with errors between any two steps."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        seed, examples = stage.draw(), {"sqlite": 60}.get(backend, 10)
        try:
            struck, problems = test_simulation.simulate(backend, seed, examples), []
        except AssertionError as error:
            struck, problems = collections.Counter(), [str(error)]
        stage.report(Report(calls=examples * 25, checks=examples * 25, problems=problems), sum(struck.values()))


def cyborg(stage: Stage) -> None:
    """The real Cyborg; its conductors are killed."""
    _run_program(stage, CYBORG)


def nova(stage: Stage) -> None:
    """The real Nova; its compute services are killed."""
    _run_program(stage, NOVA)


def _run_program(stage: Stage, program: str) -> None:
    """Run a separate program for the whole time of the scenario; its summary counts as one round."""
    backends("mariadb")
    with tempfile.TemporaryDirectory() as directory:
        figures = pathlib.Path(directory) / "figures.json"
        minutes = str(stage.seconds / 60)
        command = [sys.executable, "-m", program, "--minutes", minutes, "--seed", str(stage.seed), "--json", figures]
        done = subprocess.run(command, cwd=TOP, stdout=subprocess.DEVNULL, check=False)
        if not figures.exists():
            raise Skipped(f"{program} ended with {done.returncode}, and has no summary: see its words above")
        summary = json.loads(figures.read_text())
    report = Report(calls=sum(summary["outcomes"].values()), checks=summary["rounds"], problems=list(summary["faults"]))
    report.errors.update({name: count for name, count in summary["outcomes"].items() if "rror" in name})
    stage.report(report, sum(summary["kills"].values()))
    stage.end()


SCENARIOS = [
    Scenario("commit-lost", "connections are cut before and after COMMIT", commit_lost),
    Scenario("killed", "a durable server is killed (-9) and restarted", killed),
    Scenario("paused", "a server is suspended for 20 seconds", paused),
    Scenario("dropped", "the server drops every connection, repeatedly", dropped),
    Scenario("simulation", "the histories of the model, with errors between any two steps", simulation),
    Scenario("galera", "three nodes; one is killed, one is isolated, one is suspended; each rejoins", cluster),
    Scenario("clocks", "hosts ten minutes fast and slow", clock_skew),
    Scenario("crash", "workers are killed (-9) at random points", crash),
    Scenario("cyborg", "16 projects on a real Cyborg, conductors and API killed", cyborg),
    Scenario("nova", "servers with accelerators on a real Nova, compute hosts killed", nova),
]
"""To add a scenario, add a line."""


def _turns(stage: Stage, choices: Sequence[Any]) -> Any:
    """Run the functions in turn, until the time of the stage is over."""
    while True:
        for choice in choices:
            yield choice
            if stage.is_over:
                return


def _server(backend: str, *, durable: bool = False) -> servers.Server:
    return {kind.name: kind for kind in servers.KINDS}[backend](durable=durable)


def _ledger_on(server: servers.Server) -> Ledger:
    with sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE ledger")
    return Ledger(sa.make_url(server.url).set(database="ledger").render_as_string(hide_password=False))


def _without_outages(report: Report) -> Report:
    """Report every error but a refusal as a violation."""
    report.problems += [f"{kind} reached a caller" for kind in report.errors if kind != "OverQuota"]
    return report


def run(scenario: Scenario, seconds: float, seed: int) -> Tally:
    """Run one scenario for ``seconds``; an exception counts as a violation."""
    stage = Stage(scenario.name, seconds, seed)
    while not stage.is_over:
        try:
            scenario.run(stage)
        except Skipped as reason:
            stage.tally.skipped = str(reason)
            break
        except Exception as error:
            stage.tally.problems.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
    print(file=sys.stderr)
    return stage.tally


def table(tallies: Sequence[Tally]) -> str:
    """Format the results as a table."""
    titles = f"{'scenario':12} {'rounds':>6} {'calls':>9} {'faults':>7} {'checks':>9} {'problems':>8}"
    lines = [f"{titles}  errors that callers saw"]
    for tally in tallies:
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.errors.items())) or "none"
        words = f"skipped: {tally.skipped}" if tally.skipped else errors
        lines.append(
            f"{tally.name:12} {tally.rounds:6} {tally.cycles:9} {tally.faults:7} {tally.checks:9}"
            f" {len(tally.problems):8}  {words}"
        )
    return "\n".join(lines)


def total_minutes(chosen: float | None, names: Sequence[str]) -> float:
    """The total duration: the chosen one, or the default for the named scenarios."""
    if chosen is not None:
        return chosen
    return NOVA_MINUTES if list(names) == ["nova"] else DEFAULT_MINUTES


def main(argv: Sequence[str] | None = None) -> int:
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(
        prog="tools/soak.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"the total duration (default: {DEFAULT_MINUTES:g}; {NOVA_MINUTES:g} for --only nova)",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="the seed of the choices (default: random; it is printed)"
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(scenarios), metavar="NAME", help="run this scenario; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios, and exit")
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        default=pathlib.Path("soak.json"),
        help="the file for the figures (default: soak.json)",
    )
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(f"{scenario.name:12} {scenario.about}" for scenario in scenarios.values()))
        return 0
    logging.disable(logging.CRITICAL)
    load.PAUSE_SECONDS = 0.0  # as many calls as possible
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    names = arguments.only or list(scenarios)
    minutes = total_minutes(arguments.minutes, names)
    print(f"seed {seed}, {minutes:g} minutes, {', '.join(names)}", file=sys.stderr)
    tallies = [run(scenarios[name], minutes * 60 / len(names), seed) for name in names]
    print(table(tallies))
    for tally in tallies:
        for problem in tally.problems[:20]:
            print(f"{tally.name}: {problem}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    results = [{**vars(tally), "errors": dict(tally.errors)} for tally in tallies]
    figures = {"seed": seed, "machine": machine, "scenarios": results}
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(tally.problems for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
