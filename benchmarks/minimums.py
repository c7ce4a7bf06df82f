# SPDX-License-Identifier: Apache-2.0
"""Measures reserve + commit in a tree of three levels, with and without a minimum of the leaf (without = 1)."""

from __future__ import annotations

from benchmarks import tree
from benchmarks.report import Report
from tests import base

TREE = {"root": None, "middle": "root", "leaf": "middle"}


def make_cloud(backend: str) -> str:
    """Return the URL of a ledger with TREE, where the leaf has a minimum of ``gpu``, and none of ``fpga``."""
    url = tree.new_ledger(backend, "minimums")
    engine = tree.make_engine(url)
    for project_id, parent_id in TREE.items():
        engine.limits.add_project(base.ADMIN, project_id, parent_id)
    engine.limits.set_minimums(base.ADMIN, {"gpu": tree.MOST // 2}, "leaf")
    engine.close()
    return url


def run(report: Report, backend: str, *, rounds: int, seconds: float) -> None:
    """The rate with a minimum as a part of that without one, measured alternately."""
    tree.run_rule(
        report, backend, make_cloud(backend), "a minimum in a tree of three", must=0.5, rounds=rounds, seconds=seconds
    )
