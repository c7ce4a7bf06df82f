# SPDX-License-Identifier: Apache-2.0
"""The tables budgets and budget_adjustments, and the present periods of budgets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, meters
from cyborg_quota.db.database import Connection
from cyborg_quota.db.models import budget_adjustments, budgets
from cyborg_quota.types import UsageKey, grouped
from cyborg_quota.types.hours import HOUR, Budget, BudgetPeriod

_budget = budgets.c
_adjustment = budget_adjustments.c
_KEY: Final = ("project_id", "resource")
_VALUES: Final = ("amount", "months", "starts", "ends", "carry")
_BUDGET: Final = sa.select(*(_budget[name] for name in (*_KEY, *_VALUES, "enforce")))


def read(
    connection: Connection, project_ids: Collection[str] | None, resources: Collection[str] | None = None
) -> list[Budget]:
    """The budgets of these projects (None: of all) and resources (None: of all), sorted."""
    query = _BUDGET
    for column, names in ((_budget.project_id, project_ids), (_budget.resource, resources)):
        if names is not None:
            query = query.where(column.in_(sorted(names)))
    rows = connection.execute(query)
    found = (Budget(**{**row, "enforce": bool(row["enforce"])}) for row in rows.mappings())
    return sorted(found, key=lambda one: one.key)


def write(connection: Connection, budget: Budget) -> None:
    """Insert or change a budget. Its thresholds are notified again."""
    values = {name: getattr(budget, name) for name in _VALUES} | {"enforce": int(budget.enforce)}
    update = sa.update(budgets).where(*_is(_budget, budget.key))
    update = update.values(notified_period=0, notified_level=0, updated_at=clock.utc_now())
    if not connection.execute(update.values(**values)).rowcount:
        names = {name: getattr(budget, name) for name in _KEY}
        connection.execute(sa.insert(budgets).values(**names, **values, created_at=clock.utc_now()))


def delete(connection: Connection, key: UsageKey) -> None:
    """Delete a budget, with its corrections."""
    for table in (budgets, budget_adjustments):
        connection.execute(sa.delete(table).where(*_is(table.c, key)))


def adjust(connection: Connection, key: UsageKey, month: int, device_seconds: int) -> None:
    """Add a correction to those of this month. The transaction must be serialized with other changes of budgets."""
    is_row = *_is(_adjustment, key), _adjustment.month == month
    added = _adjustment.device_seconds + device_seconds
    if not connection.execute(sa.update(budget_adjustments).where(*is_row).values(device_seconds=added)).rowcount:
        names = {name: getattr(key, name) for name in _KEY}
        values = {**names, "month": month, "device_seconds": device_seconds}
        connection.execute(sa.insert(budget_adjustments).values(values))


def notified(connection: Connection) -> dict[UsageKey, tuple[int, int]]:
    """The first month of a period, and the level (percent) that was notified last in it, of each budget.

    (0, 0): none since the budget was set.
    """
    query = sa.select(_budget.project_id, _budget.resource, _budget.notified_period, _budget.notified_level)
    return {UsageKey(*row[:2]): (row.notified_period, row.notified_level) for row in connection.execute(query)}


def claim_notified(connection: Connection, key: UsageKey, before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Record ``now``, as ``notified`` returns it. False: another host changed it first, and sends the notice."""
    is_row = (*_is(_budget, key), _budget.notified_period == before[0], _budget.notified_level == before[1])
    update = sa.update(budgets).where(*is_row).values(notified_period=now[0], notified_level=now[1])
    return connection.execute(update).rowcount == 1


def _is(columns: Any, key: UsageKey) -> tuple[sa.ColumnElement[bool], ...]:
    return columns.project_id == key.project_id, columns.resource == key.resource


def periods(connection: Connection, found: Sequence[Budget], ahead: int) -> tuple[list[BudgetPeriod], int | None]:
    """The present periods of these budgets; and the second at which one begins or ends next (None: never)."""
    if not found:
        return [], None
    month = clock.month_of(clock.read_second(connection))
    present = [(budget, span) for budget in found if (span := budget.period(month)) is not None]
    changes = [end for _, (_, end) in present] + [one.starts for one in found if one.months is None]
    until = min((one for one in changes if one > month), default=None)
    keys = [budget.key for budget, _ in present]
    used, corrected = meters.used_before(connection, keys), _corrections(connection, keys)

    def corrections(key: UsageKey, begin: int, end: int) -> int:
        return sum(seconds for month, seconds in corrected.get(key, ()) if begin <= month < end)

    results = []
    for budget, (begin, end) in present:
        key, before, carried = budget.key, begin - (budget.months or 0), 0
        if budget.carry and before >= budget.starts:
            spent = used(key, begin) - used(key, before) + corrections(key, before, begin)
            carried = max(0, min(budget.amount * HOUR - spent, budget.carry * HOUR))
        base = used(key, begin) - corrections(key, begin, end)
        results.append(BudgetPeriod(budget, base, carried, clock.date_of(begin), clock.date_of(end), ahead))
    return results, None if until is None else clock.second_of(until)


def _corrections(connection: Connection, keys: Iterable[UsageKey]) -> Mapping[UsageKey, list[tuple[int, int]]]:
    """The months and the device-seconds of the corrections of budgets."""
    names = sorted({key.project_id for key in keys})
    rows = connection.execute(sa.select(budget_adjustments).where(_adjustment.project_id.in_(names)))
    by_key = grouped(rows, lambda row: UsageKey(row.project_id, row.resource))
    return {key: [(row.month, row.device_seconds) for row in some] for key, some in by_key.items()}
