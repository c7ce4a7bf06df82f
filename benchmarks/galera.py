# SPDX-License-Identifier: Apache-2.0
"""Ours against Cinder's quota on a Galera cluster of three nodes, each process on a node of its own, taking turns.

python -m benchmarks.galera --cinder VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import subprocess

from benchmarks import harness, speed
from tests.faults import cluster as scenes
from tests.servers.galera import Galera


def ours(urls: list[str], projects: list[str]) -> harness.Worker:
    """Each process on the next node."""
    workers = [speed.ours(url, projects) for url in urls]
    return lambda number: workers[number % len(workers)](number)


def cinder(python: str, urls: list[str], projects: int) -> speed.Round:
    """Cinder's own functions, each process on the next node. A cycle whose error reaches its caller does not count."""

    def turn(processes: int, seconds: float) -> harness.Sample:
        children = [
            subprocess.Popen(
                [python, str(speed.SCRIPT), "try", urls[number % len(urls)], str(projects), str(number), str(seconds)],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cinder", help="the Python of an environment with cinder; without it, Cinder is left out")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way has its turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long a turn is (default: 4)")
    parser.add_argument("--processes", type=int, default=6, help="how many write at once (default: 6)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    results = {}
    with Galera() as cluster, scenes.create_ledger(cluster, "ledger"):
        urls = [scenes.url_of(node, "ledger") for node in cluster.nodes]
        theirs = [scenes.url_of(node, "cinder") for node in cluster.nodes]
        many = [f"p{number}" for number in range(100)]
        speed.usage_ids(urls[0], many)
        if arguments.cinder:
            scenes.create_database(cluster, "cinder")
            subprocess.run([arguments.cinder, str(speed.SCRIPT), "make", theirs[0], "100"], check=True)
        scenes.wait_until_all_is_everywhere(cluster)
        for title, projects in (("a hot project", many[:1]), ("100 projects", many)):
            ways: dict[str, speed.Round] = {}
            if arguments.cinder:
                ways["cinder"] = cinder(arguments.cinder, theirs, len(projects))
            ways["ours"] = speed.own(ours(urls, projects))
            results[title] = speed.show(
                f"Galera, three nodes, {arguments.processes} processes, {title}",
                ways,
                arguments.processes,
                arguments.rounds,
                arguments.seconds,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
