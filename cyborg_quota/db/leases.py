# SPDX-License-Identifier: Apache-2.0
"""Leases: rows of the table ``fences``, with which several processes elect one of them. See ledger/election.py.

The generation of the row is positive while a process holds the lease, and zero or negative while nobody does. Each
change is one conditional UPDATE that compares the generation, so that of several concurrent ones only one succeeds.
No time is stored: no two clocks are compared.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import dialects
from cyborg_quota.db.models import fences

_GENERATION: Final = sa.select(fences.c.generation).where(fences.c.name == sa.bindparam("b_name"))
_REPLACE: Final = (
    sa.update(fences)
    .where(fences.c.name == sa.bindparam("b_name"), fences.c.generation == sa.bindparam("b_seen"))
    .values(generation=sa.bindparam("b_next"))
)


def generation(connection: sa.Connection, name: str) -> int:
    """The generation of the lease; 0, which is vacant, if it was never taken."""
    return int(connection.execute(_GENERATION, {"b_name": name}).scalar() or 0)


def replace(connection: sa.Connection, name: str, seen: int, after: int) -> bool:
    """Set the generation to ``after`` if it is still ``seen``. False: another process has changed it."""
    if seen == 0:
        dialects.of(connection).insert_or_ignore(connection, fences, {"name": name, "generation": 0}, {})
    return connection.execute(_REPLACE, {"b_name": name, "b_seen": seen, "b_next": after}).rowcount == 1
