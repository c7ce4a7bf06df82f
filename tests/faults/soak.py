# SPDX-License-Identifier: Apache-2.0
"""The fault tests, for as long as you like: each scene for its share of the time, again and again on a fresh ledger.

Every round ends with the one check of tests/faults/ledger_check.py: audit clean, reserved back to what is open, no
limit ever passed, no answered call lost, nothing charged twice. The exit status is 0 when no round found anything.

    tools/soak.sh                                  all scenes, half an hour
    tools/soak.sh --minutes 480 --seed 7           a night, and the same choices again with the same seed
    tools/soak.sh --only galera --only crash       these alone
    tools/soak.sh --list                           what there is

A scene whose server or package is missing is skipped, and counted as that. The figures go to soak.json too.
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
from tests.faults import clocks, outages, test_commit_lost, test_crash, test_simulation, test_upgrade
from tests.faults import cluster as galera_scenes
from tests.faults.ledger_check import Report
from tests.faults.load import Ledger
from tests.faults.proxy import Proxy
from tests.servers import galera

TOP = pathlib.Path(__file__).parents[2]
CYBORG, NOVA = "tests.cyborgs.soak", "tests.novas.soak"
SERVERS = ("mariadb", "postgresql")
MOST_PROBLEMS = 5
"""A scene that has found so many is not gone on with."""


class Skipped(Exception):
    """Something that the scene needs is not here."""


@dataclasses.dataclass
class Tally:
    """What came of one scene."""

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
    """What a scene is given: chance, the time it has, and where to tell what happened."""

    def __init__(self, name: str, seconds: float, seed: int) -> None:
        self.tally = Tally(name)
        self.seed = seed
        self.chance = random.Random(f"{seed} {name}")
        self._began = time.monotonic()
        self.seconds = seconds

    @property
    def is_over(self) -> bool:
        """Whether its share of the time has been used. (A round that has begun is finished.)"""
        return time.monotonic() - self._began >= self.seconds or len(self.tally.problems) >= MOST_PROBLEMS

    def draw(self) -> int:
        """A seed for the next round."""
        return self.chance.randrange(2**32)

    def tell(self, report: Report, faults: int) -> None:
        """One round has ended, with so many faults."""
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
class Scene:
    """A name for --only, a line for --list, and what is done until ``stage.is_over``."""

    name: str
    about: str
    run: Callable[[Stage], None]


def backends(*names: str) -> list[str]:
    """Those of them that can run here."""
    found = [name for name in names if fixtures.missing_server(name) is None]
    if not found:
        raise Skipped("no " + " and no ".join(names))
    return found


def crash(stage: Stage) -> None:
    """Workers killed, 100 a round, on each database."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            test_crash.kill_workers(ledger, 100, stage.draw())
            stage.tell(ledger.check(), 100)


