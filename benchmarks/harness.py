# SPDX-License-Identifier: Apache-2.0
"""Times cycles in several processes, and formats the figures.

Absolute figures depend on the machine and its load. So the variants are measured alternately, round by round, and the
result is the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests import fixtures

_FORK = multiprocessing.get_context("fork")

WARM_SECONDS = 0.5
"""Cycles in the first seconds are not counted: a forked process still copies its parent's pages, a new one does not."""

Cycle = Callable[[], None]
"""One reserve and commit, or the operation that is compared with it. Raises an error if it fails."""
Worker = Callable[[int], Cycle]
"""Called in a worker process with its number: connects, and returns the cycle."""
Round = Callable[[int, float], "Sample"]
"""Runs one round with a number of processes for a number of seconds."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One round of one variant. Times are in seconds."""

    cycles: int
    seconds: float
    latencies: Sequence[float]
    processor_seconds: float = 0.0
    """The processor time of the client's processes and, with ``meter``, of what it measures."""

    @property
    def rate(self) -> float:
        """Cycles per second, of all processes together."""
        return self.cycles / self.seconds

    def percentile(self, percent: int) -> float:
        """Return a percentile of the latency, in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def run_round(worker: Worker, processes: int, seconds: float, meter: Callable[[], float] | None = None) -> Sample:
    """Run cycles in ``processes`` processes, started together, for ``seconds``.

    ``meter`` returns the processor time that the server has used, in seconds.
    """
    barrier = _FORK.Barrier(processes + (meter is not None))
    pipes = [_FORK.Pipe(duplex=False) for _ in range(processes)]
    children = [
        _FORK.Process(target=_child, args=(worker, number, barrier, seconds, writer))
        for number, (_, writer) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    server_seconds = 0.0 if meter is None else _measure(meter, barrier, seconds)
    results = gather(children, [reader for reader, _ in pipes])
    latencies = [latency for process_latencies, _, _ in results for latency in process_latencies]
    client_seconds = sum(processor_seconds for _, _, processor_seconds in results)
    elapsed = max(elapsed for _, elapsed, _ in results)
    return Sample(len(latencies), elapsed, latencies, client_seconds + server_seconds)


def _measure(meter: Callable[[], float], barrier: Any, seconds: float) -> float:
    with contextlib.suppress(threading.BrokenBarrierError):  # a worker failed; gather raises its error
        barrier.wait(120)
    time.sleep(WARM_SECONDS)
    before = meter()
    time.sleep(seconds)
    return meter() - before


def gather(children: Sequence[Any], readers: Sequence[Any]) -> list[Any]:
    """Return the result of each process, after all have ended. Raises RuntimeError if one is an error (a str)."""
    results = [reader.recv() for reader in readers]
    for child in children:
        child.join()
    failures = [result for result in results if isinstance(result, str)]
    if failures:
        raise RuntimeError(f"a worker failed: {failures[0]}")
    return results


def _child(worker: Worker, number: int, barrier: Any, seconds: float, writer: Any) -> None:
    try:
        cycle = worker(number)
        for _ in range(5):
            cycle()
        barrier.wait(60)
        warm_end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < warm_end:
            cycle()
        latencies = []
        processor_start = time.process_time()
        start = now = time.perf_counter()
        while now - start < seconds:
            cycle()
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        writer.send((latencies, now - start, time.process_time() - processor_start))
    except BaseException as error:
        writer.send(f"{type(error).__name__}: {error}")
    finally:
        writer.close()
        os._exit(0)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The medians of several rounds of one variant."""

    rate: float
    spread: float
    p50: float
    p99: float
    ratio: float


def compare(
    variants: dict[str, Worker], processes: int, rounds: int, seconds: float, *, against: str
) -> dict[str, Summary]:
    """Measure the variants alternately.

    ``ratio`` is the median over the rounds of a variant's rate divided by the rate of ``against``.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, worker in variants.items():
            samples[name].append(run_round(worker, processes, seconds))
    return summarize(samples, against=against)


def summarize(samples: dict[str, list[Sample]], *, against: str) -> dict[str, Summary]:
    """Return the medians of the rounds of each variant."""
    base = [sample.rate for sample in samples[against]]
    return {
        name: Summary(
            rate=statistics.median(sample.rate for sample in rounds),
            spread=(max(sample.rate for sample in rounds) - min(sample.rate for sample in rounds))
            / statistics.median(sample.rate for sample in rounds),
            p50=statistics.median(sample.percentile(50) for sample in rounds),
            p99=statistics.median(sample.percentile(99) for sample in rounds),
            ratio=statistics.median(sample.rate / other for sample, other in zip(rounds, base, strict=True)),
        )
        for name, rounds in samples.items()
    }


def parser(about: str | None, *, rounds: int = 5, seconds: float = 2.0) -> argparse.ArgumentParser:
    """Return a parser with the arguments that the benchmarks share, with these defaults."""
    shared = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared.add_argument(
        "--rounds", type=int, default=rounds, help="the number of rounds of each variant (default: %(default)s)"
    )
    shared.add_argument("--seconds", type=float, default=seconds, help="the duration of a round (default: %(default)g)")
    shared.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    return shared


def main(about: str | None, run: Callable[[str, int, float], dict[str, object]]) -> None:
    """The main function of a benchmark: calls ``run(backend, rounds, seconds)`` for each available server."""
    arguments = parser(about).parse_args()
    logging.disable(logging.WARNING)
    backends = [name for name in ("mariadb", "postgresql") if fixtures.admin_url(name)]
    results = {backend: run(backend, arguments.rounds, arguments.seconds) for backend in backends}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=2) + "\n")


def table(title: str, figures: dict[str, Summary]) -> str:
    """Format the figures as a table."""
    width = max(map(len, figures))
    lines = [title, f"  {'':{width}}  {'cycles/s':>9} {'spread':>7} {'p50 ms':>7} {'p99 ms':>7} {'ratio':>6}"]
    for name, figure in figures.items():
        lines.append(
            f"  {name:{width}}  {figure.rate:9.0f} {figure.spread:6.0%} {figure.p50:7.2f} "
            f"{figure.p99:7.2f} {figure.ratio:6.2f}"
        )
    return "\n".join(lines)
