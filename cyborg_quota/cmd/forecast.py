# SPDX-License-Identifier: Apache-2.0
"""usage forecast: when projects reach their limits, if the trend of the last days continues."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.db import open_database
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.cmd.simulate import present_limits
from cyborg_quota.types import TOTAL

if TYPE_CHECKING:
    from cyborg_quota.db.database import Database
    from cyborg_quota.limits.limit_set import LimitSet
    from cyborg_quota.replay import forecast as forecasts

COLUMNS = ("project_id", "resource", "held", "limit", "per_day", "reaches_limit_at", "earliest", "latest")
_DAY: Final = 86400
_MAX_DAYS: Final = 36500
_DEFAULT_DAYS: Final = 30


class Forecast(base.Lister):
    """Show when projects reach their limits, if the trend of the last days continues.

    Fits a straight line (ordinary least squares) to the largest amount that each
    project held on each of the last days. Prints a row for each project whose
    usage rises: per_day is the slope, reaches_limit_at is the time at which the
    line reaches the limit, and earliest and latest are its 95 % interval (latest
    is empty if it is after the time of --within). A project without a significant
    trend is not shown, nor is one that has reached its limit. limit is the one that
    applies at that time, with the overrides that are set now. Where limits include
    the descendants of a project, so does held. The row (total) is that of all projects
    together, which a total limit limits.
    """

    example = "cyborg-quota usage forecast --days 14 --resource gpu -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser)
        paging.add_paging(parser)
        parser.add_argument(
            "--days",
            type=_days,
            metavar="N",
            help=f"fit the last N days, at least 5 and at most [quota] purge_age (default: {_DEFAULT_DAYS}, or less if "
            "the history is shorter)",
        )
        parser.add_argument(
            "--within",
            type=_days,
            default=365,
            metavar="DAYS",
            help="only projects that reach their limit within this time (default: 365)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.replay import forecast

        self._check(parsed_args)
        limits = {
            (record.project_id, record.resource): [(0.0, record.usage.limit)]
            for record in self.engine.list_usages(self.context)
            if record.usage.limit is not None
        }
        stored = present_limits(self) if self.conf.limits.driver == "database" else None
        with open_database(self.conf, untimed=True) as database:
            ancestors = self._stored_ancestors(database) if stored is None else _ancestors(stored)
            peaks, now = forecast.read_peaks(database, self._days(parsed_args.days), ancestors)
        if stored is not None:
            limits.update(_with_overrides(stored, now))
            limits.update({(TOTAL, resource): [(0.0, limit)] for resource, limit in stored.totals.items()})
        selected = {
            key: series
            for key, series in peaks.items()
            if parsed_args.project in (None, key[0]) and parsed_args.resource in (None, key[1])
        }
        found = forecast.forecast(selected, limits, parsed_args.within)
        page = paging.page(parsed_args, found, lambda one: (one.project_id, one.resource))
        return COLUMNS, [_row(one, now) for one in page]

    def _check(self, parsed_args: argparse.Namespace) -> None:
        from cyborg_quota import validation
        from cyborg_quota.replay import forecast

        for field in ("project", "resource"):
            if getattr(parsed_args, field) is not None:
                validation.check_name(field, getattr(parsed_args, field))
        if parsed_args.days is not None and parsed_args.days < forecast.MIN_DAYS:
            raise BadUsage(f"--days {parsed_args.days}: a trend needs at least {forecast.MIN_DAYS} days.")

    def _stored_ancestors(self, database: Database) -> Callable[[str], Sequence[str]]:
        """As _ancestors, by the edges that the ledger stores: for a limit driver that reads its limits elsewhere."""
        from cyborg_quota.db import projects
        from cyborg_quota.limits import base as limit_drivers
        from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree

        driver = limit_drivers.driver_class(self.conf)
        if not driver.bounds_subtree:
            return lambda _project_id: ()
        edges = database.read(lambda connection: projects.edges_for_limits(connection, driver.origin))
        tree = LimitTree({}, {}, edges, InitialLimits())
        return lambda project_id: tree.path(project_id)[1:]

    def _days(self, days: int | None) -> int:
        """The number of days to use. Older reservations are deleted when they end, which looks like a rising trend."""
        stored = self.conf.quota.purge_age // _DAY
        if days is not None and days > stored:
            raise BadUsage(
                f"--days {days}: [quota] purge_age keeps the history of the last {stored} days. Raise it, or give less."
            )
        return min(stored, _DEFAULT_DAYS) if days is None else days


def _ancestors(limits: LimitSet) -> Callable[[str], Sequence[str]]:
    """What a change of a project also counts for: the projects whose limits include it, and the total of all."""
    totals = [TOTAL] if limits.totals else []
    if not limits.model.bounds_subtree:
        return lambda _project_id: totals
    return lambda project_id: [*limits.tree.path(project_id)[1:], *totals]


def _with_overrides(limits: LimitSet, now: datetime.datetime) -> dict[tuple[str, str], list[tuple[float, int]]]:
    """The limits of the projects that have overrides, from now on. Without a limit, every claim is refused: 0."""
    keys = {(one.project_id, one.resource) for one in limits.overrides}
    return {
        key: [((moment - now).total_seconds() / _DAY, limit or 0) for moment, limit in limits.steps(*key, now)]
        for key in keys
    }


def _row(one: forecasts.Forecast, now: datetime.datetime) -> tuple[Any, ...]:
    def moment(days: float | None) -> formats.Optional:
        return formats.timestamp(None if days is None else now + datetime.timedelta(days=days))

    times = (moment(one.reached), moment(one.earliest), moment(one.latest))
    project = formats.OptionalProject(one.project_id)
    return (project, one.resource, one.held, one.limit, round(one.per_day, 3), *times)


def _days(text: str) -> int:
    return arguments.integer(text, 1, _MAX_DAYS)
