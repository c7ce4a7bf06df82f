# SPDX-License-Identifier: Apache-2.0
"""Compares cyborg_quota with Cinder's quota on a Galera cluster of three nodes; process n uses node n modulo 3.

python -m benchmarks.galera --cinder VENV/bin/python
"""

from __future__ import annotations

import logging

from benchmarks import cinder_processes, harness, speed
from benchmarks.report import Report
from tests.faults import cluster as cluster_faults
from tests.servers.galera import Galera


def ours(urls: list[str], projects: list[str]) -> harness.Worker:
    """Return a worker whose processes use the nodes in turn."""
    workers = [speed.ours(url, projects) for url in urls]
    return lambda number: workers[number % len(workers)](number)


def main() -> None:
    parser = harness.parser(__doc__, rounds=3, seconds=4.0)
    parser.add_argument("--cinder", help="the Python of an environment with cinder (default: Cinder is not measured)")
    parser.add_argument("--processes", type=int, default=6, help="the number of concurrent writers (default: 6)")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    report = Report()
    with Galera() as cluster, cluster_faults.create_ledger(cluster, "ledger"):
        urls = [node.url_of("ledger") for node in cluster.nodes]
        cinder_urls = [node.url_of("cinder") for node in cluster.nodes]
        hundred_projects = [f"p{number}" for number in range(100)]
        speed.usage_ids(urls[0], hundred_projects)
        speed.set_limits(urls[0])
        if arguments.cinder:
            cluster_faults.create_database(cluster, "cinder")
            cinder_processes.make(arguments.cinder, cinder_urls[0], 100)
        cluster_faults.wait_until_replicated(cluster)
        for title, projects in (("1 project", hundred_projects[:1]), ("100 projects", hundred_projects)):
            variants: dict[str, harness.Round] = {}
            if arguments.cinder:
                variants["cinder"] = cinder_processes.turns(arguments.cinder, cinder_urls, len(projects), "try")
            variants["ours"] = speed.run_in_fork(ours(urls, projects))
            speed.show(
                report,
                f"Galera, three nodes, {arguments.processes} processes, {title}",
                variants,
                arguments.processes,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
            )
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