def commit_lost(stage: Stage) -> None:
    """Wires cut at COMMIT."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, Proxy(ledger.url) as proxy:
            cuts = test_commit_lost.cut_under_load(ledger, [proxy], 8.0, stage.draw())
            stage.tell(ledger.check(), cuts)


def killed(stage: Stage) -> None:
    """A durable server killed and restarted."""
    for backend in _turns(stage, backends(*SERVERS)):
        with _server(backend, durable=True) as server, _ledger_on(server) as ledger:
            kills = outages.kill_server(ledger, server, 12.0, stage.draw())
            stage.tell(ledger.check(), kills)


def paused(stage: Stage) -> None:
    """A server that stands still for 20 s, under the default time-outs: callers are told within ten."""
    for backend in _turns(stage, backends(*SERVERS)):
        with _server(backend) as server, _ledger_on(server) as ledger:
            outages.pause_server(ledger, server, 20.0, stage.draw())
            report = ledger.check()
            longest = ledger.journal.longest_seconds()
            if longest > 10.0:
                report.problems.append(f"a caller waited {longest:.1f} s for its answer")
            stage.tell(report, 1)


def dropped(stage: Stage) -> None:
    """Connections dropped by the server."""
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            count = outages.drop_connections(ledger, 8.0, stage.draw())
            stage.tell(_without_outages(ledger.check()), count)


def cluster(stage: Stage) -> None:
    """Galera: all up; a node killed, cut off, standing still; with the default time-outs of a cluster."""
    reason = galera.missing()
    if reason is not None:
        raise Skipped(reason)
    with galera.Galera() as nodes:
        acts: list[tuple[int, Callable[[Any], None]]] = [
            (0, lambda _: time.sleep(8.0)),
            (1, galera_scenes.kill_one(nodes, 6.0)),
            (1, galera_scenes.isolate_one(nodes, 15.0)),
            (1, galera_scenes.pause_one(nodes, 20.0)),
        ]
        for faults, act in _turns(stage, acts):
            with galera_scenes.create_ledger(nodes, "ledger") as ledger:
                projects = galera_scenes.HOT * 20 + galera_scenes.SPREAD
                galera_scenes.load(nodes, ledger, act, projects, seed=stage.draw())
                report = ledger.check()
                longest = ledger.journal.longest_seconds()
                if longest > 10.0:
                    report.problems.append(f"a caller waited {longest:.1f} s for its answer")
                stage.tell(report if faults else _without_outages(report), faults)


def clock_skew(stage: Stage) -> None:
    """Hosts ten minutes fast and slow."""
    if clocks.library() is None:
        raise Skipped("no libfaketime")
    for backend in _turns(stage, backends(*SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger, contextlib.ExitStack() as stack:
            skews = (clocks.SKEW_SECONDS, -clocks.SKEW_SECONDS, 0)
            workers = [stack.enter_context(clocks.Worker(ledger.url, skew)) for skew in skews]
            for _ in range(4):
                problems = clocks.one_turn(workers, stage.chance)
                stage.tell(Report(calls=20, checks=5, problems=problems), 2)


def simulation(stage: Stage) -> None:
    """The model's histories with errors between any two steps."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        seed, examples = stage.draw(), {"sqlite": 60}.get(backend, 10)
        try:
            struck, problems = test_simulation.simulate(backend, seed, examples), []
        except AssertionError as error:
            struck, problems = collections.Counter(), [str(error)]
        stage.tell(Report(calls=examples * 25, checks=examples * 25, problems=problems), sum(struck.values()))


def upgrade(stage: Stage) -> None:
    """The release before beside the new schema, this one beside a next one, db sync in the middle."""
    for backend in _turns(stage, backends("sqlite", *SERVERS)):
        with Ledger(fixtures.fresh_url(backend, "soak"), revision="a1c0") as ledger:
            test_upgrade.upgrade_under_old(ledger, 3.0, stage.draw())
            stage.tell(_without_outages(ledger.check()), 1)
        with Ledger(fixtures.fresh_url(backend, "soak")) as ledger:
            with ledger.crew(4, stage.draw(), outages.HOT_AND_COLD, retry_seconds=20.0):
                time.sleep(2.0)
                test_upgrade.sync_to_next(ledger.url, test_upgrade.ADDITIVE)
                time.sleep(2.0)
            stage.tell(_without_outages(ledger.check()), 1)


def cyborg(stage: Stage) -> None:
    """The real Cyborg, its conductors killed."""
    _run_program(stage, CYBORG)


def nova(stage: Stage) -> None:
    """The real Nova, its compute hosts killed."""
    _run_program(stage, NOVA)


