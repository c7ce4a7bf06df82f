# SPDX-License-Identifier: Apache-2.0
"""The table quota_usages: charge, lock and read the counters. (sums.py corrects them from the reservations.)

A charge is one conditional UPDATE per row. A row count of 0 means that the charge was refused::

    UPDATE quota_usages SET reserved = reserved + :r, used = used + :u, subtree = subtree + :s
    WHERE id = :id AND generation = :generation            -- the path is still the one that was read
      AND used + reserved <= :room AND subtree <= :subtree_room            -- the limits
      AND reserved <= :reserved_room                                       -- the cap on open reservations
      AND used >= :least_used AND reserved >= :least_reserved AND subtree >= :least_subtree

No row is locked before that statement. Callers charge the leaf first and the root last, so that the row that most
transactions need, the root's, is locked for the shortest time.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.prepared import Statement
from cyborg_quota.types import MAX_AMOUNT, Counters

_usage = quota_usages.c
_NO_BOUND = 2**62
"""A bound that never refuses, as no subtree can hold that much. So one statement serves changes without a limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One usage row on the path from a project to its root. The root has depth 0."""

    usage_id: int
    project_id: str
    resource: str
    generation: int
    depth: int

    @property
    def lock_order(self) -> tuple[int, str, str]:
        """Deepest first, then by name: the order in which every transaction locks usage rows."""
        return -self.depth, self.project_id, self.resource


@dataclasses.dataclass(slots=True)
class Change:
    """The amounts that a transaction adds to one row, and the most that the row may hold before (None: no limit)."""

    node: Node
    reserved: int = 0
    used: int = 0
    subtree: int = 0
    max_held: int | None = None
    max_subtree: int | None = None
    max_reserved: int | None = None


by_depth: Final = operator.attrgetter("node.lock_order")
by_id: Final = operator.attrgetter("node.usage_id")

ChargeShape = tuple[int, int, int, bool, bool]
"""The signs of the changes of reserved, used and subtree; whether subtree and reserved have an upper bound."""


def charge_shape(change: Change) -> ChargeShape:
    """Which conditions and assignments the UPDATE for this change needs."""
    return (
        (change.reserved > 0) - (change.reserved < 0),
        (change.used > 0) - (change.used < 0),
        (change.subtree > 0) - (change.subtree < 0),
        change.max_subtree is not None,
        change.max_reserved is not None,
    )


def charge_update(shape: ChargeShape | None, suffix: str = "") -> sa.Update:
    """The UPDATE of a charge, with ``suffix`` in its parameters' names. Without a shape, it serves all changes."""
    conditions, values = _charge_clauses(shape, suffix)
    return sa.update(quota_usages).where(_has_id(suffix), *conditions).values(values)


def update_all_or_fail(shape: ChargeShape, suffix: str, count: sa.ColumnElement[int], size: int) -> sa.Update:
    """Apply if ``count`` == ``size``, do nothing if 0; otherwise fail the statement, so that PostgreSQL rolls it back.

    It also fails if the row refuses the change.
    """
    conditions, values = _charge_clauses(shape, suffix)
    zero, one = sa.literal_column("0", sa.Integer), sa.literal_column("1", sa.Integer)
    # (Division by zero. PostgreSQL would evaluate a constant expression when it plans the statement.)
    error = sa.func.mod(one, _usage.id - _usage.id)
    agrees = sa.case((sa.and_(*conditions), one), else_=error)
    verdict = sa.case({zero: zero, sa.literal_column(str(size), sa.Integer): agrees}, value=count, else_=error)
    return sa.update(quota_usages).where(_has_id(suffix), verdict == one).values(values)


def exists(suffix: str) -> sa.ColumnElement[bool]:
    """Whether the usage row exists. PostgreSQL evaluates this subquery once in a statement, and does not join it."""
    one: sa.ColumnElement[int] = sa.literal_column("1")
    other = quota_usages.alias("other")
    query = sa.select(one).where(other.c.id == sa.bindparam(f"b_id{suffix}", type_=_usage.id.type))
    return query.scalar_subquery().is_not(None)


