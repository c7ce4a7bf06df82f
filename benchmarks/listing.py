# SPDX-License-Identifier: Apache-2.0
"""Measures the usage list of 10,000 projects: its duration and its number of statements."""

from __future__ import annotations

import statistics
import time
from typing import Any

import sqlalchemy as sa

from benchmarks.report import Figure, Report
from benchmarks.seeding import Seeded
from tests import base, fixtures

PROJECTS = 10_000


def run(report: Report, backend: str, *, rounds: int) -> None:
    """Call list_usages of the engine, with a limit for each project."""
    limits = fixtures.DictLimits()
    limits.own[None, "gpu"] = 100
    engine = fixtures.make_engine(Seeded(backend, "list", PROJECTS).url, limits)
    engine.list_usages(base.ADMIN, "p0")  # connects
    statements: list[str] = []

    def record_statement(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", record_statement)
    seconds = []
    try:
        for _ in range(rounds):
            statements.clear()
            start = time.perf_counter()
            records = engine.list_usages(base.ADMIN)
            seconds.append(time.perf_counter() - start)
            assert len(records) == PROJECTS
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", record_statement)
    queries = [statement for statement in statements if not statement.startswith("BEGIN")]
    case = f"usage list of {PROJECTS:,} projects"
    report.add(Figure(backend, case, "queries", len(queries), "", 1, 1, is_most=True))
    report.add(Figure(backend, case, "time", statistics.median(seconds), " s", 1.0, is_most=True))
    engine.close()
