# SPDX-License-Identifier: Apache-2.0
"""Bulk statements for batches of expiry, which change reservations of hundreds of projects at once.

The statements of a batch are not cached by size, so that their memory does not depend on the backlog.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from cyborg_quota.db import clock
from cyborg_quota.db.models import projects, quota_usages, reservations
from cyborg_quota.db.prepared import ListStatement, Statement, any_of
from cyborg_quota.db.projects import ProjectPath
from cyborg_quota.db.reservations import IS_OVERDUE, ended
from cyborg_quota.db.usages import Change, Node, in_lock_order
from cyborg_quota.types import EXPIRED

Overdue = tuple[int, str, str, int]
"""An overdue reservation: id, project_id, resource, delta."""

Place = tuple[datetime.datetime, int]
"""The position of a reservation in the order of expiry: its ``expire``, and its id."""

_row = reservations.c
_usage = quota_usages.c
_OVERDUE = sa.select(_row.id, _row.project_id, _row.resource, _row.delta).where(IS_OVERDUE)
_LIMIT = sa.bindparam("b_limit", type_=sa.Integer)
# (In index order. With the id as a second key, PostgreSQL might sort all overdue rows again for each batch.)
_NEXT = _OVERDUE.order_by(_row.expire).limit(_LIMIT)
_LONGEST = _OVERDUE.order_by(_row.expire, _row.id).limit(_LIMIT)
_BEHIND = _LONGEST.where(
    _row.expire >= sa.bindparam("b_expire", type_=_row.expire.type),
    sa.or_(
        _row.expire > sa.bindparam("b_expire", type_=_row.expire.type),
        _row.id > sa.bindparam("b_id", type_=_row.id.type),
    ),
)
_MOMENT = sa.select(_row.expire).where(
    _row.id == sa.bindparam("b_id"), _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger))
)
_OF_THESE = ListStatement(lambda size: _OVERDUE.where(any_of(_row.id, size)))
_EXPIRE = ListStatement(
    lambda size: (
        sa.update(reservations)
        .where(any_of(_row.id, size), IS_OVERDUE)
        .values(ended(sa.literal_column(f"'{EXPIRED}'")))
    )
)


def overdue(connection: sa.Connection, limit: int, grace: int) -> Sequence[Overdue]:
    """The next ``limit`` overdue reservations, longest overdue first."""
    return [tuple(row) for row in connection.execute(_NEXT, {"b_limit": limit, "b_grace": grace})]


def overdue_behind(
    connection: sa.Connection, place: Place | None, limit: int, grace: int
) -> tuple[Sequence[Any], Place | None]:
    """The next overdue reservations after ``place`` (None: from the first), and the position of the last one.

    Reading on from a position skips the rows that are being expired, and the dead index entries of expired ones.
    """
    parameters: dict[str, Any] = {"b_limit": limit, "b_grace": grace}
    if place is None:
        rows = connection.execute(_LONGEST, parameters).all()
    else:
        rows = connection.execute(_BEHIND, {**parameters, "b_expire": place[0], "b_id": place[1]}).all()
    # (Read the date of one row only: PyMySQL takes longer to parse a date than the rest of a row.)
    for row in reversed(rows):
        moment = connection.execute(_MOMENT, {"b_id": row.id, "b_grace": grace}).scalar()
        if moment is not None:  # None: the reservation was extended or ended concurrently
            return rows, (moment, row.id)
    return rows, place


def overdue_of(connection: sa.Connection, ids: Collection[int], grace: int) -> Sequence[Overdue]:
    """Those of these reservations that are still overdue."""
    return [tuple(row) for row in _OF_THESE.rows(connection, sorted(ids), {"b_grace": grace})]


def expire(connection: sa.Connection, ids: Sequence[int], grace: int) -> bool:
    """Expire these reservations. False: another transaction ended or extended one, and the caller must roll back."""
    return _EXPIRE.changed(connection, sorted(ids), {"b_grace": grace}) == len(ids)


_ROOTS = ListStatement(
    lambda size: (
        sa.select(_usage.id, _usage.project_id, _usage.resource, _usage.generation)
        .select_from(sa.outerjoin(quota_usages, projects, projects.c.project_id == _usage.project_id))
        .where(any_of(_usage.project_id, size), projects.c.parent_id.is_(None))
    )
)


def read_roots(connection: sa.Connection, project_ids: Collection[str]) -> dict[str, ProjectPath]:
    """The paths, by project, of those of these projects that have a usage row and no parent."""
    nodes: dict[str, dict[str, tuple[Node, ...]]] = {}
    for row in _ROOTS.rows(connection, sorted(project_ids), {}):
        node = Node(row.id, row.project_id, row.resource, row.generation, 0)
        nodes.setdefault(row.project_id, {})[row.resource] = (node,)
    return {project_id: ProjectPath([project_id], rows) for project_id, rows in nodes.items()}


def supports_bulk_charge(connection: sa.Connection) -> bool:
    """Whether this database supports the statement of ``charge``. (MySQL has another syntax for VALUES.)"""
    return connection.dialect.name != "mysql" or bool(getattr(connection.dialect, "is_mariadb", False))


def charge(connection: sa.Connection, changes: Sequence[Change]) -> bool:
    """Apply changes without limits to their rows. False: a row refused, and the caller must roll back."""
    changes = in_lock_order(connection, changes)
    if connection.dialect.name == "postgresql":
        result = _CHARGE_ARRAYS(connection, _arrays(changes))
    elif connection.dialect.name == "sqlite":
        result = _CHARGE_ROW.execute_many(connection, [_numbers(change) for change in changes])
    else:
        # (Bypass SQLAlchemy's statement cache, which would keep each of these texts and its compiled form.)
        text = _CHARGE_VALUES.text_for(connection.dialect)
        result = connection.exec_driver_sql(text.replace(_VALUES_HERE, _values(changes)))
    return result.rowcount == len(changes)


_COUNTERS: Final = (_usage.reserved, _usage.used, _usage.subtree)
_COLUMNS: Final = (_usage.id, _usage.generation, *_COUNTERS)
_NAMES: Final = tuple(column.name for column in _COLUMNS)


def _numbers(change: Change) -> dict[str, int]:
    node = change.node
    values = (node.usage_id, node.generation, change.reserved, change.used, change.subtree)
    return {f"b_{name}": value for name, value in zip(_NAMES, values, strict=True)}


def _charge_clauses(source: Mapping[str, sa.ColumnElement[Any]], *conditions: sa.ColumnElement[bool]) -> sa.Update:
    """UPDATE quota_usages SET reserved = reserved + ..., ... WHERE id = ... AND generation = ... AND none below 0"""
    changed = {column: column + source[column.name] for column in _COUNTERS}
    return (
        sa.update(quota_usages)
        .where(
            _usage.id == source["id"],
            *conditions,
            _usage.generation == source["generation"],
            *(value >= sa.literal_column("0") for value in changed.values()),
        )
        .values({**changed, _usage.updated_at: clock.utc_now()})
    )


def _charging_row() -> sa.Update:
    """SQLite's form: one row per statement. SQLite runs in this process, so that a statement needs no round trip."""
    return _charge_clauses({column.name: sa.bindparam(f"b_{column.name}", type_=sa.BigInteger) for column in _COLUMNS})


