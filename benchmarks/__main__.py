# SPDX-License-Identifier: Apache-2.0
"""All benchmarks, one table, one JSON file.

tools/benchmark.sh                          on durable servers of its own, Cinder beside: about a quarter of an hour
tools/benchmark.sh --short                  the same with fewer rounds and smaller ledgers: about three minutes
tools/benchmark.sh --only attach            one case alone
"""

from __future__ import annotations

import argparse
import logging
import pathlib

from benchmarks import listing, million, speed, trace, tree
from benchmarks.report import Report
from tests import fixtures

CASES = ("attach", "million", "list", "trace", "tree")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmark.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be given again")
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="on this database; may be given again")
    parser.add_argument("--short", action="store_true", help="3 rounds of a second, ledgers of 100,000 rows")
    parser.add_argument("--rounds", type=int, help="how often each way has its turn (default: 5)")
    parser.add_argument("--seconds", type=float, help="how long a turn is (default: 3)")
    parser.add_argument("--rows", type=int, help="how large the large ledger is (default: 1000000)")
    parser.add_argument("--trace", type=pathlib.Path, help="the trace to replay (default: one of a like shape is made)")
    parser.add_argument("--cinder", help="the Python of an environment with cinder; without it, Cinder is left out")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    rounds = given.rounds or (3 if given.short else 5)
    seconds = given.seconds or (1.0 if given.short else 3.0)
    rows = given.rows or (100_000 if given.short else 1_000_000)
    cases = given.only or CASES
    backends = [one for one in given.on or fixtures.BACKENDS if fixtures.missing_server(one) is None]
    report = Report()
    for backend in backends:
        if backend != "sqlite" and "attach" in cases:
            speed.run(report, backend, given.cinder, rounds=rounds, seconds=seconds)
        if backend != "sqlite" and "tree" in cases:
            report.details[f"{backend}, tree"] = tree.run(backend, rounds, seconds)
        if "list" in cases:
            listing.run(report, backend, rounds=rounds)
        if "million" in cases:
            million.run(report, backend, count=rows, rounds=rounds, seconds=seconds)
    if "trace" in cases and "sqlite" in backends:
        trace.run(report, given.trace, rounds=rounds)
    print(report.table())
    if given.json is not None:
        report.write(given.json)


if __name__ == "__main__":
    main()
