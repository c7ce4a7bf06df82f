# SPDX-License-Identifier: Apache-2.0
"""A deliberately wrong implementation: read, compare, write. The race tests must detect it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

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


_INVENTORY = "FROM inventories WHERE provider_id = (SELECT id FROM resource_providers WHERE name = :provider)"
_MAX_WRITES = 100


def claim(engine: sa.Engine, provider: str, amount: int, between: Callable[[], None]) -> None:
    """Claim capacity if enough is free. Wrong: between the query and the UPDATE, other processes claim too.

    ``between`` is called there, in this function and in the others.
    """
    inventory_id, free = _read(engine, "id, free", provider)
    if amount > free:
        raise AssertionError(f"{amount} do not fit")
    between()
    update = "UPDATE inventories SET used = used + :n, free = free - :n WHERE id = :id"
    _write(engine, [update], id=inventory_id, n=amount)


def set_total(engine: sa.Engine, provider: str, total: int, between: Callable[[], None]) -> None:
    """Change an inventory. Wrong: what is free is computed from a counter that was read before."""
    inventory_id, used = _read(engine, "id, used", provider)
    between()
    update = "UPDATE inventories SET total = :total, capacity = :total, free = :free WHERE id = :id"
    _write(engine, [update], id=inventory_id, total=total, free=total - used)


def remove_provider(engine: sa.Engine, provider: str, between: Callable[[], None]) -> None:
    """Remove a provider that has no claims. Wrong: it may have got one since the query."""
    provider_id, used = _read(engine, "provider_id, used", provider)
    if used:
        raise AssertionError(f"{used} are claimed")
    between()
    deletes = ["DELETE FROM inventories WHERE provider_id = :id", "DELETE FROM resource_providers WHERE id = :id"]
    _write(engine, deletes, id=provider_id)


def _read(engine: sa.Engine, columns: str, provider: str) -> tuple[int, int]:
    with engine.connect() as connection:
        first, second = connection.execute(sa.text(f"SELECT {columns} {_INVENTORY}"), {"provider": provider}).one()
        connection.rollback()
        return int(first), int(second)


def _write(engine: sa.Engine, statements: Sequence[str], **parameters: int) -> None:
    """Run the statements in a transaction, again if it conflicts with one of another node."""
    for _ in range(_MAX_WRITES):
        with contextlib.suppress(sa.exc.OperationalError), engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement), parameters)
            connection.commit()
            return
    raise AssertionError(f"{_MAX_WRITES} writes conflicted")
