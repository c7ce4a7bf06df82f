# SPDX-License-Identifier: Apache-2.0
"""Accelerator-hours, the public interface: reports of what projects have used, and budgets."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.db import calendar, change_log, clock, meters, projects, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.hours import tables
from cyborg_quota.hours.enforcer import BudgetEnforcer
from cyborg_quota.ledger.enforcers import EnforcedSubject
from cyborg_quota.subject import admin_call
from cyborg_quota.types import (
    MAX_AMOUNT,
    Counters,
    Marker,
    RecordedChange,
    RecordedChanges,
    ResourceKey,
    UsageKey,
    in_pages,
)
from cyborg_quota.types.hours import (
    HOUR,
    PERIODS,
    Budget,
    BudgetNotice,
    BudgetPeriod,
    BudgetUse,
    MonthlyUsage,
)
from cyborg_quota.validation import Context

_NOTIFIED: Final = (80, 100)
"""The percentages of a budget that are notified."""
_ROWS_A_PAGE: Final = 500


class BudgetRecord(NamedTuple):
    """A budget and what is used of it. Times are naive UTC.

    ``use`` None: no period of it is going on. ``period_begins``, ``period_ends``: the present period, or the only one.
    ``lasts_until``: when the hours are spent if what is held stays; None: after the end of the period, or never.
    """

    budget: Budget
    use: BudgetUse | None
    period_begins: datetime.datetime
    period_ends: datetime.datetime
    lasts_until: datetime.datetime | None


class Hours(EnforcedSubject):
    """What projects have used, in hours of one device, and budgets: how much they may use in a period.

    A budget covers its project and all projects below it. Those of children may add up to more than that of the parent.
    When it is spent, nothing is taken away: new reserves and growing resizes are refused. Shared by threads.
    """

    _enforcer: BudgetEnforcer

    # --- budgets ---

    def set_budget(
        self,
        context: Context,
        hours: Mapping[str, int],
        project_id: str,
        *,
        every: str | None = None,
        start: datetime.date | None = None,
        until: datetime.date | None = None,
        carry: Mapping[str, int] | None = None,
        notify_only: bool = False,
        reason: str | None = None,
    ) -> list[BudgetRecord]:
        """Set budgets ({resource: hours in each period}) of a project. They replace those of the same resources.

        Nothing is carried into the period in which a budget is changed.

        ``every``: month (also if None), quarter or year, as of the calendar in UTC; or, with ``start`` and ``until``,
        one period: both are the first day of a month, and ``until`` is not part of it. ``carry``: see Budget.
        ``notify_only``: nothing is refused. An admin may set them; and who may set the limits of the project (policy
        rule cyborg_quota:limit:set), if its parent has a budget of the same resource. Raises NotAuthorized,
        UnknownResource, InvalidRequest, ReasonRequired.
        """
        named = validation.one_project(context, "set_budget", project_id, "a budget is that of a project")
        amounts = _amounts("A budget", hours)
        carried = _amounts("The carry", carry or {}, is_empty_permitted=True)
        if unknown := sorted(set(carried) - set(amounts)):
            raise exceptions.InvalidRequest(f"Hours of {unknown[0]} are carried, and it has no budget in this call.")
        months, starts, ends = _span(every, start, until)
        if carried and months is None:
            raise exceptions.InvalidRequest(
                "A budget of a single period has no next period to which hours are carried."
            )
        validation.refuse_unknown(amounts, self._resources)

        def work(connection: Connection) -> list[RecordedChange]:
            before = {budget.resource: budget for budget in tables.read(connection, [named], amounts)}
            now = calendar.month_of(clock.read_second(connection))
            if ends is not None and ends <= now:
                raise exceptions.InvalidRequest(f"The period is over: it ended on {until}.")
            begins = now - now % months if months else starts or 0
            changes = []
            for resource, amount in sorted(amounts.items()):
                old, carry_over = before.get(resource), carried.get(resource, 0)
                budget = Budget(named, resource, amount, months, begins, ends, carry_over, enforce=not notify_only)
                # (A changed budget begins anew: what was left before would be that of another amount.)
                if old is None or budget != (old if months is None else dataclasses.replace(old, starts=begins)):
                    tables.write(connection, budget)
                    values = None if old is None else tables.values_of(old), tables.values_of(budget)
                    changes.append(RecordedChange("set budget", named, resource, *values))
            return changes

        self._change(context, "set_budget", named, work, resources=amounts, reason=reason)
        return self._read([named], amounts)

    def adjust(
        self, context: Context, hours: Mapping[str, int], project_id: str, *, reason: str | None = None
    ) -> list[BudgetRecord]:
        """Add hours ({resource: number, negative or positive}) to what is spent of budgets in the present period.

        For example -12 for a node that failed. What is metered stays. Raises the errors of ``set_budget``, and
        BudgetNotFound.
        """
        named = validation.one_project(context, "adjust_budget", project_id, "a budget is that of a project")
        amounts = _amounts("A correction", hours, least=-MAX_AMOUNT)

        def work(connection: Connection) -> list[RecordedChange]:
            now = calendar.month_of(clock.read_second(connection))
            for budget in self._required(connection, named, amounts):
                if budget.period(now) is None:
                    raise exceptions.BudgetNotFound(named, budget.resource)
                tables.adjust(connection, budget.key, now, amounts[budget.resource] * HOUR)
            return [
                RecordedChange("adjust budget", named, resource, None, {"hours": added})
                for resource, added in sorted(amounts.items())
            ]

        self._change(context, "adjust_budget", named, work, resources=amounts, reason=reason)
        return self._read([named], amounts)

    def delete_budget(
        self,
        context: Context,
        project_id: str,
        resources: Sequence[str] | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        """Delete budgets of a project: those of ``resources``, or all. Raises BudgetNotFound, NotAuthorized."""
        named = validation.one_project(context, "delete_budget", project_id, "a budget is that of a project")
        names = None if resources is None else [validation.check_name("resource", name) for name in resources]

        def work(connection: Connection) -> list[RecordedChange]:
            return tables.delete(connection, named, self._required(connection, named, names))

        self._change(context, "delete_budget", named, work, resources=names, reason=reason)

    @staticmethod
    def _required(connection: Connection, project_id: str, resources: Any) -> list[Budget]:
        budgets = tables.read(connection, [project_id], resources)
        missing = sorted(set(resources or ()) - {budget.resource for budget in budgets})
        if missing or not budgets:
            raise exceptions.BudgetNotFound(project_id, missing[0] if missing else None)
        return budgets

    def _authorize(
        self, context: Context, call: str, project_id: str, resources: Collection[str] | None, connection: Connection
    ) -> None:
        """Raise NotAuthorized unless the context may change budgets of these resources (None: of all that it has)."""
        if validation.is_admin(context):
            return
        parent_id = projects.parent_of(connection, project_id)
        if parent_id is not None and self._authority.permits(policy.RULE, context, project_id, parent_id):
            own, bounded = (
                {budget.resource for budget in tables.read(connection, [name], resources)}
                for name in (project_id, parent_id)
            )
            if bounded.issuperset(own if resources is None else resources):
                return
        needs = f"a context that the policy rule {policy.RULE} allows, and a budget of the parent project"
        raise exceptions.NotAuthorized(call, needs)

    def _change(
        self,
        context: Context,
        call: str,
        project_id: str,
        work: Callable[[Connection], Sequence[RecordedChange]],
        *,
        resources: Collection[str] | None,
        reason: str | None,
    ) -> None:
        """Run ``work``, which returns the changes that it has made, and record these.

        The rows that they bound get other generations: no charge is granted by a budget that was replaced.
        """
        author = self._author(context, reason)
        authorize = functools.partial(self._authorize, context, call, project_id, resources)
        self._database.read(authorize)  # (who may not make the change must not wait for others, nor make them wait)

        def change(connection: Connection) -> tuple[None, RecordedChanges | None]:
            projects.lock_and_add(connection, [project_id])
            authorize(connection)
            return None, change_log.record(connection, author, work(connection))

        self._history.change(self._database, change)

    def show_budget(self, context: Context, project_id: str | None = None) -> list[BudgetRecord]:
        """The budgets of a project, and what is used of them. Raises NotAuthorized."""
        return self._read([validation.project_of(context, project_id)])

    @admin_call
    def list_budgets(
        self,
        context: Context,
        *,
        above: int | None = None,
        limit: int | None = None,
        after: Any = None,
        resource: str | None = None,
    ) -> list[BudgetRecord]:
        """The budgets of all projects, sorted.

        ``above``: those of which at least this percentage is spent. ``limit``, ``after``, ``resource``: a page, which
        begins after this position; see types.Marker.
        """
        page = validation.check_page(limit, after, resource)
        if above is not None:
            validation.integer(above, 0, MAX_AMOUNT, "The percentage must be a whole number of at least 0")
        return list(itertools.islice(self._all(above, page.after, page.resource), page.limit))

    def _all(
        self, above: int | None, after: Marker | None = None, resource: str | None = None
    ) -> Iterator[BudgetRecord]:
        """The rows of ``list_budgets``. Only a page of them is in memory."""
        resources = None if resource is None else [resource]
        rows = in_pages(
            lambda last: self._read(None, resources, last or after, _ROWS_A_PAGE),
            _ROWS_A_PAGE,
            lambda record: record.budget.key[:2],
        )
        return (
            record for record in rows if above is None or (record.use is not None and _percent(record.use) >= above)
        )

    def _read(
        self,
        project_ids: Sequence[str] | None,
        resources: Collection[str] | None = None,
        after: Marker | None = None,
        limit: int | None = None,
    ) -> list[BudgetRecord]:
        """Budgets, as ``tables.read`` selects them, and what is used of them."""

        def read(connection: Connection) -> list[BudgetRecord]:
            budgets = tables.read(connection, project_ids, resources, after, limit)
            periods = {
                period.budget.key: period for period in tables.periods(connection, budgets, self._enforcer.ahead)[0]
            }
            keys = [ResourceKey(name) for name in sorted({budget.resource for budget in budgets})]
            rows = usages.read(connection, {budget.project_id for budget in budgets}, keys)
            at = clock.read_second(connection)
            return [
                _record(budget, periods.get(budget.key), rows.get(budget.key, Counters()), at) for budget in budgets
            ]

        return self._untimed.read(read)

    @admin_call
    def notices(self, context: Context) -> list[BudgetNotice]:
        """The budgets that have reached a threshold (80 or 100 %) since the last call, by any host.

        Each threshold is returned once in a period, on one host; once more after the budget was set again.
        """
        notices = []
        for budget, use, *_ in self._all(_NOTIFIED[0]):
            assert use is not None and use.spent, "a percentage of it is spent"
            level = max(threshold for threshold in _NOTIFIED if _percent(use) >= threshold)
            period, last = calendar.month_number(use.period_begins), (budget.notified_period, budget.notified_level)
            claim = functools.partial(tables.claim_notified, key=budget.key)
            # (A period that has ended, by the clock of another node, is not notified again.)
            if (period, level) > last and self._database.claim(claim, last, (period, level)):
                before = last[1] if last[0] == period else 0
                notices.append(BudgetNotice(*budget.key[:2], use.hours, round(use.spent, 1), before, level))
        return notices

    # --- the report ---

    def report(
        self,
        context: Context,
        start: datetime.date | None = None,
        until: datetime.date | None = None,
        project_id: str | None = None,
        *,
        tree: bool = False,
        limit: int | None = None,
        after: tuple[str, str, datetime.date] | None = None,
    ) -> list[MonthlyUsage]:
        """What each project has used of each resource in each month, with all that was below it; without zeros.

        Sorted as the database sorts names; of a tree, parents are first. ``start``, ``until``: days of the first and of
        the last month (None: the present one, which counts until now). For an admin only: ``project_id`` None (all
        projects, also those that were removed), and ``tree`` (also the projects that are below it now). ``limit``,
        ``after``: the maximum number of rows, and the last row of the page before.
        Raises NotAuthorized, InvalidRequest, MarkerNotFound.
        """
        if project_id is None or tree:
            validation.admin_only(context, "report_usage")
        named = None if project_id is None else validation.project_of(context, project_id)
        if start is None or until is None:
            present = calendar.date_of(calendar.month_of(self._database.read(clock.read_second)))
            start, until = (present if day is None else day for day in (start, until))
        _check_dates(start, until)
        if after is not None:
            owner, resource, month = after
            after = validation.check_name("marker", owner), validation.check_name("marker", resource), month
        months = range(calendar.month_number(start), calendar.month_number(until) + 1)
        if not months or months[0] < 0:
            raise exceptions.InvalidRequest(
                "The first month of a report must be 2020-01 or later, and not after the last month; these are "
                f"{start.isoformat()[:7]} and {until.isoformat()[:7]}. (Each is the present month by default.)"
            )
        maximum = validation.row_limit(limit)

        last = None if after is None else UsageKey(*after[:2])

        def rows(connection: Connection) -> Iterator[MonthlyUsage]:
            for keys in _keys(connection, named, last, tree=tree):
                used = _used(connection, keys, months)
                yield from (row for row in used if after is None or row[:2] != after[:2] or row.month > after[2])

        return self._untimed.read(lambda connection: list(itertools.islice(rows(connection), maximum)))


def _keys(
    connection: Connection, top: str | None, last: UsageKey | None, *, tree: bool
) -> Iterator[Sequence[UsageKey]]:
    """The usage rows of a report from ``last`` on (there may be later months of it), in lists that are not empty.

    A tree is read as far as its rows are asked for.
    """
    if top is None or not tree:
        if last is not None and top in (None, last.project_id):
            yield [last]
        yield from _pages(connection, None if top is None else [top], last)
        return
    position, has_more = None if last is None else last.project_id, True
    while has_more:
        page, has_more = projects.subtree_page(connection, top, _ROWS_A_PAGE, position)
        if last is not None and last.project_id == position:  # (it is in this tree: otherwise, MarkerNotFound)
            yield [last]
            yield from _pages(connection, [position], last)
        order = {project_id: index for index, (_, project_id) in enumerate(page)}
        found = itertools.chain.from_iterable(_pages(connection, order, None))
        if keys := sorted(found, key=lambda key: order[key.project_id]):
            yield keys
        position = page[-1][1] if page else None


def _pages(
    connection: Connection, project_ids: Collection[str] | None, after: UsageKey | None
) -> Iterator[list[UsageKey]]:
    while keys := meters.usage_keys(connection, project_ids, after, _ROWS_A_PAGE):
        yield keys
        after = keys[-1]


def _used(connection: Connection, keys: Sequence[UsageKey], months: Sequence[int]) -> list[MonthlyUsage]:
    used, at = meters.used_before(connection, keys), clock.read_second(connection)
    now = calendar.month_of(at)
    rows = usages.read(connection, {key.project_id for key in keys}, [ResourceKey(key.resource) for key in keys])
    monthly = []
    for key in keys:
        for month in range(months[0], min(months[-1], now) + 1):
            end = used(key, month + 1) if month < now else rows.get(key, Counters()).used_until(at)
            if amount := end - used(key, month):
                monthly.append(MonthlyUsage(*key[:2], calendar.date_of(month).date(), amount))
    return monthly


def _record(budget: Budget, period: BudgetPeriod | None, counters: Counters, at: int) -> BudgetRecord:
    if period is None:
        return BudgetRecord(budget, None, calendar.date_of(budget.starts), calendar.date_of(budget.ends or 0), None)
    use, seconds = period.use(counters, at), period.seconds_left(counters, at)
    lasts_until = None if seconds is None or not counters.subtree else calendar.time_of(at + seconds)
    return BudgetRecord(budget, use, use.period_begins, use.period_ends, lasts_until)


def _percent(use: BudgetUse) -> float:
    if not use.hours:
        return 100.0 if (use.spent or 0) > 0 else 0.0
    return 100 * (use.spent or 0) / use.hours


def _amounts(
    what: str, hours: Mapping[str, int], *, least: int = 0, is_empty_permitted: bool = False
) -> dict[str, int]:
    if not isinstance(hours, Mapping) or not (hours or is_empty_permitted):
        raise exceptions.InvalidRequest(f"{what} must map resources to hours, and name at least one.")
    return {
        validation.check_name("resource", name): validation.integer(
            number,
            least,
            MAX_AMOUNT,
            f"{what} of {name} must be a whole number of hours from {least} to {MAX_AMOUNT}",
        )
        for name, number in hours.items()
    }


def _span(
    every: str | None, start: datetime.date | None, until: datetime.date | None
) -> tuple[int | None, int | None, int | None]:
    """The length of a period in months, and the first month and the one after the last one of a single period."""
    if start is None and until is None:
        every = "month" if every is None else every
        if not isinstance(every, str) or every not in PERIODS:
            raise exceptions.InvalidRequest(f"A period is {', '.join(PERIODS)}, not {validation.text_of(every)}.")
        return PERIODS[every], None, None
    if every is not None:
        raise exceptions.InvalidRequest(f"A single period has a start and an end, and no {validation.text_of(every)}.")
    if start is None or until is None:
        raise exceptions.InvalidRequest(f"A single period needs its start and its end; only {start or until} is given.")
    _check_dates(start, until)
    if wrong := [day for day in (start, until) if day.day != 1]:
        raise exceptions.InvalidRequest(f"A period begins and ends with the first day of a month, not {wrong[0]}.")
    starts, ends = calendar.month_number(start), calendar.month_number(until)
    if not 0 <= starts < ends:
        raise exceptions.InvalidRequest(
            f"A period must end after it begins, and begin in 2020 or later: {start} to {until}."
        )
    return None, starts, ends


def _check_dates(*days: object) -> None:
    for day in days:
        if not isinstance(day, datetime.date):
            raise exceptions.InvalidRequest(f"A month is given by a date in it, not by {validation.text_of(day)}.")
