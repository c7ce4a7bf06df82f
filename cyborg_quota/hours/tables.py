# SPDX-License-Identifier: Apache-2.0
"""The tables budgets and budget_adjustments, and the present periods of budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import calendar, clock, meters, paging, path_state
from cyborg_quota.db.database import Connection
from cyborg_quota.db.models import budget_adjustments, budgets
from cyborg_quota.db.prepared import put
from cyborg_quota.types import Marker, RecordedChange, UsageKey, grouped
from cyborg_quota.types.hours import HOUR, PERIODS, Budget, BudgetPeriod

_budget = budgets.c
_adjustment = budget_adjustments.c
_KEY: Final = ("project_id", "resource")
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Budget))
_BUDGET: Final = sa.select(*(_budget[name] for name in _FIELDS)).order_by(_budget.project_id, _budget.resource)
path_state.BOUNDED.append(budgets)


def read(
    connection: Connection,
    project_ids: Collection[str] | None,
    resources: Collection[str] | None = None,
    after: Marker | None = None,
    limit: int | None = None,
) -> list[Budget]:
    """The budgets of these projects (None: of all) and resources (None: of all), as the database sorts the names.

    ``after``: those after this position. ``limit``: at most so many.
    """
    selected = paging.among((_budget.project_id, project_ids), (_budget.resource, resources))
    query = _BUDGET.where(*selected, *paging.follows((_budget.project_id, _budget.resource), after)).limit(limit)
    return [Budget(**row) for row in connection.execute(query).mappings()]


def write(connection: Connection, budget: Budget) -> None:
    """Insert or change a budget. The transaction must be serialized with other changes of budgets."""
    values = dataclasses.asdict(budget)
    put(connection, budgets, {name: values.pop(name) for name in _KEY}, values)


def delete(connection: Connection, project_id: str, found: Sequence[Budget]) -> list[RecordedChange]:
    """Delete these budgets of a project, with their corrections. Returns the changes, for the history."""
    resources = [budget.resource for budget in found]
    for table in (budgets, budget_adjustments) if found else ():
        connection.execute(sa.delete(table).where(table.c.project_id == project_id, table.c.resource.in_(resources)))
    return [RecordedChange("delete budget", project_id, budget.resource, values_of(budget), None) for budget in found]


def values_of(budget: Budget) -> dict[str, Any]:
    """The values of a budget as the history has them."""
    return {
        "hours": budget.amount,
        "every": next((name for name, months in PERIODS.items() if months == budget.months), None),
        "from": f"{calendar.date_of(budget.starts):%Y-%m-%d}",
        "until": None if budget.ends is None else f"{calendar.date_of(budget.ends):%Y-%m-%d}",
        "carry": budget.carry,
        "enforce": "refuse" if budget.enforce else "notify",
    }


def adjust(connection: Connection, key: UsageKey, month: int, device_seconds: int) -> None:
    """Add a correction to those of this month. The transaction must be serialized with other changes of budgets."""
    before = _corrections(connection, [key])(key, month, month + 1)
    row = {"project_id": key.project_id, "resource": key.resource, "month": month}
    put(connection, budget_adjustments, row, {"device_seconds": before + device_seconds})


def claim_notified(connection: Connection, key: UsageKey, before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Record the period and the level that are notified. False: another host changed it first, and sends the notice."""
    is_row = _budget.project_id == key.project_id, _budget.resource == key.resource
    is_same = _budget.notified_period == before[0], _budget.notified_level == before[1]
    update = sa.update(budgets).where(*is_row, *is_same).values(notified_period=now[0], notified_level=now[1])
    return connection.execute(update).rowcount == 1


def periods(connection: Connection, found: Sequence[Budget], ahead: int) -> tuple[list[BudgetPeriod], int | None]:
    """The present periods of these budgets; and the second at which one begins or ends next (None: never)."""
    if not found:
        return [], None
    month = calendar.month_of(clock.read_second(connection))
    present = [(budget, span) for budget in found if (span := budget.period(month)) is not None]
    changes = [end for _, (_, end) in present] + [budget.starts for budget in found if budget.months is None]
    until = min((change for change in changes if change > month), default=None)
    keys = [budget.key for budget, _ in present]
    used, corrections = meters.used_before(connection, keys), _corrections(connection, keys)
    results = []
    for budget, (begin, end) in present:
        key, before, carried = budget.key, begin - (budget.months or 0), 0
        if budget.carry and before >= budget.starts:
            spent = used(key, begin) - used(key, before) + corrections(key, before, begin)
            carried = max(0, min(budget.amount * HOUR - spent, budget.carry * HOUR))
        base = used(key, begin) - corrections(key, begin, end)
        results.append(BudgetPeriod(budget, base, carried, calendar.date_of(begin), calendar.date_of(end), ahead))
    return results, None if until is None else calendar.second_of(until)


def _corrections(connection: Connection, keys: Iterable[UsageKey]) -> Callable[[UsageKey, int, int], int]:
    """A function: the device-seconds of the corrections of a budget, from a month until another."""
    names = sorted({key.project_id for key in keys})
    rows = connection.execute(sa.select(budget_adjustments).where(_adjustment.project_id.in_(names)))
    by_key = grouped(rows, lambda row: UsageKey(row.project_id, row.resource))
    return lambda key, begin, end: sum(row.device_seconds for row in by_key.get(key, ()) if begin <= row.month < end)
