# SPDX-License-Identifier: Apache-2.0
"""quota_usages: what a row's counters should be, from the reservations and the rows below, and setting them."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import projects, quota_usages, reservations
from cyborg_quota.db.usages import Node
from cyborg_quota.types import COMMITTED, RESERVED, Figures

_usage = quota_usages.c
_FIGURES = sa.select(_usage.used, _usage.reserved, _usage.subtree).where(_usage.id == sa.bindparam("b_id"))


def figures(connection: sa.Connection, usage_id: int) -> Figures:
    """The counters of one row that exists."""
    row = connection.execute(_FIGURES, {"b_id": usage_id}).one()
    return Figures(used=row.used, reserved=row.reserved, subtree=row.subtree)


_child = quota_usages.alias("child")

_TRUTH = sa.select(
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


def truth(connection: sa.Connection, node: Node) -> tuple[int, int]:
    """(reserved, used) as the reservations have them. ``used`` is negative when more was freed than was held."""
    row = connection.execute(_TRUTH, {"b_id": node.usage_id}).one()
    return int(row.reserved), int(row.used)


def children_total(connection: sa.Connection, node: Node) -> int:
    """What the direct children's subtrees hold."""
    return int(connection.execute(_CHILDREN, {"b_project": node.project_id, "b_resource": node.resource}).scalar_one())


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


def set_figures(connection: sa.Connection, usage_id: int, now: Figures) -> None:
    """Write counters as they are. Only for a row that the transaction holds (see fence)."""
    connection.execute(
        _SET,
        {
            "b_id": usage_id,
            "b_reserved": now.reserved,
            "b_used": now.used,
            "b_subtree": now.subtree,
        },
    )
