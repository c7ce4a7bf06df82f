# SPDX-License-Identifier: Apache-2.0
"""reservations.source: recorded afterwards, for reservations that were made without one."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from cyborg_quota.db.models import reservations
from cyborg_quota.db.prepared import ListStatement, any_of

_row = reservations.c

_GIVE = ListStatement(
    lambda size: (
        sa.update(reservations)
        .where(any_of(_row.uuid, size), _row.source.is_(None), _row.live == sa.literal_column("1"))
        .values(source=sa.bindparam("b_source", type_=_row.source.type))
    )
)


def give(connection: sa.Connection, uuids: Sequence[str], source: str) -> int:
    """Record the source of those of these live reservations that have none. Returns how many there were."""
    return _GIVE.changed(connection, sorted(uuids), {"b_source": source})
