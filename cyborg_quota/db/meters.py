# SPDX-License-Identifier: Apache-2.0
"""The meter of a usage row: how many device-seconds were used there, exactly, at any time.

A row with the counters ``subtree`` (S) and ``metered`` (C) has used ``C + S * t`` device-seconds until the second t.
Each change of S keeps this true: d devices from the second a on are ``S += d, C -= d * a``; their end at the second e
is ``S -= d, C += d * e``. The order of changes does not matter, and no row has a time of its last change. So waiting
for a lock, or clocks of several nodes that differ, cannot make it wrong.

Where each C comes from, so that it can be audited and repaired::

    metered = the sum of reservations.meter over its reservations + the sum of metered over its children + meter_base

``reservations.meter`` is ``-delta * a`` from the reserve on, and has ``+ delta * e`` added at the end. What is not in
these sums any more, is in ``meter_base``: a purge, a resize, a transfer and a move in the tree add it there.

Months: ``month_ends`` is the second at which the open month of the row ends. A charge after it matches no row. The
caller then writes ``C + S * B`` for each boundary B that has passed into usage_months, sets the next boundary, and
charges the row. What a row has used in a month is a difference of two boundaries; for those that are not written yet,
nothing has changed since, and ``C + S * B`` is computed. A row that was made after B has used nothing until then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import calendar, clock, dialects, paging
from cyborg_quota.db.models import quota_usages, usage_months
from cyborg_quota.db.prepared import ListStatement, any_of
from cyborg_quota.types import TOTAL, UsageKey, grouped

_usage = quota_usages.c
_month = usage_months.c
_NAMES = ("project_id", "pod", "resource", "month", "device_seconds")
_VALUES: dict[str, sa.BindParameter[Any]] = {name: sa.bindparam(f"b_{name}") for name in _NAMES}


def close_months(connection: sa.Connection, usage_ids: Sequence[int], at: int) -> bool:
    """Lock those of these rows whose month has ended, and write their months. False: there are none."""
    dialect = dialects.of(connection)
    rows = _ended(dialect).rows(connection, usage_ids, {clock.AT: at})
    for row in rows:
        for month in range(calendar.month_of(row.month_ends) - 1, calendar.month_of(at)):
            used = row.metered + row.subtree * calendar.second_of(month + 1)
            values = zip(_NAMES, (*row[1:4], month, used), strict=True)
            parameters = {f"b_{name}": value for name, value in values}
            dialect.insert_or_ignore(connection, usage_months, _VALUES, parameters)
    if rows:
        _OPEN.changed(connection, [row.id for row in rows], {"b_ends": calendar.end_of_month(at)})
    return bool(rows)


@functools.cache
def _ended(dialect: dialects.Dialect) -> ListStatement:
    columns = _usage.project_id, _usage.pod, _usage.resource, _usage.subtree, _usage.metered, _usage.month_ends
    query = sa.select(_usage.id, *columns).where(_usage.month_ends <= clock.at)
    return ListStatement(lambda size: dialect.lock_in_order(query.where(any_of(_usage.id, size)), _usage.id))


_OPEN = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(month_ends=sa.bindparam("b_ends", type_=sa.Integer))
    )
)


def usage_keys(
    connection: sa.Connection, project_ids: Collection[str] | None, after: UsageKey | None, limit: int
) -> list[UsageKey]:
    """The keys of the usage rows after this position, of these projects (None: of all), without pods.

    They are sorted as the database sorts them.
    """
    order, position = (_usage.project_id, _usage.resource), None if after is None else after[:2]
    selected = *paging.among((_usage.project_id, project_ids)), *paging.follows(order, position)
    query = sa.select(*order).where(_usage.pod == "", _usage.project_id != TOTAL, *selected)
    return [UsageKey(*row) for row in connection.execute(query.order_by(*order).limit(limit))]


def used_before(connection: sa.Connection, keys: Collection[UsageKey]) -> Callable[[UsageKey, int], int]:
    """A function: the device-seconds of a usage row until the begin of a month, by its number."""

    def is_one(columns: Any) -> tuple[sa.ColumnElement[bool], ...]:
        names = ({key.project_id for key in keys}, {key.resource for key in keys})
        return columns.project_id.in_(sorted(names[0])), columns.pod == "", columns.resource.in_(sorted(names[1]))

    columns = _usage.project_id, _usage.resource, _usage.subtree, _usage.metered, _usage.month_ends
    rows = {UsageKey(*row[:2]): row for row in connection.execute(sa.select(*columns).where(*is_one(_usage)))}
    months = connection.execute(sa.select(usage_months).where(*is_one(_month)))
    closed = grouped(months, lambda month_row: UsageKey(month_row.project_id, month_row.resource))

    def used(key: UsageKey, month: int) -> int:
        row, boundary = rows.get(key), calendar.second_of(month)
        if row is not None and row.month_ends <= boundary:
            return int(row.metered + row.subtree * boundary)
        before = [
            (month_row.month, month_row.device_seconds) for month_row in closed.get(key, ()) if month_row.month < month
        ]
        return int(max(before, default=(0, 0))[1])

    return used
