# SPDX-License-Identifier: Apache-2.0
"""capacity report: for each resource what exists and what is promised, and which projects could not be served."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.capacity_types import ResourceReport
from cyborg_quota.cmd import base, formats

COLUMNS = (
    "resource", "providers", "total", "reserved", "capacity", "claimed", "used_elsewhere", "free", "largest_free",
    "promised", "oversubscription", "not_served",
)  # fmt: skip
PROJECT_COLUMNS = ("resource", "project_id", "limit", "held", "remaining", "free", "missing")


class Report(base.Lister):
    """Show what exists of each resource, what of it is in use, and what is promised.

    total and reserved are the sums over all providers; capacity is what they can
    give out; claimed is taken by reservations that name a provider; used_elsewhere
    is taken by others, as Placement reports it; free is the rest, and largest_free
    is the largest amount that is free at one provider. promised is the sum of the limits at the
    top of the project tree, and oversubscription is promised / capacity.
    not_served is the number of those projects whose limit still permits more than
    is free. With --projects, lists these projects instead, the largest missing
    amount first; a project without a limit (unlimited) is not listed.
    """

    example = (
        "cyborg-quota capacity report --chart capacity.svg\n  cyborg-quota capacity report --projects --names -f csv"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--projects", action="store_true", help="list the projects that could not be served today")
        parser.add_argument(
            "--chart",
            metavar="FILE",
            help="draw capacity, use and promises as FILE.png or FILE.svg (needs cyborg_quota[chart])",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.chart is not None:
            from cyborg_quota.replay import capacity_chart, charts

            charts.require(parsed_args.chart)
        reports = self.engine.capacity.report(self.context)
        if parsed_args.chart is not None:
            capacity_chart.draw(parsed_args.chart, reports)
        if parsed_args.projects:
            return PROJECT_COLUMNS, [
                (one.resource, one.project_id, one.limit, one.held, one.remaining, report.free, one.missing)
                for report in reports
                for one in report.not_served
            ]
        return COLUMNS, [_values(report) for report in reports]


def _values(report: ResourceReport) -> tuple[Any, ...]:
    return (
        report.resource,
        report.providers,
        report.total,
        report.reserved,
        report.capacity,
        report.used,
        report.used_elsewhere,
        report.free,
        report.largest_free,
        formats.Limit(report.promised),
        formats.Optional(report.oversubscription),
        len(report.not_served),
    )
