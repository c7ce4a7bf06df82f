# SPDX-License-Identifier: Apache-2.0
"""The exact number of open reservations (in flight) of one usage row."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.db.models import reservations
from cyborg_quota.db.prepared import Statement
from cyborg_quota.types import RESERVED

_row = reservations.c
_OPEN = sa.and_(
    _row.usage_id == sa.bindparam("b_usage_id", type_=_row.usage_id.type),
    _row.state == sa.literal_column(f"'{RESERVED}'"),
)
# SELECT count(*) FROM reservations WHERE usage_id = :id AND state = 'reserved': an index-only scan.
_COUNT = Statement(sa.select(sa.func.count()).select_from(reservations).where(_OPEN))
_COUNT_NEGATIVE = Statement(
    sa.select(sa.func.count()).select_from(reservations).where(_OPEN, _row.delta < sa.literal_column("0"))
)


def count(connection: sa.Connection, usage_id: int) -> int:
    """The number of open reservations, including overdue ones. Exact if the transaction has locked the usage row."""
    return int(_COUNT(connection, {"b_usage_id": usage_id}).scalar_one())


def count_negative(connection: sa.Connection, usage_id: int) -> int:
    """The number of open reservations with a negative delta."""
    return int(_COUNT_NEGATIVE(connection, {"b_usage_id": usage_id}).scalar_one())
