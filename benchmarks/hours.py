# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit in a tree of three levels, with and without a budget at each level (without = 1)."""

from __future__ import annotations

from benchmarks import tree
from benchmarks.report import Report
from cyborg_quota.types import MAX_AMOUNT
from tests import base

TREE = {"root": None, "middle": "root", "leaf": "middle"}


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with TREE, where each project has a budget of ``gpu``, and none of ``fpga``."""
    url = tree.new_ledger(backend, "hours")
    engine = tree.make_engine(url)
    for project_id, parent_id in TREE.items():
        engine.limits.add_project(base.ADMIN, project_id, parent_id)
        engine.hours.set_budget(base.ADMIN, {"gpu": MAX_AMOUNT}, project_id)
    engine.close()
    return url


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate with budgets as a part of that without, measured alternately."""
    tree.run_rule(
        report,
        backend,
        make_cloud(backend),
        "a budget at each of three levels",
        must=0.85,
        rounds=rounds,
        seconds=seconds,
    )
