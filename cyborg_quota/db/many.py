# SPDX-License-Identifier: Apache-2.0
"""Many rows in few statements: for batches of expiry, which touch hundreds of projects at once.

The numbers of a batch are written into the statements themselves: they are integers of ours, and thousands of bound
parameters cost more than they are worth.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import projects, quota_usages, reservations
from cyborg_quota.db.projects import Way
from cyborg_quota.db.reservations import IS_OVERDUE, ended
from cyborg_quota.db.usages import Change, Node, in_lock_order
from cyborg_quota.types import EXPIRED

Overdue = tuple[int, str, str, int]
"""A reservation to be ended: id, project_id, resource, delta."""

Place = tuple[datetime.datetime, int]
"""Where a reservation stands in the order of expiry: its moment, and its id."""

_row = reservations.c
_usage = quota_usages.c
_IDS: Final = sa.bindparam("b_ids", expanding=True, literal_execute=True, type_=sa.Integer)
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
_OF_THESE = _OVERDUE.where(_row.id.in_(_IDS))
_EXPIRE = sa.update(reservations).where(_row.id.in_(_IDS), IS_OVERDUE).values(ended(sa.literal_column(f"'{EXPIRED}'")))


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
    return [tuple(row) for row in connection.execute(_OF_THESE, {"b_ids": sorted(ids), "b_grace": grace})]


def expire(connection: sa.Connection, ids: Sequence[int], grace: int) -> bool:
    """End these: all of them, or (False) roll back, for somebody else ended one."""
    return connection.execute(_EXPIRE, {"b_ids": sorted(ids), "b_grace": grace}).rowcount == len(ids)


_ROOTS = (
    sa.select(_usage.id, _usage.project_id, _usage.resource, _usage.generation)
    .select_from(sa.outerjoin(quota_usages, projects, projects.c.project_id == _usage.project_id))
    .where(_usage.project_id.in_(sa.bindparam("b_projects", expanding=True)), projects.c.parent_id.is_(None))
)


def read_roots(connection: sa.Connection, project_ids: Collection[str]) -> dict[str, Way]:
    """The paths of those of these projects that have a usage row and no parent, by project: one statement."""
    nodes: dict[str, dict[str, tuple[Node, ...]]] = {}
    for row in connection.execute(_ROOTS, {"b_projects": sorted(project_ids)}):
        node = Node(row.id, row.project_id, row.resource, row.generation, 0)
        nodes.setdefault(row.project_id, {})[row.resource] = (node,)
    return {project_id: Way([project_id], rows) for project_id, rows in nodes.items()}


def can_charge(connection: sa.Connection) -> bool:
    """Whether this database takes ``charge``'s statement. (MySQL writes VALUES in its own way.)"""
    return connection.dialect.name != "mysql" or bool(getattr(connection.dialect, "is_mariadb", False))


def charge(connection: sa.Connection, changes: Sequence[Change]) -> bool:
    """Add changes without limits to their rows. False: one refused; roll back.

    PostgreSQL promises no order inside an UPDATE, so there the statement first takes the rows, in theirs. MariaDB takes
    rows by id everywhere (usages.goes_together), so here too: it reads them in the order of the list, or of the table.
    """
    changes = in_lock_order(connection, changes)
    columns = [_usage.id, _usage.generation, _usage.reserved, _usage.used, _usage.subtree]
    asked: Any = _listed([column.name for column in columns], changes)
    narrow: sa.ColumnElement[bool] = sa.true()
    if connection.dialect.name == "postgresql":
        # (Said twice: the planner takes the list for long, and would hash the whole table.)
        narrow = _usage.id.in_(sa.text(", ".join(str(change.node.usage_id) for change in changes)))
        locking = sa.select(asked).where(_usage.id == asked.c.id, narrow).order_by(asked.c.place)
        asked = locking.with_for_update(of=quota_usages, key_share=True).cte("d").prefix_with("MATERIALIZED")
    update = (
        sa.update(quota_usages)
        .where(
            _usage.id == asked.c.id,
            narrow,
            _usage.generation == asked.c.generation,
            *(column + asked.c[column.name] >= 0 for column in columns[2:]),
        )
        .values(
            {column: column + asked.c[column.name] for column in columns[2:]} | {_usage.updated_at: clock.utc_now()}
        )
    )
    return connection.execute(update).rowcount == len(changes)


def _listed(names: Sequence[str], changes: Sequence[Change]) -> sa.Subquery:
    """The changes as a table of these columns, and of their place."""
    lines = [
        f"{change.node.usage_id}, {change.node.generation}, {change.reserved}, {change.used}, {change.subtree}, {place}"
        for place, change in enumerate(changes)
    ]
    names = [*names, "place"]
    first = ", ".join(f"{value} AS {name}" for value, name in zip(lines[0].split(", "), names, strict=True))
    rest = f" UNION ALL VALUES {', '.join(f'({line})' for line in lines[1:])}" if len(lines) > 1 else ""
    return sa.text(f"SELECT {first}{rest}").columns(*[sa.column(name, sa.BigInteger) for name in names]).subquery("d")
