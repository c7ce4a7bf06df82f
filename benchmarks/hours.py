# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit in a tree of three levels, with and without a budget at each level (without = 1)."""

from __future__ import annotations

import dataclasses

from benchmarks import harness
from benchmarks.report import Figure, Report
from benchmarks.tree import make_engine, new_ledger, worker
from cyborg_quota.hours.api import MAX_HOURS
from tests import base

TREE = {"root": None, "middle": "root", "leaf": "middle"}
PROCESSES = (1, 4)


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with TREE, where each project has a budget of ``gpu``, and none of ``fpga``."""
    url = new_ledger(backend, "hours")
    engine = make_engine(url)
    for project_id, parent_id in TREE.items():
        engine.limits.add_project(base.ADMIN, project_id, parent_id)
        engine.hours.set_budget(base.ADMIN, {"gpu": MAX_HOURS}, project_id)
    engine.close()
    return url


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate with budgets as a part of that without, measured alternately."""
    url = make_cloud(backend)
    variants = {"without budgets": worker(url, ["leaf"], ("fpga",)), "with budgets": worker(url, ["leaf"])}
    for processes in PROCESSES if backend != "sqlite" else PROCESSES[:1]:
        figures = harness.compare(variants, processes, rounds, seconds, against="without budgets")
        case = f"a budget at each of three levels, {processes} processes"
        report.say(harness.table(f"{backend}, {case}", figures))
        report.details[f"{backend}, {case}"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
        report.add(Figure(backend, case, "rate, without = 1", figures["with budgets"].ratio, must=0.85))