def _charging_arrays() -> sa.Update:
    """PostgreSQL's form: all rows, with each column as an array, so that one text serves all sizes.

    PostgreSQL guarantees no lock order inside an UPDATE, so the statement first locks the rows in lock order.
    """
    types = dict.fromkeys(_NAMES, sa.BigInteger) | {"id": sa.Integer, "generation": sa.Integer}
    arrays = {name: sa.cast(sa.bindparam(f"b_{name}", type_=sa.String), ARRAY(kind)) for name, kind in types.items()}
    table = sa.func.unnest(*arrays.values()).table_valued(*_NAMES, with_ordinality="place", name="listed")
    listed: Any = table.render_derived()
    # (A redundant condition: the planner overestimates the list, and would otherwise hash the whole table.)
    narrow = _usage.id == sa.any_(arrays["id"])
    locking = sa.select(listed).where(_usage.id == listed.c.id, narrow).order_by(listed.c.place)
    locked = locking.with_for_update(of=quota_usages, key_share=True).cte("d").prefix_with("MATERIALIZED")
    return _charge_clauses({name: locked.c[name] for name in _NAMES}, narrow)


def _arrays(changes: Sequence[Change]) -> dict[str, str]:
    """The parameters of ``_charging_arrays``, in PostgreSQL's array syntax."""
    rows = [_numbers(change) for change in changes]
    return {f"b_{name}": f"{{{','.join([str(row[f'b_{name}']) for row in rows])}}}" for name in _NAMES}


_VALUES_HERE: Final = "/* values */"


def _charging_values() -> sa.Update:
    """MariaDB's form: all rows, as a list of values that is written into the text.

    It locks the rows in the order of the list or of the table. Both are sorted by id (usages.charges_in_one_statement).
    """
    listed = sa.text(_VALUES_HERE).columns(*[sa.column(name, sa.BigInteger) for name in _NAMES]).subquery("d")
    return _charge_clauses({name: listed.c[name] for name in _NAMES})


def _values(changes: Sequence[Change]) -> str:
    """SELECT ... AS id, ... AS generation, ... UNION ALL VALUES (...), ..."""
    lines = [", ".join([str(value) for value in _numbers(change).values()]) for change in changes]
    first = ", ".join(f"{value} AS {name}" for value, name in zip(lines[0].split(", "), _NAMES, strict=True))
    rest = f" UNION ALL VALUES {', '.join([f'({line})' for line in lines[1:]])}" if len(lines) > 1 else ""
    return f"SELECT {first}{rest}"


_CHARGE_ROW = Statement(_charging_row())
_CHARGE_ARRAYS = Statement(_charging_arrays())
_CHARGE_VALUES = Statement(_charging_values())