def _run_program(stage: Stage, program: str) -> None:
    """A program of its own, whose summary is taken as one round."""
    backends("mariadb")
    with tempfile.TemporaryDirectory() as directory:
        figures = pathlib.Path(directory) / "figures.json"
        minutes = str(stage.seconds / 60)
        command = [sys.executable, "-m", program, "--minutes", minutes, "--seed", str(stage.seed), "--json", figures]
        done = subprocess.run(command, cwd=TOP, stdout=subprocess.DEVNULL, check=False)
        if not figures.exists():
            raise Skipped(f"{program} ended with {done.returncode}, and has no summary: see its words above")
        summary = json.loads(figures.read_text())
    report = Report(
        calls=sum(summary["outcomes"].values()), checks=summary["rounds"], problems=list(summary["faults"])
    )
    report.errors.update({name: count for name, count in summary["outcomes"].items() if "rror" in name})
    stage.tell(report, sum(summary["kills"].values()))


SCENES = [
    Scene("commit-lost", "wires that are cut at COMMIT, before and behind it", commit_lost),
    Scene("killed", "a durable server is killed (-9) and restarted", killed),
    Scene("paused", "a server stands still for 20 seconds", paused),
    Scene("dropped", "the server drops every connection, again and again", dropped),
    Scene("simulation", "the model's histories, the database failing between any two steps", simulation),
    Scene("galera", "three nodes; one is killed, one is cut off, one stands still; each comes back", cluster),
    Scene("clocks", "hosts ten minutes fast and slow", clock_skew),
    Scene("crash", "workers are killed (-9) at random points", crash),
    Scene("upgrade", "old release and new side by side, db sync under load", upgrade),
    Scene("cyborg", "16 projects on a real Cyborg, conductors and API killed", cyborg),
    Scene("nova", "servers with accelerators on a real Nova, compute hosts killed", nova),
]
"""A scene more is a line more."""


def _turns(stage: Stage, choices: Sequence[Any]) -> Any:
    """One after another, round and round, until the stage's time is over."""
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
    """Nobody was to see any error but a refusal."""
    report.problems += [f"{kind} reached a caller" for kind in report.errors if kind != "OverQuota"]
    return report


def run(scene: Scene, seconds: float, seed: int) -> Tally:
    """One scene for so long; what it raises is a problem like any other."""
    stage = Stage(scene.name, seconds, seed)
    while not stage.is_over:
        try:
            scene.run(stage)
        except Skipped as reason:
            stage.tally.skipped = str(reason)
            break
        except Exception as error:
            stage.tally.problems.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
    print(file=sys.stderr)
    return stage.tally


def table(tallies: Sequence[Tally]) -> str:
    """For a person."""
    titles = f"{'scene':12} {'rounds':>6} {'calls':>9} {'faults':>7} {'checks':>9} {'problems':>8}"
    lines = [f"{titles}  errors that callers saw"]
    for one in tallies:
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(one.errors.items())) or "none"
        words = f"skipped: {one.skipped}" if one.skipped else errors
        lines.append(
            f"{one.name:12} {one.rounds:6} {one.cycles:9} {one.faults:7} {one.checks:9} {len(one.problems):8}  {words}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    scenes = {scene.name: scene for scene in SCENES}
    parser = argparse.ArgumentParser(
        prog="tools/soak.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, all scenes together (default: 30)")
    parser.add_argument("--seed", type=int, default=None, help="for the choices; drawn, and shown, when not given")
    parser.add_argument("--only", action="append", choices=sorted(scenes), metavar="NAME", help="may be given again")
    parser.add_argument("--list", action="store_true", help="show the scenes, and do nothing")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("soak.json"), help="default: soak.json")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(f"{scene.name:12} {scene.about}" for scene in scenes.values()))
        return 0
    logging.disable(logging.CRITICAL)
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    names = arguments.only or list(scenes)
    print(f"seed {seed}, {arguments.minutes:g} minutes, {', '.join(names)}", file=sys.stderr)
    tallies = [run(scenes[name], arguments.minutes * 60 / len(names), seed) for name in names]
    print(table(tallies))
    for tally in tallies:
        for problem in tally.problems[:20]:
            print(f"{tally.name}: {problem}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    scenes_told = [{**vars(tally), "errors": dict(tally.errors)} for tally in tallies]
    figures = {"seed": seed, "machine": machine, "scenes": scenes_told}
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(tally.problems for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
