# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks; prints one table and writes one JSON file.

tools/benchmark.sh                          all cases on private durable servers, compared with Cinder: about 15 minutes
tools/benchmark.sh --short                  the same with fewer rounds and smaller ledgers: about 3 minutes
tools/benchmark.sh --only attach            one case only
tools/benchmark.sh --against COMMIT         the case attach, compared with this commit of cyborg_quota instead
"""

from __future__ import annotations

import argparse
import logging
import pathlib

from benchmarks import against, headroom, hours, listing, million, minimums, pods, speed, totals, trace, tree
from benchmarks.report import Report
from tests import fixtures

CASES = ("attach", "million", "list", "trace", "tree", "headroom", "pods", "totals", "minimums", "hours")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmark.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, action="append", help="run this case; may be repeated")
    parser.add_argument(
        "--on", choices=fixtures.BACKENDS, action="append", help="run on this database; may be repeated"
    )
    parser.add_argument("--short", action="store_true", help="3 rounds of 1 second, ledgers of 100,000 rows")
    parser.add_argument("--rounds", type=int, help="the number of rounds of each variant (default: 5)")
    parser.add_argument("--seconds", type=float, help="the duration of a round (default: 3)")
    parser.add_argument("--rows", type=int, help="the rows of the large ledger (default: 1000000)")
    parser.add_argument("--trace", type=pathlib.Path, help="the trace to replay (default: a generated one)")
    parser.add_argument("--cinder", help="the Python of an environment with cinder (default: Cinder is not measured)")
    parser.add_argument("--against", metavar="COMMIT", help="compare the case attach with this commit")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    rounds = arguments.rounds or (3 if arguments.short else 5)
    seconds = arguments.seconds or (1.0 if arguments.short else 3.0)
    backends = [name for name in arguments.on or fixtures.BACKENDS if fixtures.missing_server(name) is None]
    report = Report()
    if arguments.against is not None:
        rounds = arguments.rounds or (6 if arguments.short else 9)
        for backend in [name for name in backends if name != "sqlite"]:
            against.run(report, backend, arguments.against, rounds=rounds, seconds=seconds)
    else:
        run_cases(report, arguments, backends, rounds, seconds)
    print(report.table())
    if arguments.json is not None:
        report.write(arguments.json)


def run_cases(report: Report, arguments: argparse.Namespace, backends: list[str], rounds: int, seconds: float) -> None:
    """Run the chosen cases on each database."""
    rows = arguments.rows or (100_000 if arguments.short else 1_000_000)
    cases = arguments.only or CASES
    for backend in backends:
        if backend != "sqlite" and "attach" in cases:
            speed.run(report, backend, arguments.cinder, rounds=rounds, seconds=seconds)
        if backend != "sqlite" and "tree" in cases:
            tree.run(report, backend, rounds, seconds)
        if "list" in cases:
            listing.run(report, backend, rounds=rounds)
        rates = {"headroom": headroom.run, "pods": pods.run, "totals": totals.run, "minimums": minimums.run}
        rates["hours"] = hours.run
        for name, case in rates.items():
            if name in cases:
                case(report, backend, rounds=rounds, seconds=seconds)
        if "million" in cases:
            million.run(report, backend, count=rows, rounds=rounds, seconds=seconds)
    if "trace" in cases and "sqlite" in backends:
        trace.run(report, arguments.trace, rounds=rounds)


if __name__ == "__main__":
    main()
