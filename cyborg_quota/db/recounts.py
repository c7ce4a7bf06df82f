# SPDX-License-Identifier: Apache-2.0
"""Sets the counters of usage rows that have drifted to the sums of their reservations and of their children.

The transaction must have locked the row. The lock makes the sums exact: transactions that changed the row before have
ended, later ones wait.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import maintenance, path_state, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.types import MAX_AMOUNT, Counters, UsageKey


def recount(connection: sa.Connection, node: usages.Node) -> tuple[Counters, Counters]:
    """Recount one row. Returns the counters before and after.

    Raises UsageOverflow if the sums exceed MAX_AMOUNT. (They do only if a counter was too low, for example after a
    change by hand.)
    """
    before = usages.read_row(connection, node.usage_id)
    reserved, used = maintenance.sums_from_reservations(connection, node)
    if used + reserved > MAX_AMOUNT:
        added = used + reserved - before.used - before.reserved
        raise exceptions.UsageOverflow(node.project_id, node.resource, added)
    after = Counters(
        used=used,
        reserved=reserved,
        subtree=used + reserved + maintenance.children_total(connection, node),
    )
    if after != before:
        usages.set_counters(connection, node.usage_id, after)
    return before, after


def recount_upwards(connection: sa.Connection, keys: Iterable[UsageKey]) -> None:
    """Recount these rows, and then all above them, because their sums have changed.

    The transaction must have made its other changes. Raises ConcurrentChange, UsageOverflow.
    """
    nodes: set[usages.Node] = set()
    for key in keys:
        path = path_state.read_nodes(connection, key)
        if path is None:
            raise ConcurrentChange
        nodes.update(path)
    for node in sorted(nodes, key=lambda one: one.lock_order):
        if not usages.lock_usage_row(connection, node):
            raise ConcurrentChange
        recount(connection, node)
