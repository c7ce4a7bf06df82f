# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit in a tree of three levels, with and without a minimum of the leaf (without = 1)."""

from __future__ import annotations

import dataclasses

from benchmarks import harness
from benchmarks.report import Figure, Report
from benchmarks.tree import MOST, make_engine, new_ledger, worker
from tests import base

TREE = {"root": None, "middle": "root", "leaf": "middle"}
PROCESSES = (1, 4)


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with TREE, where the leaf has a minimum of ``gpu``, and none of ``fpga``."""
    url = new_ledger(backend, "minimums")
    engine = make_engine(url)
    for project_id, parent_id in TREE.items():
        engine.limits.add_project(base.ADMIN, project_id, parent_id)
    engine.limits.set_minimums(base.ADMIN, {"gpu": MOST // 2}, "leaf")
    engine.close()
    return url


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate with a minimum as a part of that without one, measured alternately."""
    url = make_cloud(backend)
    variants = {"without a minimum": worker(url, ["leaf"], ("fpga",)), "with a minimum": worker(url, ["leaf"])}
    for processes in PROCESSES if backend != "sqlite" else PROCESSES[:1]:
        figures = harness.compare(variants, processes, rounds, seconds, against="without a minimum")
        case = f"a minimum in a tree of three, {processes} processes"
        report.say(harness.table(f"{backend}, {case}", figures))
        report.details[f"{backend}, {case}"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
        report.add(Figure(backend, case, "rate, without = 1", figures["with a minimum"].ratio, must=0.5))
