# SPDX-License-Identifier: Apache-2.0
"""Ours against Cinder's quota on a Galera cluster of three nodes, each process on a node of its own, taking turns.

python -m benchmarks.galera --cinder VENV/bin/python
"""

from __future__ import annotations

import logging

from benchmarks import cinder_processes, harness, speed
from benchmarks.report import Report
from tests.faults import cluster as scenes
from tests.servers.galera import Galera


def ours(urls: list[str], projects: list[str]) -> harness.Worker:
    """Each process on the next node."""
    workers = [speed.ours(url, projects) for url in urls]
    return lambda number: workers[number % len(workers)](number)


def main() -> None:
    parser = harness.parser(__doc__, rounds=3, seconds=4.0)
    parser.add_argument("--cinder", help="the Python of an environment with cinder; without it, Cinder is left out")
    parser.add_argument("--processes", type=int, default=6, help="how many write at once (default: 6)")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    report = Report()
    with Galera() as cluster, scenes.create_ledger(cluster, "ledger"):
        urls = [scenes.url_of(node, "ledger") for node in cluster.nodes]
        theirs = [scenes.url_of(node, "cinder") for node in cluster.nodes]
        many = [f"p{number}" for number in range(100)]
        speed.usage_ids(urls[0], many)
        if arguments.cinder:
            scenes.create_database(cluster, "cinder")
            cinder_processes.make(arguments.cinder, theirs[0], 100)
        scenes.wait_until_all_is_everywhere(cluster)
        for title, projects in (("a hot project", many[:1]), ("100 projects", many)):
            ways: dict[str, harness.Round] = {}
            if arguments.cinder:
                ways["cinder"] = cinder_processes.turns(arguments.cinder, theirs, len(projects), "try")
            ways["ours"] = speed.own(ours(urls, projects))
            speed.show(
                report,
                f"Galera, three nodes, {arguments.processes} processes, {title}",
                ways,
                arguments.processes,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
            )
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
