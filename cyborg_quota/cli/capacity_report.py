# SPDX-License-Identifier: Apache-2.0
"""capacity show: for each resource what exists and what is promised, and which projects could not be served."""

from __future__ import annotations

import dataclasses
from typing import Final

from cyborg_quota.capacity.operations import REPORT
from cyborg_quota.cli import base
from cyborg_quota.surface.operations import Argument, Table, cells

PROJECT_COLUMNS: Final = cells("resource", "project_id", "limit", "held", "remaining", "free", "missing")


def _report(run: base.Run, chart: str | None, *, projects: bool) -> Table:
    if chart is not None:
        from cyborg_quota.replay import charts

        charts.require(chart)
    reports = run.engine.capacity.report(run.context)
    if chart is not None:
        charts.draw_capacity(chart, reports)
    if not projects:
        return Table(REPORT.columns or (), reports)
    rows = [
        (row.resource, row.project_id, row.limit, row.held, row.remaining, report.free, row.missing)
        for report in reports
        for row in report.not_served
    ]
    return Table(PROJECT_COLUMNS, rows)


Report = base.generate(
    dataclasses.replace(
        REPORT,
        summary=f"""{REPORT.summary.rstrip()} With --projects, lists these projects instead, the largest missing
    amount first; a project without a limit (unlimited) is not listed.
    """,
        example="cyborg-quota capacity show --chart capacity.svg\n"
        "  cyborg-quota capacity show --projects --names -f csv",
        call=_report,
        arguments=(
            Argument("--projects", action="store_true", help="list the projects that could not be served today"),
            Argument(
                "--chart",
                metavar="FILE",
                help="draw capacity, use and promises as FILE.png or FILE.svg (needs cyborg_quota[chart])",
            ),
        ),
    )
)