def _has_id(suffix: str) -> sa.ColumnElement[bool]:
    return _usage.id == sa.bindparam(f"b_id{suffix}", type_=_usage.id.type)


def _charge_clauses(shape: ChargeShape | None, suffix: str) -> tuple[list[sa.ColumnElement[bool]], dict[str, Any]]:
    """The WHERE conditions and the SET values of a charge."""
    reserved, used, subtree, is_subtree_bounded, is_reserved_bounded = shape or (-1, -1, -1, True, True)

    def of(name: str) -> sa.BindParameter[int]:
        return sa.bindparam(f"b_{name}{suffix}", type_=sa.BigInteger)

    conditions = [_usage.generation == sa.bindparam(f"b_generation{suffix}", type_=_usage.generation.type)]
    if shape is None or reserved + used > 0:
        conditions.append(_usage.used + _usage.reserved <= of("room"))
    if is_subtree_bounded:
        conditions.append(_usage.subtree <= of("subtree_room"))
    if is_reserved_bounded:
        conditions.append(_usage.reserved <= of("reserved_room"))
    counters = (
        ("used", _usage.used, used),
        ("reserved", _usage.reserved, reserved),
        ("subtree", _usage.subtree, subtree),
    )
    conditions += [column >= of(f"least_{name}") for name, column, sign in counters if sign < 0]
    values: dict[str, Any] = {name: column + of(name) for name, column, sign in counters if sign}
    return conditions, {**values, "updated_at": clock.utc_now()}


def row_unchanged(shape: ChargeShape, suffix: str = "") -> sa.ColumnElement[bool]:
    """For the RETURNING of such an UPDATE on PostgreSQL: the row did not change between statement start and update.

    It is false if the statement waited for another transaction that changed the row.
    """
    before = quota_usages.alias("before")
    conditions = [before.c.id == _usage.id]
    for name, sign in zip(("reserved", "used"), shape[:2], strict=True):
        change = sa.bindparam(f"b_{name}{suffix}", type_=sa.BigInteger) if sign else sa.literal_column("0")
        conditions.append(before.c[name] == _usage[name] - change)
    return sa.exists(sa.select(sa.literal_column("1")).select_from(before).where(*conditions))


_CHARGE = Statement(charge_update(None))


def charge(connection: sa.Connection, change: Change) -> bool:
    """Apply ``change`` to its row if generation and bounds allow it. False: refused, and nothing was written.

    ``used + reserved`` never passes MAX_AMOUNT, whatever the limit: the counters are 32 bits wide.
    """
    return _CHARGE(connection, arguments(change)).rowcount == 1


_ARGUMENTS: Final = (
    "id", "generation", "room", "subtree_room", "reserved_room",
    "least_used", "least_reserved", "least_subtree", "reserved", "used", "subtree",
)  # fmt: skip


@functools.cache
def _argument_names(suffix: str) -> tuple[str, ...]:
    return tuple(f"b_{name}{suffix}" for name in _ARGUMENTS)


def arguments(change: Change, suffix: str = "") -> dict[str, int]:
    """The parameter values of ``charge_update``."""
    node, reserved, used, subtree = change.node, change.reserved, change.used, change.subtree
    growth = used + reserved
    max_held = _NO_BOUND if growth <= 0 else MAX_AMOUNT - growth
    values = (
        node.usage_id,
        node.generation,
        max_held if change.max_held is None else min(max_held, change.max_held),
        _NO_BOUND if change.max_subtree is None else min(_NO_BOUND, change.max_subtree),
        _NO_BOUND if change.max_reserved is None else change.max_reserved,
        -used if used < 0 else 0,
        -reserved if reserved < 0 else 0,
        -subtree if subtree < 0 else 0,
        reserved,
        used,
        subtree,
    )
    return dict(zip(_argument_names(suffix), values, strict=True))


