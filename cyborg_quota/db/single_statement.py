# SPDX-License-Identifier: Apache-2.0
"""Reserve and settle, each as a single-statement transaction (prepared_transaction.py): reservations and counters.

Each function handles the common case only. In every other case it returns False and changes nothing. The
multi-statement transaction then handles the call and determines the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import inserting, prepared_transaction, reservations, usages
from cyborg_quota.db.inserting import NewReservation
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.models import reservations as table
from cyborg_quota.db.prepared_transaction import SingleStatement, Step
from cyborg_quota.db.usages import Change, ChargeShape
from cyborg_quota.types import RESERVED, State

_row = table.c
_OF_USAGE: Final = {
    "usage_id": quota_usages.c.id,
    "project_id": quota_usages.c.project_id,
    "resource": quota_usages.c.resource,
}
"""The columns of a new reservation that are copied from its usage row."""

_MAX_ROWS: Final = 16
_MAX_CHANGES: Final = 8


def reserve(connection: sa.Connection, rows: Sequence[NewReservation], changes: Sequence[Change]) -> bool:
    """Insert reservations in flight, of one project and one lifetime, and charge their usage rows in lock order.

    Raises DBDuplicateEntry if a UUID, or a live reservation of the same consumer, exists.
    """
    if not 0 < len(rows) <= _MAX_ROWS or not 0 < len(changes) <= _MAX_CHANGES:
        return False
    first = rows[0]
    parameters: dict[str, Any] = {"b_project": first.project_id, "b_life": first.ttl_microseconds}
    has_source = inserting.have_source(rows)
    has_consumers = inserting.add_row_values(parameters, rows, has_source=has_source)
    shapes = _add(parameters, changes)
    return _reserving(len(rows), has_consumers, shapes, has_source)(connection, parameters, changes[-1].node.usage_id)


def settle_in_flight(
    connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
) -> bool:
    """Commit or roll back reservations in flight that are not overdue, and update the counters in lock order."""
    if not 0 < len(uuids) <= _MAX_ROWS or not 0 < len(changes) <= _MAX_CHANGES:
        return False
    parameters: dict[str, Any] = {"b_grace": grace}
    for index, uuid in enumerate(sorted(uuids)):
        parameters[f"b_{index}"] = uuid
    shapes = _add(parameters, changes)
    return _ending(len(uuids), after, shapes)(connection, parameters, changes[-1].node.usage_id)


def _add(parameters: dict[str, Any], changes: Sequence[Change]) -> tuple[ChargeShape, ...]:
    """Add the parameters of the changes to ``parameters``. Returns the shapes of the changes."""
    shapes = []
    for index, change in enumerate(changes):
        parameters.update(usages.arguments(change, f"_{index}"))
        shapes.append(usages.charge_shape(change))
    return tuple(shapes)


@functools.lru_cache(maxsize=256)
def _reserving(
    size: int, has_consumers: bool, shapes: tuple[ChargeShape, ...], has_source: bool = False
) -> SingleStatement:
    shared = inserting.shared_values(sa.literal_column(f"'{RESERVED}'"))
    rows = [{**shared, **inserting.row_values(index, has_source=has_source)} for index in range(size)]

    def block() -> tuple[sa.Select[Any] | None, Sequence[Step]]:
        insert = sa.insert(table).values(rows if size > 1 else rows[0])
        return inserting.live_rows_of_consumers(size) if has_consumers else None, [(insert, size), *_charges(shapes)]

    def single(checks_contention: bool) -> sa.Executable | None:
        """WITH charged AS (UPDATE quota_usages ...) INSERT INTO reservations SELECT ... FROM charged"""
        if len(shapes) > 1:
            return None
        update = usages.charge_update(shapes[0], "_0")
        if has_consumers:
            update = update.where(*[inserting.live_row_of_consumer(index).is_(None) for index in range(size)])
        charged = update.returning(*_OF_USAGE.values(), _early_lock_release(shapes[0], checks_contention)).cte(
            "charged"
        )
        of_usage = {name: charged.c[column.name] for name, column in _OF_USAGE.items()}
        selects = [sa.select(*{**row, **of_usage}.values()).select_from(charged) for row in rows]
        query: Any = sa.union_all(*selects) if size > 1 else selects[0]
        insert = sa.insert(table).from_select(list(rows[0]), query).inline()
        return _with_contention_rows(charged, insert.cte("made")) if checks_contention else insert

    return SingleStatement(block, single)


@functools.lru_cache(maxsize=256)
def _ending(size: int, after: State, shapes: tuple[ChargeShape, ...]) -> SingleStatement:
    def block() -> tuple[None, Sequence[Step]]:
        return None, [(reservations.settle_in_flight_update(size, after), size), *_charges(shapes)]

    def single(checks_contention: bool) -> sa.Executable | None:
        """WITH ended AS (UPDATE reservations ...) UPDATE quota_usages ... WHERE all ended

        If only some reservations ended, or the usage row refuses the change (it has drifted, or its project has
        moved), a division by zero makes the statement fail, and PostgreSQL rolls it back. If the usage row does not
        exist, no reservation ends. (If somebody deletes the usage row by hand while this statement waits for it, the
        reservations end without being counted; the audit reports that.)
        """
        if len(shapes) > 1:
            return None
        ending = reservations.settle_in_flight_update(size, after).where(usages.exists("_0"))
        # (The last UPDATE returns no rows, because SQLAlchemy's processing of a result set costs time.)
        ended = ending.returning(_row.id if checks_contention else prepared_transaction.early_lock_release()).cte(
            "ended"
        )
        ended_count = sa.select(sa.func.count()).select_from(ended).scalar_subquery()
        update = usages.update_all_or_fail(shapes[0], "_0", ended_count, size)
        return (
            _with_contention_rows(update.returning(_early_lock_release(shapes[0], checks_contention)).cte("counted"))
            if checks_contention
            else update
        )

    return SingleStatement(block, single)


def _early_lock_release(shape: ChargeShape, checks_contention: bool) -> sa.ColumnElement[bool]:
    return prepared_transaction.early_lock_release(usages.row_unchanged(shape, "_0") if checks_contention else None)


def _with_contention_rows(changed: sa.CTE, *others: sa.CTE) -> sa.Executable:
    """Return one row without columns if the usage row was changed, and a second one if its lock was released early."""
    done = sa.select().select_from(changed)
    return sa.union_all(done, done.where(changed.c.lets_go)).add_cte(*others)


def _charges(shapes: Sequence[ChargeShape]) -> list[Step]:
    """MariaDB's steps: several rows in one statement, for the same lock order as usages.charges_in_one_statement."""
    if len(shapes) > 1:
        return [(usages.charge_update_many(len(shapes)), len(shapes))]
    return [(usages.charge_update(shapes[0], "_0"), 1)]
