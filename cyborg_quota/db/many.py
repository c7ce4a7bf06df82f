# SPDX-License-Identifier: Apache-2.0
"""Many rows in few statements: for batches of expiry, which touch hundreds of projects at once.

No batch leaves a text of its own in a cache: the memory that statements take does not depend on the backlog.
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
"""A reservation to be ended: id, project_id, resource, delta."""

Place = tuple[datetime.datetime, int]
"""Where a reservation stands in the order of expiry: its moment, and its id."""

_row = reservations.c
_usage = quota_usages.c
_OVERDUE = sa.select(_row.id, _row.project_id, _row.resource, _row.delta).where(IS_OVERDUE)
_LIMIT = sa.bindparam("b_limit", type_=sa.Integer)
# (In the index's own order: with the id behind it, PostgreSQL may sort all that is overdue, batch by batch.)
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
    """The same behind a place in the order of expiry and id (None: from the first), and the place of the last of them.

    Whoever reads on so does not meet again what is being ended, nor wade through the index entries of what was.
    """
    parameters: dict[str, Any] = {"b_limit": limit, "b_grace": grace}
    if place is None:
        rows = connection.execute(_LONGEST, parameters).all()
    else:
        rows = connection.execute(_BEHIND, {**parameters, "b_expire": place[0], "b_id": place[1]}).all()
    # (Asked for apart: PyMySQL takes longer to read a date than all the rest of a row.)
    for row in reversed(rows):
        moment = connection.execute(_MOMENT, {"b_id": row.id, "b_grace": grace}).scalar()
        if moment is not None:  # or it was given more time meanwhile
            return rows, (moment, row.id)
    return rows, place


def overdue_of(connection: sa.Connection, ids: Collection[int], grace: int) -> Sequence[Overdue]:
    """Those of these reservations that are overdue (still)."""
    return [tuple(row) for row in _OF_THESE.rows(connection, sorted(ids), {"b_grace": grace})]


def expire(connection: sa.Connection, ids: Sequence[int], grace: int) -> bool:
    """End these: all of them, or (False) roll back, for somebody else ended one."""
    return _EXPIRE.changed(connection, sorted(ids), {"b_grace": grace}) == len(ids)


_ROOTS = ListStatement(
    lambda size: (
        sa.select(_usage.id, _usage.project_id, _usage.resource, _usage.generation)
        .select_from(sa.outerjoin(quota_usages, projects, projects.c.project_id == _usage.project_id))
        .where(any_of(_usage.project_id, size), projects.c.parent_id.is_(None))
    )
)


def read_roots(connection: sa.Connection, project_ids: Collection[str]) -> dict[str, ProjectPath]:
    """The paths of those of these projects that have a usage row and no parent, by project."""
    nodes: dict[str, dict[str, tuple[Node, ...]]] = {}
    for row in _ROOTS.rows(connection, sorted(project_ids), {}):
        node = Node(row.id, row.project_id, row.resource, row.generation, 0)
        nodes.setdefault(row.project_id, {})[row.resource] = (node,)
    return {project_id: ProjectPath([project_id], rows) for project_id, rows in nodes.items()}


def supports_bulk_charge(connection: sa.Connection) -> bool:
    """Whether this database takes ``charge``'s statement. (MySQL writes VALUES in its own way.)"""
    return connection.dialect.name != "mysql" or bool(getattr(connection.dialect, "is_mariadb", False))


def charge(connection: sa.Connection, changes: Sequence[Change]) -> bool:
    """Add changes without limits to their rows. False: one refused; roll back."""
    changes = in_lock_order(connection, changes)
    if connection.dialect.name == "postgresql":
        result = _CHARGE_ARRAYS(connection, _arrays(changes))
    elif connection.dialect.name == "sqlite":
        result = _CHARGE_ROW.execute_many(connection, [_numbers(change) for change in changes])
    else:
        # (Not through SQLAlchemy's cache, which would keep each of these texts with all that it makes of them.)
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


def _charge_clauses(asked: Mapping[str, sa.ColumnElement[Any]], *conditions: sa.ColumnElement[bool]) -> sa.Update:
    """UPDATE quota_usages SET reserved = reserved + ..., ... WHERE id = ... AND generation = ... AND none below 0"""
    changed = {column: column + asked[column.name] for column in _COUNTERS}
    return (
        sa.update(quota_usages)
        .where(
            _usage.id == asked["id"],
            *conditions,
            _usage.generation == asked["generation"],
            *(value >= sa.literal_column("0") for value in changed.values()),
        )
        .values({**changed, _usage.updated_at: clock.utc_now()})
    )


def _charging_row() -> sa.Update:
    """SQLite's: one row. It is in this process, so that each row can be a statement."""
    return _charge_clauses({column.name: sa.bindparam(f"b_{column.name}", type_=sa.BigInteger) for column in _COLUMNS})


def _charging_arrays() -> sa.Update:
    """PostgreSQL's: all rows, each column an array, so that one text serves all sizes.

    PostgreSQL guarantees no lock order inside an UPDATE, so that the statement first locks the rows, in their order.
    """
    types = dict.fromkeys(_NAMES, sa.BigInteger) | {"id": sa.Integer, "generation": sa.Integer}
    arrays = {
        name: sa.cast(sa.bindparam(f"b_{name}", type_=sa.String), ARRAY(kind)) for name, kind in types.items()
    }
    table = sa.func.unnest(*arrays.values()).table_valued(*_NAMES, with_ordinality="place", name="listed")
    listed: Any = table.render_derived()
    # (Stated twice: the planner takes the list for long, and would hash the whole table.)
    narrow = _usage.id == sa.any_(arrays["id"])
    locking = sa.select(listed).where(_usage.id == listed.c.id, narrow).order_by(listed.c.place)
    asked = locking.with_for_update(of=quota_usages, key_share=True).cte("d").prefix_with("MATERIALIZED")
    return _charge_clauses({name: asked.c[name] for name in _NAMES}, narrow)


def _arrays(changes: Sequence[Change]) -> dict[str, str]:
    """The parameters of it, as PostgreSQL writes arrays."""
    rows = [_numbers(change) for change in changes]
    return {f"b_{name}": f"{{{','.join([str(row[f'b_{name}']) for row in rows])}}}" for name in _NAMES}


_VALUES_HERE: Final = "/* values */"


def _charging_values() -> sa.Update:
    """MariaDB's: all rows, as a list of values that is written into the text.

    It locks the rows in the order of the list, or of the table: both are that of their ids (usages.goes_together).
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
