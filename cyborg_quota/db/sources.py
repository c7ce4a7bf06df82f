# SPDX-License-Identifier: Apache-2.0
"""Set the column reservations.source of reservations that were inserted without a source."""

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
    """Set the source of those of these live reservations that have none. Returns the number of changed rows."""
    return _GIVE.changed(connection, sorted(uuids), {"b_source": source})
