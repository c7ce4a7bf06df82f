# SPDX-License-Identifier: Apache-2.0
"""The data types of accelerator-hours: budgets and reports. An hour is that of one device."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Final, NamedTuple

from cyborg_quota.types import Constraint, Counters, Notice, UsageKey
from cyborg_quota.types.limits import EPOCH
from cyborg_quota.types.metrics import ProjectMetrics

HOUR: Final = 3600
"""Seconds."""

PERIODS: Final[dict[str, int]] = {"month": 1, "quarter": 3, "year": 12}
"""The periods of a budget, in months. They begin with the calendar's, in UTC."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """The hours that a project, with all below it, may use of a resource in each period.

    ``months``: the length of a period, of PERIODS; None: there is one period. ``starts``: the first month of the first
    period, as the number of months since January 2020; ``ends``: the first month after the last one; None: none.
    ``carry``: how many hours that were left in a period may be used in the next one, at most; hours that were carried
    are not carried again. ``enforce`` False: nothing is refused, there are notices only. ``notified_period``,
    ``notified_level``: the first month of the period in which a threshold was notified last, and this threshold, in
    percent; 0: none was since the budget was set.
    """

    project_id: str
    resource: str
    amount: int
    months: int | None
    starts: int
    ends: int | None = None
    carry: int = 0
    enforce: bool = True
    notified_period: int = dataclasses.field(default=0, compare=False)
    notified_level: int = dataclasses.field(default=0, compare=False)

    @property
    def key(self) -> UsageKey:
        """The usage row that it bounds."""
        return UsageKey(self.project_id, self.resource)

    def period(self, month: int) -> tuple[int, int] | None:
        """The first month of the period that contains this month, and the first one after it; None: there is none."""
        if self.months is None:
            is_within = self.starts <= month < (self.ends or 0)
            return (self.starts, self.ends or 0) if is_within else None
        begin = month - month % self.months
        return begin, begin + self.months


def _text(hours: float) -> str:
    """As in 1000 or 1000.5, never with an exponent."""
    return f"{hours:.1f}".removesuffix(".0")


class BudgetUse(NamedTuple):
    """What was used of a budget at one moment. Hours, and naive times in UTC.

    ``hours``: the amount, with what was ``carried``. ``spent`` and ``held`` (devices) are None if the context may not
    see them. ``hours_ahead``: for how many hours all that is held must be paid for.
    """

    hours: float
    spent: float | None
    held: int | None
    hours_ahead: int
    period_begins: datetime.datetime
    period_ends: datetime.datetime
    is_repeated: bool
    carried: float = 0.0

    @property
    def hidden(self) -> BudgetUse:
        """What users of projects below may see: the amount, but not what was carried, which is what was not used."""
        return self._replace(hours=self.hours - self.carried, carried=0.0, spent=None, held=None)

    def describe(self, requested: int) -> str:
        """Why an amount does not fit, in words."""
        hours = "hour" if self.hours_ahead == 1 else f"{self.hours_ahead} hours"
        spent = f"has not enough left of its {_text(self.hours)} hours for the next {hours}"
        if self.spent is not None and self.held is not None and self.left is not None:
            needed = (self.held + requested) * self.hours_ahead
            spent = (
                f"has spent {self.spent:.1f} of {_text(self.hours)} hours since {self.period_begins:%Y-%m-%d}; "
                f"{self.held} are held, and {requested} more need {needed:.1f} hours for the next {hours}; "
                f"{self.left:.1f} are left"
            )
        then = "The next period begins" if self.is_repeated else "The budget ends"
        return f"with all below it, {spent}. {then} {self.period_ends:%Y-%m-%dT%H:%MZ}."

    @property
    def left(self) -> float | None:
        """Negative if more was spent."""
        return None if self.spent is None else self.hours - self.spent


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetPeriod:
    """The present period of a budget, and what bounds the meter of its usage row until it ends.

    ``base``: the device-seconds of the meter at its begin, less corrections; ``carried``: device-seconds from the
    period before. ``begins``, ``ends``: naive times in UTC. ``ahead``: seconds.
    """

    budget: Budget
    base: int
    carried: int
    begins: datetime.datetime
    ends: datetime.datetime
    ahead: int

    @property
    def key(self) -> UsageKey:
        """The usage row that it bounds."""
        return self.budget.key

    @property
    def refuses(self) -> bool:
        return self.budget.enforce

    @property
    def at_most(self) -> int:
        """The device-seconds of the meter at which the budget is spent."""
        return self.base + self.budget.amount * HOUR + self.carried

    def use(self, counters: Counters, at: int) -> BudgetUse:
        """What is used at the second ``at``, by the counters of the usage row."""
        return BudgetUse(
            hours=self.budget.amount + self.carried / HOUR,
            spent=(counters.used_until(at) - self.base) / HOUR,
            held=counters.subtree,
            hours_ahead=self.ahead // HOUR,
            period_begins=self.begins,
            period_ends=self.ends,
            is_repeated=self.budget.months is not None,
            carried=self.carried / HOUR,
        )

    def seconds_left(self, counters: Counters, at: int) -> int | None:
        """In how many seconds the budget will be spent, if all that is held at the second ``at`` is held on.

        0: it is spent. None: not before the period ends.
        """
        left = max(0, self.at_most - counters.used_until(at))
        if left and not counters.subtree:
            return None
        seconds = left // (counters.subtree or 1)
        return None if at + seconds >= (self.ends - EPOCH).total_seconds() else seconds

    def constraint(self, counters: Mapping[UsageKey, Counters], at: int) -> Constraint:
        """The number of devices that may be held at this second, as a limit of the subtree."""
        row = counters.get(self.budget.key, Counters())
        limit = max(0, (self.at_most - row.used_until(at)) // self.ahead)
        return Constraint(self.budget.project_id, self.budget.resource, limit, "budget", budget=self.use(row, at))

    def shown_in(self, metrics: ProjectMetrics, row: Counters, at: int) -> ProjectMetrics:
        """The metrics of its row, with those of the budget."""
        use, left = self.use(row, at), self.seconds_left(row, at)
        return metrics._replace(budget_hours=use.hours, budget_spent_hours=use.spent, budget_seconds_left=left)


class BudgetNotice(Notice):
    """80 or 100 % of a budget are spent. ``limit`` (with what was carried), ``used``: hours of the present period."""

    BOUND = "budget"
    EVENT = "cyborg_quota.budget_threshold"
    SHOWN_BY = "`cyborg-quota budget list --above 80` shows"


class MonthlyUsage(NamedTuple):
    """The device-seconds of one project, resource and month. ``month``: its first day."""

    project_id: str
    resource: str
    month: datetime.date
    device_seconds: int

    @property
    def hours(self) -> float:
        return self.device_seconds / HOUR
