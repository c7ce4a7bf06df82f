# SPDX-License-Identifier: Apache-2.0
"""A deliberately wrong implementation: read, compare, write. The race tests must detect it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import sqlalchemy as sa

_INVENTORY = "FROM inventories WHERE provider_id = (SELECT id FROM resource_providers WHERE name = :provider)"
_MAX_WRITES = 100

# What is read and compared (a row is found only if the change is allowed), and what is written then.
RESERVE = (
    "SELECT id FROM quota_usages WHERE used + reserved < :limit",
    "UPDATE quota_usages SET reserved = reserved + 1, subtree = subtree + 1 WHERE id = :id",
)
CLAIM = (
    f"SELECT id {_INVENTORY} AND free >= :amount",
    "UPDATE inventories SET used = used + :amount, free = free - :amount WHERE id = :id",
)
SET_TOTAL = (
    f"SELECT id, used {_INVENTORY}",
    "UPDATE inventories SET total = :total, capacity = :total, free = :total - :used WHERE id = :id",
)
REMOVE = (
    f"SELECT provider_id AS id {_INVENTORY} AND used = 0",
    "DELETE FROM inventories WHERE provider_id = :id",
    "DELETE FROM resource_providers WHERE id = :id",
)
METER = (
    "SELECT id, metered FROM quota_usages WHERE project_id = :project",
    "UPDATE quota_usages SET subtree = subtree + 1, metered = :metered - :second WHERE id = :id",
)


def change(sql: sa.Engine, statements: tuple[str, ...], between: Callable[[], object], **parameters: object) -> None:
    """Make one of these changes. Wrong: between the read and the write, ``between`` is called, and others write too."""
    query, *writes = map(sa.text, statements)
    with sql.connect() as connection:
        values = {**parameters, **connection.execute(query, parameters).mappings().one()}
    between()
    for _ in range(_MAX_WRITES):
        # (On a cluster, it may conflict with one of another node.)
        with contextlib.suppress(sa.exc.OperationalError), sql.begin() as connection:
            for write in writes:
                connection.execute(write, values)
            connection.commit()
            return
    raise AssertionError(f"{_MAX_WRITES} writes conflicted")