def charge_update_many(size: int) -> sa.Update:
    """Like ``charge_update``, for several rows with different values: ``... <= CASE id WHEN :id_0 THEN ...``"""
    ids = [sa.bindparam(f"b_id_{index}", type_=_usage.id.type) for index in range(size)]

    def by_row(name: str) -> sa.Case[int]:
        amounts = [sa.bindparam(f"b_{name}_{index}", type_=sa.BigInteger) for index in range(size)]
        return sa.case(dict(zip(ids, amounts, strict=True)), value=_usage.id)

    return (
        sa.update(quota_usages)
        .where(
            _usage.id.in_(ids),
            _usage.generation == by_row("generation"),
            _usage.used + _usage.reserved <= by_row("room"),
            _usage.subtree <= by_row("subtree_room"),
            _usage.reserved <= by_row("reserved_room"),
            _usage.used >= by_row("least_used"),
            _usage.reserved >= by_row("least_reserved"),
            _usage.subtree >= by_row("least_subtree"),
        )
        .values(
            reserved=_usage.reserved + by_row("reserved"),
            used=_usage.used + by_row("used"),
            subtree=_usage.subtree + by_row("subtree"),
            updated_at=clock.utc_now(),
        )
    )


@functools.cache
def _charge_of(size: int) -> Statement:
    return Statement(charge_update_many(size))


_MAX_ROWS_PER_CHARGE = 64


def charges_in_one_statement(connection: sa.Connection, count: int) -> bool:
    """Whether this database charges ``count`` rows in one statement.

    MariaDB locks the rows in the order of their ids, and one statement saves a round trip for each level (with one
    statement per row, the throughput at 8 levels was 0.64 of this). PostgreSQL guarantees no lock order inside a
    statement, so that concurrent statements could deadlock.
    """
    return 1 < count <= _MAX_ROWS_PER_CHARGE and locks_by_id(connection)


def locks_by_id(connection: sa.Connection) -> bool:
    """Whether this database locks usage rows by id instead of deepest first: see charges_in_one_statement."""
    return connection.dialect.name == "mysql"


def in_lock_order(connection: sa.Connection, changes: Iterable[Change]) -> list[Change]:
    """The changes in the order in which every transaction locks usage rows on this database."""
    return sorted(changes, key=by_id if locks_by_id(connection) else by_depth)


def charge_all(connection: sa.Connection, changes: Sequence[Change]) -> bool:
    """Charge every row in lock order. False: a row refused, and the caller must roll back the transaction."""
    if not charges_in_one_statement(connection, len(changes)):
        return all(charge(connection, change) for change in in_lock_order(connection, changes))
    parameters = {
        f"{name}_{index}": value for index, change in enumerate(changes) for name, value in arguments(change).items()
    }
    return _charge_of(len(changes))(connection, parameters).rowcount == len(changes)


_FENCE = (
    sa.update(quota_usages)
    .where(_usage.id == sa.bindparam("b_id"), _usage.generation == sa.bindparam("b_generation"))
    .values(used=_usage.used)
)


def fence(connection: sa.Connection, node: Node) -> bool:
    """Lock one row until the transaction ends, without changing it. This waits for earlier writers of the row.

    False: the row does not exist, or its project has moved.
    """
    return connection.execute(_FENCE, {"b_id": node.usage_id, "b_generation": node.generation}).rowcount == 1


def read(
    connection: sa.Connection,
    project_ids: Collection[str] | None = None,
    resources: Collection[str] | None = None,
) -> dict[tuple[str, str], Counters]:
    """Counters by (project_id, resource), sorted. None means all. One statement, thus one snapshot."""
    query = sa.select(_usage.project_id, _usage.resource, _usage.used, _usage.reserved, _usage.subtree)
    if project_ids is not None:
        query = query.where(_usage.project_id.in_(sorted(project_ids)))
    if resources is not None:
        query = query.where(_usage.resource.in_(sorted(resources)))
    rows = connection.execute(query).all()
    counters = {(row.project_id, row.resource): Counters(row.used, row.reserved, row.subtree) for row in rows}
    return dict(sorted(counters.items()))


def merge(changes: Iterable[Change]) -> Sequence[Change]:
    """The changes summed per row, deepest first. (Bounds are not merged, because a settling call has none.)"""
    by_row: dict[int, Change] = {}
    for change in changes:
        total = by_row.setdefault(change.node.usage_id, Change(change.node))
        total.reserved += change.reserved
        total.used += change.used
        total.subtree += change.subtree
    return sorted(by_row.values(), key=by_depth)
