# SPDX-License-Identifier: Apache-2.0
"""MariaDB: the part of a reserve's block that chooses the inventory of a claim with ANY::

    DECLARE v_provider, v_inventory, v_first INTEGER; DECLARE v_free BIGINT; DECLARE v_pod VARCHAR(255);
    SELECT ..., <a random provider id> WHERE ... AND NOT EXISTS (<a live reservation of the consumer>) LIMIT 1
        INTO v_provider, v_inventory, v_pod, v_free, v_first FOR UPDATE SKIP LOCKED;
    SELECT ... LIMIT 1 INTO v_provider, v_inventory, v_pod FOR UPDATE SKIP LOCKED;
    IF v_inventory IS NOT NULL AND v_pod IS NULL THEN <the steps of the reserve>

The second query finds no row if no other provider is equally good and unlocked; the variables then keep their values.
Each statement of a block that opens a table takes the server about as long as the update of a row. Therefore the first
query also looks for the consumer, and both read the pod. InnoDB locks what their subqueries read in shared mode: they
must not read an inventory that claims change. (A subquery for equal free units made claims deadlock.)
The inventory is locked before the reservation is inserted. This adds no cycle to the lock order: the INSERT waits only
for a transaction that inserts or ends a reservation of the same consumer; then one of the two is retried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import provider_choice
from cyborg_quota.db.candidates import Order
from cyborg_quota.db.models import inventories

VARIABLES: Final = {"b_provider_id_0": "v_provider", "b_inventory_0": "v_inventory"}
"""The variables that replace these parameters of the reserve's steps."""

DECLARATIONS: Final = (
    "DECLARE v_provider, v_inventory, v_first INTEGER; DECLARE v_free BIGINT; DECLARE v_pod VARCHAR(255);"
)
RESULT: Final = "SELECT v_provider, v_inventory;"

_SKIPS_LOCKED: Final = "FOR UPDATE SKIP LOCKED"
INDEX_HINT: Final = "FORCE INDEX (ix_inventories_free)"
"""Otherwise the server sorts a small table, and then locks all its rows; or it reads all equally good inventories."""


_LEAST_ID: Final = "(SELECT MIN(provider_id) FROM inventories)"
_GREATEST_ID: Final = "(SELECT MAX(provider_id) FROM inventories)"
_RANDOM_ID: Final[Any] = sa.literal_column(f"FLOOR({_LEAST_ID} + RAND() * ({_GREATEST_ID} - {_LEAST_ID} + 1))")
"""RAND is outside the subqueries: with it inside, the server reads all rows of the index instead of the two ends."""


def queries(order: Order, guard: sa.Select[Any] | None = None) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The query for the best inventory, and that for an equally good one. ``guard``: must return no row."""
    free, first = sa.literal_column("v_free", sa.BigInteger), sa.literal_column("v_first", sa.Integer)
    best = provider_choice.best_query(order).add_columns(inventories.c.free, _RANDOM_ID)
    if guard is not None:
        best = best.where(~guard.exists())
    equal = provider_choice.equal_query(free, first)
    return best.with_hint(inventories, INDEX_HINT), equal.with_hint(inventories, INDEX_HINT)


def text(order: Order, guard: sa.Select[Any] | None, text_of: Callable[[Any], str]) -> str:
    """The statements, and the condition of the reserve's steps. ``text_of``: the text of an element."""
    best, equal = (text_of(query) for query in queries(order, guard))
    return (
        f"{best} INTO v_provider, v_inventory, v_pod, v_free, v_first {_SKIPS_LOCKED};"
        f" {equal} INTO v_provider, v_inventory, v_pod {_SKIPS_LOCKED};"
        " IF v_inventory IS NOT NULL AND v_pod IS NULL"
    )
