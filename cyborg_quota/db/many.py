# SPDX-License-Identifier: Apache-2.0
"""Statements for batches of expiry, which change reservations of hundreds of projects at once."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import projects, quota_usages, reservations
from cyborg_quota.db.prepared import ListStatement, any_of
from cyborg_quota.db.projects import ProjectPath
from cyborg_quota.db.reservations import IS_OVERDUE, ended
from cyborg_quota.db.usages import Node
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
