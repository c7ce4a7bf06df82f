# SPDX-License-Identifier: Apache-2.0
"""Recompute the counters of a usage row from the reservations and the children's rows, and correct them.

An adjustment is a committed reservation without consumer and group. One with a positive delta names the reservation
with a negative delta (``adjusts``) whose effect it reduces, because less than that amount was in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.inserting import new_uuid
from cyborg_quota.db.models import projects, quota_usages, reservations
from cyborg_quota.db.reservations import move
from cyborg_quota.db.usages import Node
from cyborg_quota.transitions import Freed
from cyborg_quota.types import COMMITTED, MAX_AMOUNT, RELEASED, RESERVED, Counters

_usage = quota_usages.c
_FIGURES = sa.select(_usage.used, _usage.reserved, _usage.subtree).where(_usage.id == sa.bindparam("b_id"))


def figures(connection: sa.Connection, usage_id: int) -> Counters:
    """The counters of one existing usage row."""
    row = connection.execute(_FIGURES, {"b_id": usage_id}).one()
    return Counters(used=row.used, reserved=row.reserved, subtree=row.subtree)


_child = quota_usages.alias("child")

_SUMS = sa.select(
    sa.func.coalesce(
        sa.func.sum(
            sa.case(
                (
                    sa.and_(reservations.c.state == RESERVED, reservations.c.delta > 0),
                    reservations.c.delta,
                )
            )
        ),
        0,
    ).label("reserved"),
    sa.func.coalesce(sa.func.sum(sa.case((reservations.c.state == COMMITTED, reservations.c.delta))), 0).label("used"),
).where(reservations.c.usage_id == sa.bindparam("b_id"), reservations.c.state.in_((RESERVED, COMMITTED)))

_CHILDREN = (
    sa.select(sa.func.coalesce(sa.func.sum(_child.c.subtree), 0))
    .select_from(sa.join(projects, _child, _child.c.project_id == projects.c.project_id))
    .where(
        projects.c.parent_id == sa.bindparam("b_project"),
        _child.c.resource == sa.bindparam("b_resource"),
    )
)


def sums_from_reservations(connection: sa.Connection, node: Node) -> tuple[int, int]:
    """(reserved, used), computed from the reservations. ``used`` is negative if more was freed than was in use."""
    row = connection.execute(_SUMS, {"b_id": node.usage_id}).one()
    return int(row.reserved), int(row.used)


def children_total(connection: sa.Connection, node: Node) -> int:
    """The sum of ``subtree`` over the direct children."""
    return int(connection.execute(_CHILDREN, {"b_project": node.project_id, "b_resource": node.resource}).scalar_one())


_row = reservations.c
_adjusted = reservations.alias("adjusted")
# The live adjustments of released reservations. (The previous release leaves them when it releases a reservation.)
_OUTLIVED = (
    sa.select(_row.id)
    .select_from(sa.join(reservations, _adjusted, _adjusted.c.id == _row.adjusts))
    .where(
        _row.usage_id == sa.bindparam("b_id"),
        _row.state == COMMITTED,
        _adjusted.c.state == RELEASED,
    )
)


def end_adjustments(connection: sa.Connection, usage_id: int) -> None:
    """Release the adjustments of released reservations. The usage row must be locked (usages.fence)."""
    ids = connection.execute(_OUTLIVED, {"b_id": usage_id}).scalars().all()
    if ids:
        move(connection, ids, COMMITTED, RELEASED, 0)


# SELECT COALESCE(adjusts, id), -SUM(delta) ... GROUP BY COALESCE(adjusts, id): each row with its adjustments.
_ADJUSTED_ID = sa.func.coalesce(_row.adjusts, _row.id)
_FREED = (
    sa.select(_ADJUSTED_ID, -sa.func.sum(_row.delta))
    .where(
        _row.usage_id == sa.bindparam("b_id"),
        _row.state == COMMITTED,
        sa.or_(_row.delta < 0, _row.adjusts.is_not(None)),
    )
    .group_by(_ADJUSTED_ID)
    .having(sa.func.sum(_row.delta) < 0)
)


def freed(connection: sa.Connection, usage_id: int) -> list[Freed]:
    """The committed reservations with a negative delta, and the amount that each subtracts, less its adjustments."""
    return [Freed(row[0], int(row[1])) for row in connection.execute(_FREED, {"b_id": usage_id})]


def insert_adjustments(connection: sa.Connection, node: Node, reductions: Iterable[Freed]) -> None:
    """Insert an adjustment for each of these reservations that reduces the amount it subtracts."""
    _insert(connection, node, [(reduction.amount, reduction.id) for reduction in reductions])


def insert_excess(connection: sa.Connection, node: Node, amount: int) -> None:
    """Insert rows that subtract the amount that exceeds the range of the counters."""
    parts = [MAX_AMOUNT] * (amount // MAX_AMOUNT) + [amount % MAX_AMOUNT]
    _insert(connection, node, [(-part, None) for part in parts if part])


def _insert(connection: sa.Connection, node: Node, rows: Sequence[tuple[int, int | None]]) -> None:
    connection.execute(
        sa.insert(reservations).values(created_at=clock.utc_now(), deleted=sa.false(), state=COMMITTED, live=1),
        [
            {
                "uuid": new_uuid(),
                "usage_id": node.usage_id,
                "project_id": node.project_id,
                "resource": node.resource,
                "delta": delta,
                "adjusts": adjusts,
            }
            for delta, adjusts in rows
        ],
    )


_SET = (
    sa.update(quota_usages)
    .where(_usage.id == sa.bindparam("b_id"))
    .values(
        reserved=sa.bindparam("b_reserved"),
        used=sa.bindparam("b_used"),
        subtree=sa.bindparam("b_subtree"),
        updated_at=clock.utc_now(),
    )
)


def set_figures(connection: sa.Connection, usage_id: int, now: Counters) -> None:
    """Overwrite the counters. The transaction must have locked the usage row (usages.fence)."""
    connection.execute(
        _SET,
        {
            "b_id": usage_id,
            "b_reserved": now.reserved,
            "b_used": now.used,
            "b_subtree": now.subtree,
        },
    )
