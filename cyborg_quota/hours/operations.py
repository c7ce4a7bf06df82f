# SPDX-License-Identifier: Apache-2.0
"""The operations on budgets, and the report of what projects have used."""

from __future__ import annotations

import argparse
import datetime
from operator import attrgetter
from typing import Any, Final

from cyborg_quota import exceptions, policy
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.operations import (
    COUNT,
    INTEGER,
    NAME,
    TIME,
    Argument,
    Column,
    OneOf,
    Operation,
    Route,
    Schema,
    columns,
    described,
    nullable,
)
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.types.hours import PERIODS, MonthlyUsage

_NUMBER: Final[Schema] = {"type": "number"}


# --- budgets ---


_LASTS: Final = "When the hours are spent if what is held stays; null: in no time of this period, or nothing is held."


_BUDGET: Final = (
    Column("project_id", value=attrgetter("budget.project_id"), schema=NAME),
    Column("resource", value=attrgetter("budget.resource"), schema=NAME),
    Column(
        "hours",
        value=lambda record: record.budget.amount if record.use is None else round(record.use.hours, 4),
        schema=described(_NUMBER, "With what was carried from the period before."),
    ),
    Column(
        "spent",
        formats.Optional,
        lambda record: None if record.use is None else round(record.use.spent, 4),
        described(nullable(_NUMBER), "null: no period is going on."),
    ),
    Column(
        "left",
        formats.Optional,
        lambda record: None if record.use is None else round(record.use.left, 4),
        described(nullable(_NUMBER), "Negative if more was spent."),
    ),
    Column("held", formats.Optional, lambda record: record.use and record.use.held, nullable(COUNT)),
    Column(
        "lasts_until",
        formats.timestamp,
        schema=described(nullable(TIME), _LASTS),
        text=lambda row: formats.brief(row["lasts_until"]),
    ),
    Column("period_begins", formats.timestamp, schema=TIME, text=lambda row: str(row["period_begins"])[:10]),
    Column("period_ends", formats.timestamp, schema=TIME, text=lambda row: str(row["period_ends"])[:10]),
    Column(
        "enforce",
        value=lambda record: "refuse" if record.budget.enforce else "notify",
        schema={"enum": ["refuse", "notify"]},
    ),
    Column(
        "every",
        formats.Optional,
        lambda record: next((name for name, months in PERIODS.items() if months == record.budget.months), None),
        described(nullable({"enum": list(PERIODS)}), "null: it has one period."),
    ),
    Column("carry", value=attrgetter("budget.carry"), schema=COUNT),
)
_LONG: Final = ("every", "carry")
_PATH: Final = "/v2/quotas/{project_id}/budgets"
_DAY: Final[dict[str, Any]] = {
    "type": arguments.day,
    "load": arguments.day,
    "metavar": "DAY",
    "schema": {"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-01$"},
}


def _text_of_month(text: str) -> str:
    """Check a month. Returns the text, which the client sends."""
    arguments.month(text)
    return text


_MONTH: Final[dict[str, Any]] = {
    "type": _text_of_month,
    "load": _text_of_month,
    "metavar": "MONTH",
    "schema": {"type": "string", "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])$"},
}


def _amounts(name: str, text: str, *, least: int = 0, **details: Any) -> Argument:
    """An option for hours by resource, which can be repeated."""
    return Argument(
        name,
        action="append",
        type=arguments.amount,
        metavar="RESOURCE=HOURS",
        collect=lambda given: arguments.once_each(given) or None,
        schema=arguments.by_resource({"type": "integer", "minimum": least, "maximum": MAX_AMOUNT}),
        help=text,
        **details,
    )


# --- the report ---


def _month(row: MonthlyUsage) -> str:
    return f"{row.month:%Y-%m}"


_USAGE: Final = (
    *columns("project_id", "resource", schema=NAME),
    Column("month", value=_month, schema=_MONTH["schema"]),
    Column("hours", value=lambda row: round(row.hours, 4), schema=_NUMBER),
    Column("device_seconds", schema=INTEGER),
)


def _report(
    caller: Any,
    start: str | None,
    until: str | None,
    project_id: str | None,
    after: list[str] | None,
    *,
    tree: bool,
    limit: int | None,
) -> Any:
    if not caller.is_host:
        project_id = caller.project_of_list(policy.GET, policy.REPORT)
    if tree and project_id is None:
        raise exceptions.InvalidRequest("A report of a tree needs a project.")
    if tree and not caller.is_host and not caller.allows(policy.DESCENDANTS, project_id):
        raise exceptions.NotAuthorized("report_usage", f"the policy rule {policy.DESCENDANTS}")
    months = (None if text is None else arguments.month(text) for text in (start, until))
    return caller.engine.hours.report(
        caller.elevated, *months, project_id, tree=tree, limit=limit, after=_position(after)
    )


def _position(words: list[str] | None) -> tuple[str, str, datetime.date] | None:
    """The row that a marker names."""
    if words is None:
        return None
    try:
        project_id, resource, month = words
        return project_id, resource, arguments.month(month)
    except (ValueError, argparse.ArgumentTypeError):
        raise exceptions.InvalidRequest(
            "The marker is the project, the resource and the month of a row, "
            f"not {arguments.abbreviated(' '.join(words))}."
        ) from None


