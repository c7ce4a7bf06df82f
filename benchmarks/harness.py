# SPDX-License-Identifier: Apache-2.0
"""Timing cycles in many processes, and telling the figures.

A machine is never quiet, and no two machines are alike: the ways that are compared take turns, round by round, and
what counts is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests import fixtures

_FORK = multiprocessing.get_context("fork")

WARM_SECONDS = 0.5
"""What each way does first does not count: a forked process still copies its parent's pages, and Cinder's, a new one,
has none to copy."""

Cycle = Callable[[], None]
"""One reserve and commit, or what is compared with it. Raises when it fails."""
Worker = Callable[[int], Cycle]
"""Connects in a process of its own, number so-and-so, and returns its cycle."""
Round = Callable[[int, float], "Sample"]
"""One turn of so many processes and so many seconds."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One round of one way. Times in seconds."""

    cycles: int
    seconds: float
    latencies: Sequence[float]

    @property
    def rate(self) -> float:
        """Cycles a second, of all processes together."""
        return self.cycles / self.seconds

    def percentile(self, percent: int) -> float:
        """Latency in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def run_round(worker: Worker, processes: int, seconds: float) -> Sample:
    """Let so many processes do cycles for so long, from the same moment on."""
    barrier = _FORK.Barrier(processes)
    pipes = [_FORK.Pipe(duplex=False) for _ in range(processes)]
    children = [
        _FORK.Process(target=_child, args=(worker, number, barrier, seconds, writer))
        for number, (_, writer) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    answers = gather(children, [reader for reader, _ in pipes])
    latencies = [latency for taken, _ in answers for latency in taken]
    return Sample(len(latencies), max(elapsed for _, elapsed in answers), latencies)


def gather(children: Sequence[Any], readers: Sequence[Any]) -> list[Any]:
    """What each process has to say, once all have ended. Raises RuntimeError where one tells of an error (a text)."""
    answers = [reader.recv() for reader in readers]
    for child in children:
        child.join()
    failures = [answer for answer in answers if isinstance(answer, str)]
    if failures:
        raise RuntimeError(f"a worker failed: {failures[0]}")
    return answers


def _child(worker: Worker, number: int, barrier: Any, seconds: float, writer: Any) -> None:
    try:
        cycle = worker(number)
        for _ in range(5):
            cycle()
        barrier.wait(60)
        warm = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < warm:
            cycle()
        latencies = []
        began = now = time.perf_counter()
        while now - began < seconds:
            cycle()
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        writer.send((latencies, now - began))
    except BaseException as error:
        writer.send(f"{type(error).__name__}: {error}")
    finally:
        writer.close()
        os._exit(0)


@dataclasses.dataclass(frozen=True)
class Counters:
    """Several rounds of one way, medians."""

    rate: float
    spread: float
    p50: float
    p99: float
    ratio: float


def compare(
    ways: dict[str, Worker], processes: int, rounds: int, seconds: float, *, against: str
) -> dict[str, Counters]:
    """Let the ways take turns; ``ratio`` is each one's rate over that of ``against``, the median of the rounds."""
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, worker in ways.items():
            samples[name].append(run_round(worker, processes, seconds))
    return summarize(samples, against=against)


def summarize(samples: dict[str, list[Sample]], *, against: str) -> dict[str, Counters]:
    """The medians of each way's rounds."""
    base = [sample.rate for sample in samples[against]]
    return {
        name: Counters(
            rate=statistics.median(one.rate for one in taken),
            spread=(max(one.rate for one in taken) - min(one.rate for one in taken))
            / statistics.median(one.rate for one in taken),
            p50=statistics.median(one.percentile(50) for one in taken),
            p99=statistics.median(one.percentile(99) for one in taken),
            ratio=statistics.median(one.rate / other for one, other in zip(taken, base, strict=True)),
        )
        for name, taken in samples.items()
    }


def parser(about: str | None, *, rounds: int = 5, seconds: float = 2.0) -> argparse.ArgumentParser:
    """The arguments of every benchmark whose ways take turns, with these defaults."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--rounds", type=int, default=rounds, help="how often each way has its turn (default: %(default)s)"
    )
    made.add_argument("--seconds", type=float, default=seconds, help="how long a turn is (default: %(default)g)")
    made.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    return made


def main(about: str | None, run: Callable[[str, int, float], dict[str, object]]) -> None:
    """The command of a benchmark: on each server that there is, ``run(backend, rounds, seconds)``."""
    arguments = parser(about).parse_args()
    logging.disable(logging.WARNING)
    backends = [one for one in ("mariadb", "postgresql") if fixtures.admin_url(one)]
    results = {backend: run(backend, arguments.rounds, arguments.seconds) for backend in backends}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=2) + "\n")


def table(title: str, figures: dict[str, Counters]) -> str:
    """The figures for a person."""
    width = max(map(len, figures))
    lines = [title, f"  {'':{width}}  {'cycles/s':>9} {'spread':>7} {'p50 ms':>7} {'p99 ms':>7} {'ratio':>6}"]
    for name, one in figures.items():
        lines.append(
            f"  {name:{width}}  {one.rate:9.0f} {one.spread:6.0%} {one.p50:7.2f} {one.p99:7.2f} {one.ratio:6.2f}"
        )
    return "\n".join(lines)
