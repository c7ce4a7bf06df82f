# SPDX-License-Identifier: Apache-2.0
"""A deliberately wrong implementation: read, compare, write. The race tests must detect it."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa


def reserve_one(engine: sa.Engine, usage_id: int, limit: int, between: Callable[[], None]) -> bool:
    """Charge one if the limit allows it. Wrong: between the read and the write, other processes read too.

    ``between`` is called there.
    """
    with engine.connect() as connection:
        query = sa.text("SELECT used + reserved FROM quota_usages WHERE id = :id")
        held = connection.execute(query, {"id": usage_id}).scalar_one()
        connection.rollback()
        if held + 1 > limit:
            return False
        between()
        write = sa.text("UPDATE quota_usages SET reserved = reserved + 1, subtree = subtree + 1 WHERE id = :id")
        connection.execute(write, {"id": usage_id})
        connection.commit()
        return True


def claim(engine: sa.Engine, inventory_id: int, amount: int, between: Callable[[], None]) -> bool:
    """Claim capacity if enough is free. Wrong: between the query and the UPDATE, other processes read too.

    ``between`` is called there.
    """
    with engine.connect() as connection:
        query = sa.text("SELECT free FROM inventories WHERE id = :id")
        free = connection.execute(query, {"id": inventory_id}).scalar_one()
        connection.rollback()
        if amount > free:
            return False
        between()
        write = sa.text("UPDATE inventories SET used = used + :n, free = free - :n WHERE id = :id")
        connection.execute(write, {"id": inventory_id, "n": amount})
        connection.commit()
        return True