OPERATIONS: Final = (
    Operation(
        """Set how many accelerator-hours a project may use in each period.

        The budget covers the project and all projects below it. It replaces the one of the
        same resource; what was spent in the period counts. An hour is that of one device,
        from the reserve until the claim ends. When the budget is spent, new reserves are
        refused, and what runs is not ended. Without --every and --from, a period is a month
        of the calendar, in UTC.
        """,
        "cyborg-quota budget set --hours gpu=1000 physics\n"
        "  cyborg-quota budget set --hours gpu=500 --from 2026-10-01 --until 2027-04-01 physics",
        lambda caller, project_id, hours, **given: caller.engine.hours.set_budget(
            caller.context, hours, project_id, **given
        ),
        (
            _amounts("--hours", "the hours of a resource in each period, as in gpu=1000", required=True),
            OneOf(
                Argument("--every", choices=tuple(PERIODS), help="the period (default: month; not with --from)"),
                Argument(
                    "--from",
                    rest="from",
                    dest="start",
                    help="with --until: there is one period, which begins on this first day of a month",
                    **_DAY,
                ),
            ),
            Argument("--until", help="with --from: the first day of the month after the period", **_DAY),
            _amounts("--carry", "how many hours that are left can be used in the next period, at most"),
            Argument("--notify-only", action="store_true", help="refuse nothing, and only send notices"),
            arguments.FORCE_PROJECT,
            arguments.REASON,
            arguments.PROJECT,
        ),
        _BUDGET,
        words="budget set",
        route=Route("PUT", _PATH, policy.RULE, "budgets", "Budget", errors=(409,)),
        long=_LONG,
        noun="budget",
    ),
    Operation(
        """List the budgets of all projects, and what is spent of them.

        hours: the budget, with what was carried from the period before. held: the devices
        that the project and all projects below it hold. lasts_until: when the hours are spent if these
        stay held; empty if the period ends first.
        """,
        "cyborg-quota budget list --above 80",
        lambda caller, after, **given: caller.engine.hours.list_budgets(
            caller.elevated, after=paging.position(after, None), **given
        ),
        (
            Argument(
                "--above",
                type=arguments.at_least_zero,
                metavar="PERCENT",
                help="only those of which at least this percentage is spent",
            ),
            *paging.paging(),
        ),
        _BUDGET,
        words="budget list",
        route=Route(
            "GET",
            "/v2/quota_budgets",
            policy.LIST,
            "budgets",
            "Budget",
            lambda record: paging.in_one_word((record.budget.project_id, record.budget.resource)),
        ),
        long=_LONG,
    ),
    Operation(
        "Show the budgets of a project, and what is spent of them (see `budget list`).",
        "cyborg-quota budget show physics",
        lambda caller, project_id, **page: paging.page(
            caller.engine.hours.show_budget(caller.elevated, project_id),
            lambda record: (record.budget.resource, record.budget.resource),
            **page,
        ),
        (arguments.PROJECT, *paging.BY_RESOURCE),
        _BUDGET,
        words="budget show",
        route=Route("GET", _PATH, policy.GET, "budgets", "Budget", attrgetter("budget.resource")),
        long=_LONG,
        noun="budget",
    ),
    Operation(
        """Add hours to what is spent of a budget in the present period; negative ones are given back.

        For example for a node that failed. What `usage report` shows stays.
        """,
        "cyborg-quota budget adjust --hours gpu=-12 --reason 'node failed' physics",
        lambda caller, project_id, hours, reason: caller.engine.hours.adjust(
            caller.context, hours, project_id, reason=reason
        ),
        (
            _amounts("--hours", "the hours of a resource, as in gpu=-12", least=-MAX_AMOUNT, required=True),
            arguments.REASON,
            arguments.PROJECT,
        ),
        _BUDGET,
        words="budget adjust",
        route=Route("POST", f"{_PATH}/adjust", policy.RULE, "budgets", "Budget"),
        long=_LONG,
        noun="budget",
    ),
    Operation(
        "Delete the budgets of a project, or that of one resource, with their corrections.",
        "cyborg-quota budget delete --resource gpu physics",
        lambda caller, project_id, resource, reason: caller.engine.hours.delete_budget(
            caller.context, project_id, None if resource is None else [resource], reason=reason
        ),
        (
            Argument("--resource", metavar="NAME", help="only the budget of this resource"),
            arguments.REASON,
            arguments.PROJECT,
        ),
        words="budget delete",
        route=Route("DELETE", _PATH, policy.RULE, status=204),
    ),
    Operation(
        """Report the accelerator-hours that projects have used, by resource and month.

        What a project has used includes what all projects below it used while they were below
        it: for all together, add the projects without a parent. Rows without usage are left
        out. Months are those of the calendar, in UTC; the present one counts until now.
        Without --project, it reports all projects, also removed ones (through the REST
        API, a user who is no admin gets those of the token's project).
        """,
        "cyborg-quota usage report --from 2026-01 --to 2026-03 -f csv\n"
        "  cyborg-quota usage report --from 2026-01 --project physics --tree",
        _report,
        (
            Argument("--from", rest="from", dest="start", help="the first month (default: the present one)", **_MONTH),
            Argument("--to", dest="until", rest="to", help="the last month (default: the present one)", **_MONTH),
            arguments.project(),
            Argument("--tree", action="store_true", help="also the projects that are below the project now"),
            paging.LIMIT,
            paging.marker(
                ("ID", "RESOURCE MONTH"),
                "start after the row of this project, resource and month, the last one of the previous page",
                nargs="+",
                schema=paging.WORDS,
                load=paging.in_words,
            ),
        ),
        _USAGE,
        words="usage report",
        route=Route(
            "GET",
            "/v2/quota_usage",
            None,
            "usage",
            "MonthlyUsage",
            lambda row: paging.in_one_word((row.project_id, row.resource, _month(row))),
            errors=(404,),
        ),
        noun="usage",
    ),
)
