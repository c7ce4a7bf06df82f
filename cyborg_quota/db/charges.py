# SPDX-License-Identifier: Apache-2.0
"""Applies postings to usage rows: charges them, and recounts those that have drifted.

A row that its charge would make negative has drifted: it is set to the sums of its reservations and of its children,
and so are all rows above it. The lock of a row makes its sums exact: transactions that changed the row before have
ended, later ones wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import dialects, maintenance, path_state, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.usages import Posting
from cyborg_quota.types import MAX_AMOUNT, Counters, UsageKey

_MIN_TOGETHER: Final = 8
"""From this number of rows, one statement for all of them is faster than one for each."""


class Refused(Exception):
    """A limit refused an addition, or the path to charge has changed: roll back, and read both again."""


def apply(connection: sa.Connection, postings: Sequence[Posting]) -> None:
    """Apply the result of usages.merge: all rows in one statement or, if it refuses, each row and then those that have
    drifted. Raises Refused, ConcurrentChange, UsageOverflow.
    """
    if len(postings) >= _MIN_TOGETHER:
        # (By hand: SQLAlchemy would roll back to a savepoint that an error of the server has removed already.)
        connection.exec_driver_sql("SAVEPOINT together")
        if dialects.of(connection).charge_together(connection, postings):
            return
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT together")
    drifted = []
    for posting in postings:
        if usages.charge(connection, posting):
            continue
        if posting.grows or not usages.lock_usage_row(connection, posting.node):
            raise Refused
        drifted.append(posting.node.key)
    recount_upwards(connection, drifted)


def recount(connection: sa.Connection, node: usages.Node) -> tuple[Counters, Counters]:
    """Recount one row, which the transaction must have locked. Returns the counters before and after.

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
    for node in sorted(nodes, key=dialects.of(connection).lock_order):
        if not usages.lock_usage_row(connection, node):
            raise ConcurrentChange
    for node in sorted(nodes, key=usages.deepest_first):
        recount(connection, node)
