# SPDX-License-Identifier: Apache-2.0
"""capacity report: for each resource what exists and what is promised, and which projects could not be served."""

from __future__ import annotations

from typing import Final

from cyborg_quota.cli import base, formats
from cyborg_quota.surface.operations import Argument, Column, Operation, Table, cells, columns

COLUMNS: Final = (
    *columns("resource", "providers", "total", "reserved", "capacity"),
    Column("claimed", value=lambda report: report.used),
    *columns("used_elsewhere", "free", "largest_free"),
    Column("promised", formats.Limit),
    Column("oversubscription", formats.Optional),
    Column("not_served", len),
)
PROJECT_COLUMNS: Final = cells("resource", "project_id", "limit", "held", "remaining", "free", "missing")


def _report(run: base.Run, chart: str | None, *, projects: bool) -> Table:
    if chart is not None:
        from cyborg_quota.replay import charts

        charts.require(chart)
    reports = run.engine.capacity.report(run.context)
    if chart is not None:
        charts.draw_capacity(chart, reports)
    if not projects:
        return Table(COLUMNS, reports)
    rows = [
        (one.resource, one.project_id, one.limit, one.held, one.remaining, report.free, one.missing)
        for report in reports
        for one in report.not_served
    ]
    return Table(PROJECT_COLUMNS, rows)


Report = base.generate(
    Operation(
        """Show what exists of each resource, what of it is in use, and what is promised.

        total and reserved are the sums over all providers; capacity is what they can
        give out; claimed is taken by reservations that name a provider; used_elsewhere
        is taken by others, as Placement reports it; free is the rest, and largest_free
        is the largest amount that is free at one provider. promised is the sum of the limits at the
        top of the project tree, and oversubscription is promised / capacity.
        not_served is the number of those projects whose limit still permits more than
        is free. With --projects, lists these projects instead, the largest missing
        amount first; a project without a limit (unlimited) is not listed.
        """,
        "cyborg-quota capacity report --chart capacity.svg\n  cyborg-quota capacity report --projects --names -f csv",
        _report,
        (
            Argument("--projects", action="store_true", help="list the projects that could not be served today"),
            Argument(
                "--chart",
                metavar="FILE",
                help="draw capacity, use and promises as FILE.png or FILE.svg (needs cyborg_quota[chart])",
            ),
        ),
        COLUMNS,
    )
)
