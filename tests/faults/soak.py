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
import json
import logging
import os
import pathlib
import platform
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tests import fixtures
from tests.cyborgs import soak as cyborg_soak
from tests.faults import clocks, load, outages, test_commit_lost, test_crash, test_simulation
from tests.faults import cluster as cluster_faults
from tests.faults.ledger_check import Report
from tests.faults.load import Ledger
from tests.faults.proxy import Proxy
from tests.faults.test_outages import KINDS
from tests.installing import NotAvailable
from tests.novas import soak as nova_soak
from tests.servers import galera

DEFAULT_MINUTES = 30.0
NOVA_MINUTES = 3.5
"""With the start of the servers, less than 4 minutes."""
SERVERS = ("mariadb", "postgresql")
LONGEST_SECONDS = 10.0
"""The longest time until a call is answered, which is promised to operators."""
MOST_PROBLEMS = 5
"""A scenario stops after this number of violations."""


class Stage:
    """The environment of a scenario: random numbers, its time, and the sum of the reports of its rounds."""

    def __init__(self, name: str, seconds: float, seed: int) -> None:
        self.name = name
        self.seconds = seconds
        self.seed = seed
        self.rng = random.Random(f"{seed} {name}")
        self.rounds = self.faults = 0
        self.total = Report()
        self.skipped = ""
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Return whether its share of the time is used up. (A round that has begun is finished.)"""
        return self.seconds_left <= 0 or len(self.total.problems) >= MOST_PROBLEMS

    def end(self) -> None:
        """End the scenario, because another round does not fit into the rest of its time."""
        self._end = 0.0

    def draw(self) -> int:
        """Draw a seed for the next round."""
        return self.rng.randrange(2**32)

    def report(self, report: Report, faults: int) -> None:
        """Report the end of a round, and its number of faults."""
        self.rounds += 1
        self.faults += faults
        self.total.calls += report.calls
        self.total.errors += report.errors
        self.total.checks += report.checks
        self.total.problems += report.problems
        print(
            f"{self.name}: round {self.rounds}, {self.total.calls} calls, {self.faults} faults,"
            f" {len(self.total.problems)} problems, {self.seconds_left:.0f} s left",
            file=sys.stderr,
        )

    def figures(self) -> dict[str, Any]:
        own = {"name": self.name, "rounds": self.rounds, "faults": self.faults, "skipped": self.skipped}
        return own | vars(self.total)  # (asdict does not copy a Counter)


def backends(*names: str) -> list[str]:
    """Return the databases of the scenario that are available here."""
    found = [name for name in names if fixtures.missing_server(name) is None]
    if not found:
        raise NotAvailable("no " + " and no ".join(names))
    return found


def crash(stage: Stage) -> None:
    """Workers are killed (-9) at random points, 100 a round."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            test_crash.kill_workers(ledger, 100, stage.draw())
            stage.report(ledger.check(), 100)


def commit_lost(stage: Stage) -> None:
    """Connections are cut before and after COMMIT."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, Proxy(ledger.url) as proxy:
            cuts = test_commit_lost.cut_under_load(ledger, proxy, 8.0, stage.draw())
            stage.report(ledger.check(), cuts)


def killed(stage: Stage) -> None:
    """A durable server is killed (-9) and restarted."""
    for backend in _turns(stage, backends(*SERVERS)):
        with KINDS[backend](durable=True) as server, Ledger(server.create_database("ledger")) as ledger:
            kills = outages.kill_server(ledger, server, 12.0, stage.draw())
            stage.report(ledger.check(), kills)


def paused(stage: Stage) -> None:
    """A server is suspended for 20 s, with the default timeouts: callers get an error within ten."""
    for backend in _turns(stage, backends(*SERVERS)):
        with KINDS[backend]() as server, Ledger(server.create_database("ledger")) as ledger:
            outages.pause_server(ledger, server, 20.0, stage.draw())
            stage.report(_in_time(ledger), 1)


def dropped(stage: Stage) -> None:
    """The server drops every connection, repeatedly."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            count = outages.drop_connections(ledger, 8.0, stage.draw())
            stage.report(_without_outages(ledger.check()), count)


