# SPDX-License-Identifier: Apache-2.0
"""The two transactions of an attach, reserve and settle, each at once (see scripts.py): rows and counters together.

Each does the common case, and answers False for all others, having done nothing. The ordinary way, in several
statements, takes those, and decides what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import inserting, reservations, usages
from cyborg_quota.db.inserting import NewReservation
from cyborg_quota.db.models import reservations as table
from cyborg_quota.db.scripts import Script, Step, lets_go
from cyborg_quota.db.usages import Change, Shape
from cyborg_quota.types import RESERVED, State

_row = table.c
_MOST_ROWS: Final = 16
_MOST_CHANGES: Final = 8


def reserve(connection: sa.Connection, rows: Sequence[NewReservation], changes: Sequence[Change]) -> bool:
    """Insert reservations in flight, of one project and life, and charge their usage rows, in lock order.

    Raises DBDuplicateEntry where a UUID or a live claim of a consumer is in the way.
    """
    if not 0 < len(rows) <= _MOST_ROWS or not 0 < len(changes) <= _MOST_CHANGES:
        return False
    first = rows[0]
    parameters: dict[str, Any] = {"b_project": first.project_id, "b_life": first.life_microseconds}
    has_consumers = inserting.add_own(parameters, rows)
    shapes = _add(parameters, changes)
    return _reserving(len(rows), has_consumers, shapes)(connection, parameters, changes[-1].node.usage_id)


def end_flight(
    connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
) -> bool:
    """Commit or roll back reservations that are in flight and in time, and count that, in lock order."""
    if not 0 < len(uuids) <= _MOST_ROWS or not 0 < len(changes) <= _MOST_CHANGES:
        return False
    parameters: dict[str, Any] = {"b_grace": grace}
    for index, uuid in enumerate(sorted(uuids)):
        parameters[f"b_{index}"] = uuid
    shapes = _add(parameters, changes)
    return _ending(len(uuids), after, shapes)(connection, parameters, changes[-1].node.usage_id)


def _add(parameters: dict[str, Any], changes: Sequence[Change]) -> tuple[Shape, ...]:
    """Add the changes' parameters; their shapes."""
    shapes = []
    for index, change in enumerate(changes):
        parameters.update(usages.arguments(change, f"_{index}"))
        shapes.append(usages.shape_of(change))
    return tuple(shapes)


@functools.lru_cache(maxsize=256)
def _reserving(size: int, has_consumers: bool, shapes: tuple[Shape, ...]) -> Script:
    shared = inserting.shared_values(sa.literal_column(f"'{RESERVED}'"))
    rows = [{**shared, **inserting.own_values(index)} for index in range(size)]

    def block() -> tuple[sa.Select[Any] | None, Sequence[Step]]:
        insert = sa.insert(table).values(rows if size > 1 else rows[0])
        return inserting.holders(size) if has_consumers else None, [(insert, size), *_charges(shapes)]

    def single() -> sa.Executable | None:
        """WITH charged AS (UPDATE quota_usages ...), made AS (INSERT INTO reservations SELECT ... FROM charged) ..."""
        if len(shapes) > 1:
            return None
        update = usages.charging(shapes[0], "_0")
        if has_consumers:
            update = update.where(*[inserting.holds_one(index).is_(None) for index in range(size)])
        charged = update.returning(lets_go(usages.is_unmoved(shapes[0], "_0")).label("lets_go")).cte("charged")
        selects = [sa.select(*row.values()).select_from(charged) for row in rows]
        query: Any = sa.union_all(*selects) if size > 1 else selects[0]
        made = sa.insert(table).from_select(list(rows[0]), query).cte("made")
        done = sa.select().select_from(charged)
        return sa.union_all(done, done.where(charged.c.lets_go)).add_cte(made)

    return Script(block, single)


@functools.lru_cache(maxsize=256)
def _ending(size: int, after: State, shapes: tuple[Shape, ...]) -> Script:
    def block() -> tuple[None, Sequence[Step]]:
        return None, [(reservations.ending_flight(size, after), size), *_charges(shapes)]

    def single() -> sa.Executable | None:
        """WITH ended AS (UPDATE reservations ...), counted AS (UPDATE quota_usages ... AND all ended) ...

        Where reservations ended, and their row refuses its part (it has drifted, or moved), 1 / 0 undoes it all.
        """
        if len(shapes) > 1:
            return None
        ended = reservations.ending_flight(size, after).returning(_row.id).cte("ended")
        how_many = sa.select(sa.func.count()).select_from(ended).scalar_subquery()
        update = usages.charging(shapes[0], "_0").where(how_many == sa.literal_column(str(size)))
        counted = update.returning(lets_go(usages.is_unmoved(shapes[0], "_0")).label("lets_go")).cte("counted")
        how_many_counted = sa.select(sa.func.count()).select_from(counted).scalar_subquery()
        one: sa.ColumnElement[int] = sa.literal_column("1")
        zero: sa.ColumnElement[int] = sa.literal_column("0")
        done = sa.select().where(sa.case((how_many == zero, zero), else_=one.op("/")(how_many_counted)) == one)
        return sa.union_all(done, sa.select().select_from(counted).where(counted.c.lets_go))

    return Script(block, single)


def _charges(shapes: Sequence[Shape]) -> list[Step]:
    """MariaDB's: several rows are one statement, as everywhere on it (usages.goes_together), so in the same order."""
    if len(shapes) > 1:
        return [(usages.charging_together(len(shapes)), len(shapes))]
    return [(usages.charging(shapes[0], "_0"), 1)]