def cluster(stage: Stage) -> None:
    """Three nodes; one is killed, one is isolated, one is suspended; each rejoins. With the default timeouts."""
    reason = galera.missing()
    if reason is not None:
        raise NotAvailable(reason)
    with galera.Galera() as nodes:
        acts: list[tuple[int, Callable[[Any], None]]] = [
            (0, lambda _: time.sleep(8.0)),
            (1, cluster_faults.away(nodes, "kill", 6.0)),
            (1, cluster_faults.away(nodes, "isolate", 15.0)),
            (1, cluster_faults.away(nodes, "pause", 20.0)),
        ]
        for faults, act in _turns(stage, acts):
            with cluster_faults.create_ledger(nodes, "ledger") as ledger:
                cluster_faults.load(nodes, ledger, act, cluster_faults.HOT_AND_SPREAD, seed=stage.draw())
                report = _in_time(ledger)
                stage.report(report if faults else _without_outages(report), faults)


def clock_skew(stage: Stage) -> None:
    """Hosts are ten minutes fast and slow."""
    if clocks.library() is None:
        raise NotAvailable("no libfaketime")
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, contextlib.ExitStack() as stack:
            skews = (clocks.SKEW_SECONDS, -clocks.SKEW_SECONDS, 0)
            workers = [stack.enter_context(clocks.Worker(ledger.url, skew)) for skew in skews]
            for _ in range(4):
                clocks.check_skew(workers, stage.rng)
                stage.report(Report(calls=20, checks=5), 2)


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
    """16 projects on a real Cyborg, conductors and API killed."""
    backends("mariadb")
    cyborg_soak.run(stage)


def nova(stage: Stage) -> None:
    """Servers with accelerators on a real Nova, compute hosts killed."""
    backends("mariadb")
    nova_soak.run(stage)


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "commit-lost": commit_lost,
    "killed": killed,
    "paused": paused,
    "dropped": dropped,
    "simulation": simulation,
    "galera": cluster,
    "clocks": clock_skew,
    "crash": crash,
    "cyborg": cyborg,
    "nova": nova,
}
"""To add a scenario, add a line. Each runs until ``stage.is_over``."""


def _turns(stage: Stage, choices: Sequence[Any]) -> Any:
    """Run the functions in turn, until the time of the stage is over."""
    while True:
        for choice in choices:
            yield choice
            if stage.is_over:
                return


def _in_time(ledger: Ledger) -> Report:
    """Check the ledger, and that no caller has waited for long."""
    report = ledger.check()
    longest = ledger.journal.longest_seconds()
    if longest > LONGEST_SECONDS:
        report.problems.append(f"a caller waited {longest:.1f} s for its answer")
    return report


def _without_outages(report: Report) -> Report:
    """Report every error but a refusal as a violation."""
    report.problems += [f"{kind} reached a caller" for kind in report.errors if kind != "OverQuota"]
    return report


def run(name: str, seconds: float, seed: int) -> Stage:
    """Run one scenario for ``seconds``; an exception counts as a violation."""
    stage = Stage(name, seconds, seed)
    while not stage.is_over:
        try:
            SCENARIOS[name](stage)
        except NotAvailable as reason:
            stage.skipped = str(reason)
            break
        except Exception as error:
            stage.total.problems.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
    return stage


def table(stages: Sequence[Stage]) -> str:
    """Format the results as a table."""
    titles = f"{'scenario':12} {'rounds':>6} {'calls':>9} {'faults':>7} {'checks':>9} {'problems':>8}"
    lines = [f"{titles}  errors that callers saw"]
    for stage in stages:
        total = stage.total
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(total.errors.items())) or "none"
        lines.append(
            f"{stage.name:12} {stage.rounds:6} {total.calls:9} {stage.faults:7} {total.checks:9}"
            f" {len(total.problems):8}  {f'skipped: {stage.skipped}' if stage.skipped else errors}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
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
        "--only", action="append", choices=sorted(SCENARIOS), metavar="NAME", help="run this scenario; may be repeated"
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
        print("\n".join(f"{name:12} {scenario.__doc__}" for name, scenario in SCENARIOS.items()))
        return 0
    logging.disable(logging.CRITICAL)
    load.PAUSE_SECONDS = 0.0  # as many calls as possible
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    names = arguments.only or list(SCENARIOS)
    minutes = arguments.minutes or (NOVA_MINUTES if names == ["nova"] else DEFAULT_MINUTES)
    print(f"seed {seed}, {minutes:g} minutes, {', '.join(names)}", file=sys.stderr)
    stages = [run(name, minutes * 60 / len(names), seed) for name in names]
    print(table(stages))
    for stage in stages:
        for problem in stage.total.problems[:20]:
            print(f"{stage.name}: {problem}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    figures = {"seed": seed, "machine": machine, "scenarios": [stage.figures() for stage in stages]}
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(stage.total.problems for stage in stages) else 0


if __name__ == "__main__":
    sys.exit(main())
