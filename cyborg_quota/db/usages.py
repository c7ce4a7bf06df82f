# SPDX-License-Identifier: Apache-2.0
"""The table quota_usages: charge, lock and read the counters. (maintenance.py sums the reservations.)

A charge is a conditional UPDATE. It changes one row; if it changes none, the charge is refused::

    UPDATE quota_usages SET reserved = reserved + :r, used = used + :u, subtree = subtree + :s
    WHERE id = :id AND generation = :generation            -- the path is still the one that was read
      AND used + reserved <= :max_held AND subtree <= :max_subtree            -- the limits
      AND now - :until < '1970-01-01'                                         -- until the limits change
      AND used >= :min_used AND reserved >= :min_reserved AND subtree >= :min_subtree

``:max_held`` is the limit minus the amount of the charge, that is the maximum of ``used + reserved`` before the change;
``:max_subtree`` likewise (``bounds``). ``:until`` is in microseconds since the epoch. (A charge that waits for the lock
of its row may compare the time at which it began to wait.)

``charge_update_many`` is the same UPDATE for several rows. PostgreSQL's functions contain a third form
(dialects/postgresql.sql). All three must have the same conditions. ``bulk_update`` checks no limits.

No usage row is locked before that statement. The leaf is charged first and the root last, so that the row that most
transactions need, the root's, is locked for the shortest time. (On MariaDB, one UPDATE locks all rows by id.)
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, generations, paging
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, case_by_value, chunks, insert_many, update_each
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Counters, Page, ResourceKey, UsageKey

_usage = quota_usages.c
_KEY: Final = (_usage.project_id, _usage.resource, _usage.pod)
_NO_BOUND = 2**62
"""The bound of a change without a limit: no subtree can hold that much. One statement text thus serves all changes."""
_NO_END: Final = 2**53
"""The end, in the year 2255, of limits that do not change. (A greater number would precede the range of dates.)"""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One usage row on the path from a project to its root. The root has depth 0."""

    usage_id: int
    project_id: str
    resource: str
    generation: int
    depth: int
    pod: str = ""

    @property
    def key(self) -> UsageKey:
        return UsageKey(self.project_id, self.resource, self.pod)

    @property
    def lock_order(self) -> tuple[int, str, str, str]:
        """Deepest first, then by name. Dialect.lock_order overrides it on MariaDB (by id)."""
        return -self.depth, self.project_id, self.resource, self.pod


@dataclasses.dataclass(slots=True)
class Change:
    """The amounts that a transaction adds to one row, and the limits of its counters (None: no limit).

    ``max_held`` is the limit of ``used + reserved``, ``max_subtree`` that of ``subtree``. A limit is compared only if
    its counter grows. ``until``: the time at which these limits end, by the database's clock, in microseconds since the
    epoch (UTC); None: they do not end. From then on, the change is refused.
    """

    node: Node
    reserved: int = 0
    used: int = 0
    subtree: int = 0
    max_held: int | None = None
    max_subtree: int | None = None
    until: int | None = None

    @property
    def grows(self) -> bool:
        return self.reserved + self.used > 0 or self.subtree > 0

    def plus(self, other: Change) -> Change:
        """Both changes of one row. Raises ConcurrentChange: see ``merge``."""
        if self.node.generation != other.node.generation:
            raise ConcurrentChange
        return Change(
            self.node,
            self.reserved + other.reserved,
            self.used + other.used,
            self.subtree + other.subtree,
            _least(self.max_held, other.max_held),
            _least(self.max_subtree, other.max_subtree),
            _least(self.until, other.until),
        )


def _least(*values: int | None) -> int | None:
    """The least of those that are not None."""
    return min((value for value in values if value is not None), default=None)


by_depth: Final = operator.attrgetter("node.lock_order")


def charge_update(suffix: str = "") -> sa.Update:
    """The UPDATE of a charge, with ``suffix`` in its parameters' names."""
    conditions, values = _charge_clauses(suffix)
    return sa.update(quota_usages).where(_is_row(suffix), *conditions).values(values)


def _is_row(suffix: str) -> sa.ColumnElement[bool]:
    """``id = :b_id<suffix>``"""
    return _usage.id == sa.bindparam(f"b_id{suffix}", type_=_usage.id.type)


def _charge_clauses(suffix: str) -> tuple[list[sa.ColumnElement[bool]], dict[str, Any]]:
    """The WHERE conditions and the SET values of a charge."""

    def of(name: str) -> sa.BindParameter[int]:
        return sa.bindparam(f"b_{name}{suffix}", type_=sa.BigInteger)

    counters = {"used": _usage.used, "reserved": _usage.reserved, "subtree": _usage.subtree}
    conditions = [
        _usage.generation == sa.bindparam(f"b_generation{suffix}", type_=_usage.generation.type),
        _usage.used + _usage.reserved <= of("max_held"),
        _usage.subtree <= of("max_subtree"),
        _is_before(of("until")),
        *(column >= of(f"min_{name}") for name, column in counters.items()),
    ]
    values: dict[str, Any] = {name: column + of(name) for name, column in counters.items()}
    return conditions, {**values, "updated_at": clock.utc_now()}


def _is_before(until: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """``now - :until < '1970-01-01'``: a comparison that SQLite, too, makes with the precision of a microsecond."""
    return clock.utc_after(-until) < sa.literal_column("'1970-01-01'")


_CHARGE_ONE = Statement(charge_update())


def charge(connection: sa.Connection, change: Change) -> bool:
    """Apply ``change`` to its row if generation and bounds allow it. False: refused, and nothing was written.

    ``used + reserved`` never exceeds MAX_AMOUNT, whatever the limit: the counters are 32 bits wide.
    """
    return _CHARGE_ONE(connection, arguments(change)).rowcount == 1


_ARGUMENTS: Final = (
    "id", "generation", "max_held", "max_subtree", "until",
    "min_used", "min_reserved", "min_subtree", "reserved", "used", "subtree",
)  # fmt: skip


@functools.cache
def _argument_names(suffix: str) -> tuple[str, ...]:
    return tuple(f"b_{name}{suffix}" for name in _ARGUMENTS)


def bounds(change: Change) -> tuple[int, int, int]:
    """The most that ``used + reserved`` and ``subtree`` may be before the change (limit minus amount), and ``until``.

    The first one also keeps ``used + reserved`` within the width of its column (MAX_AMOUNT).
    """
    growth = change.used + change.reserved
    max_held = MAX_AMOUNT if change.max_held is None else min(MAX_AMOUNT, change.max_held)
    max_subtree = _NO_BOUND if change.max_subtree is None else min(_NO_BOUND, change.max_subtree)
    return (
        max_held - growth if growth > 0 else _NO_BOUND,
        max_subtree - change.subtree if change.subtree > 0 else _NO_BOUND,
        _NO_END if change.until is None else change.until,
    )


def arguments(change: Change, suffix: str = "") -> dict[str, int]:
    """The parameter values of ``charge_update``."""
    node, reserved, used, subtree = change.node, change.reserved, change.used, change.subtree
    values = (
        node.usage_id,
        node.generation,
        *bounds(change),
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
            _usage.used + _usage.reserved <= by_row("max_held"),
            _usage.subtree <= by_row("max_subtree"),
            _is_before(by_row("until")),
            _usage.used >= by_row("min_used"),
            _usage.reserved >= by_row("min_reserved"),
            _usage.subtree >= by_row("min_subtree"),
        )
        .values(
            reserved=_usage.reserved + by_row("reserved"),
            used=_usage.used + by_row("used"),
            subtree=_usage.subtree + by_row("subtree"),
            updated_at=clock.utc_now(),
        )
    )


BULK_COLUMNS: Final = ("id", "generation", "reserved", "used", "subtree")
"""The columns of the list of changes that ``bulk_update`` applies."""


def bulk_values(change: Change) -> tuple[int, int, int, int, int]:
    """The values of BULK_COLUMNS for one change."""
    node = change.node
    return node.usage_id, node.generation, change.reserved, change.used, change.subtree


def bulk_update(source: Mapping[str, sa.ColumnElement[Any]], *conditions: sa.ColumnElement[bool]) -> sa.Update:
    """The UPDATE of a charge without limits, with its values from a list, for batches of hundreds of rows::

        UPDATE quota_usages SET reserved = reserved + ..., ... WHERE id = ... AND generation = ... AND none below 0

    ``source``: an expression for each of BULK_COLUMNS. ``conditions``: further conditions on the id.
    """
    changed = {_usage[name]: _usage[name] + source[name] for name in BULK_COLUMNS[2:]}
    zero: sa.ColumnElement[int] = sa.literal_column("0")
    return (
        sa.update(quota_usages)
        .where(
            _usage.id == source["id"],
            *conditions,
            _usage.generation == source["generation"],
            *(value >= zero for value in changed.values()),
        )
        .values({**changed, _usage.updated_at: clock.utc_now()})
    )


_LOCK_ROW = (
    sa.update(quota_usages)
    .where(_usage.id == sa.bindparam("b_id"), _usage.generation == sa.bindparam("b_generation"))
    .values(used=_usage.used)
)


def lock_usage_row(connection: sa.Connection, node: Node) -> bool:
    """Lock one row until the transaction ends, without changing it. This waits for earlier writers of the row.

    False: the row does not exist, or its project has moved.
    """
    return connection.execute(_LOCK_ROW, {"b_id": node.usage_id, "b_generation": node.generation}).rowcount == 1


COUNTS_WHOLE: Final = _usage.pod == sa.literal_column("''")
"""The rows that count all pods."""

_COUNTERS = sa.select(*_KEY, _usage.used, _usage.reserved, _usage.subtree)


def read(
    connection: sa.Connection,
    project_ids: Collection[str] | None = None,
    keys: Collection[ResourceKey] | None = None,
) -> dict[UsageKey, Counters]:
    """Counters, sorted. None: all, but no totals, or of no single pod. One snapshot."""
    of_projects = _usage.project_id != TOTAL if project_ids is None else _usage.project_id.in_(sorted(project_ids))
    query = _COUNTERS.where(of_projects, COUNTS_WHOLE if keys is None else _may_be(keys))
    return dict(sorted(_counters(connection, query).items()))


def _may_be(keys: Collection[ResourceKey]) -> sa.ColumnElement[bool]:
    """The rows of these keys, and others: of each of their resources in each of their pods."""
    return sa.and_(_usage.pod.in_(pods_of(keys)), _usage.resource.in_(resources_of(keys)))


def resources_of(keys: Collection[ResourceKey]) -> list[str]:
    """The values of the column ``resource`` in a query of these keys. (No resource has an empty name.)"""
    return sorted({key.resource for key in keys}) or [""]


def pods_of(keys: Collection[ResourceKey]) -> list[str]:
    """The values of the column ``pod`` in a query of these keys."""
    return sorted({key.pod for key in keys}) or [""]


def _counters(connection: sa.Connection, query: sa.Select[Any]) -> dict[UsageKey, Counters]:
    return {
        UsageKey(project_id, resource, pod): Counters(used, reserved, subtree)
        for project_id, resource, pod, used, reserved, subtree in connection.execute(query)
    }


def read_page(connection: sa.Connection, project_id: str | None, page: Page, pod: str = "") -> dict[UsageKey, Counters]:
    """The counters in this pod ("": in all), of one project or of all, as the database sorts the names.

    Raises MarkerNotFound.
    """
    of_projects = _usage.project_id != TOTAL if project_id is None else _usage.project_id == project_id
    query = paging.of_project_rows(connection, _COUNTERS.where(of_projects), quota_usages, page, _usage.pod == pod)
    return _counters(connection, query)


def along(nodes: Sequence[Node], reserved: int, used: int) -> list[Change]:
    """The changes of a project's row (the first of ``nodes``) and of those above it, which count its subtree."""
    growth = reserved + used
    return [
        Change(node, 0 if index else reserved, 0 if index else used, growth)
        for index, node in enumerate(nodes if growth else nodes[:1])
    ]


def merge(changes: Iterable[Change]) -> list[Change]:
    """The changes of one transaction, summed per row, deepest first.

    A row whose sum is 0 stays among them: the charge compares its generation, which shows whether the rows above it are
    still the same. Raises ConcurrentChange if two changes have different generations of a row: the path of one of them
    is out of date, and both must be read again.
    """
    by_row: dict[int, Change] = {}
    for change in changes:
        usage_id = change.node.usage_id
        by_row[usage_id] = by_row[usage_id].plus(change) if usage_id in by_row else change
    return sorted(by_row.values(), key=by_depth)


_ROW = sa.select(_usage.used, _usage.reserved, _usage.subtree).where(_usage.id == sa.bindparam("b_id"))


def read_row(connection: sa.Connection, usage_id: int) -> Counters:
    """The counters of one existing usage row."""
    row = connection.execute(_ROW, {"b_id": usage_id}).one()
    return Counters(used=row.used, reserved=row.reserved, subtree=row.subtree)


_SET_COUNTERS = (
    sa.update(quota_usages)
    .where(_usage.id == sa.bindparam("b_id"))
    .values(
        reserved=sa.bindparam("b_reserved"),
        used=sa.bindparam("b_used"),
        subtree=sa.bindparam("b_subtree"),
        updated_at=clock.utc_now(),
    )
)


def set_counters(connection: sa.Connection, usage_id: int, counters: Counters) -> None:
    """Overwrite the counters. The transaction must have locked the usage row (lock_usage_row)."""
    connection.execute(
        _SET_COUNTERS,
        {
            "b_id": usage_id,
            "b_reserved": counters.reserved,
            "b_used": counters.used,
            "b_subtree": counters.subtree,
        },
    )


_LEVELS = (
    sa.select(_usage.project_id, _usage.resource, _usage.used, _usage.reserved, _usage.subtree, _usage.notified_level)
    .where(COUNTS_WHOLE)
    .order_by(_usage.project_id, _usage.resource)
)
_SET_LEVEL_IF = (
    sa.update(quota_usages)
    .where(
        _usage.project_id == sa.bindparam("b_project"),
        _usage.resource == sa.bindparam("b_resource"),
        COUNTS_WHOLE,
        _usage.notified_level == sa.bindparam("b_before"),
    )
    .values(notified_level=sa.bindparam("b_now"))
)


def read_notified_levels(connection: sa.Connection) -> dict[UsageKey, tuple[Counters, int]]:
    """The counters and the last notified level of every usage row that counts all pods."""
    return {
        UsageKey(project_id, resource): (Counters(used, reserved, subtree), level)
        for project_id, resource, used, reserved, subtree, level in connection.execute(_LEVELS)
    }


def claim_notified_level(connection: sa.Connection, project_id: str, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    parameters = {"b_project": project_id, "b_resource": resource, "b_before": before, "b_now": now}
    return connection.execute(_SET_LEVEL_IF, parameters).rowcount == 1


def is_any_held(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project or a descendant has usage."""
    query = sa.select(sa.literal(1)).where(_usage.project_id == project_id, _usage.subtree != 0)
    return connection.execute(query.limit(1)).first() is not None


def delete_zeros(connection: sa.Connection, project_id: str) -> int:
    """Delete the usage rows of the project whose counters are all 0. Returns the number of the others."""
    of_project = _usage.project_id == project_id
    connection.execute(
        sa.delete(quota_usages).where(of_project, _usage.subtree == 0, _usage.used == 0, _usage.reserved == 0)
    )
    left: int = connection.execute(sa.select(sa.func.count()).select_from(quota_usages).where(of_project)).scalar_one()
    return left


# Statements over many rows, for moves (moves.py).

_ROWS_OF = ListStatement(lambda size: sa.select(_usage.id, *_KEY).where(any_of(_usage.project_id, size)))


def row_ids(connection: sa.Connection, project_ids: Iterable[str]) -> dict[UsageKey, int]:
    """The ids of all usage rows of these projects."""
    return {
        UsageKey(row.project_id, row.resource, row.pod): row.id
        for names in chunks(sorted(project_ids))
        for row in _ROWS_OF.rows(connection, names, {})
    }


def insert_zeros(connection: sa.Connection, keys: Iterable[UsageKey]) -> None:
    """Insert usage rows of zeros. The transaction must have locked the projects."""
    zeros = {"reserved": 0, "used": 0, "subtree": 0}
    rows = [{**key._asdict(), "generation": generations.first(), **zeros} for key in keys]
    insert_many(connection, quota_usages, rows)


_ADD_TO_SUBTREES = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(subtree=_usage.subtree + case_by_value(_usage.id, _usage.subtree, size), updated_at=clock.utc_now())
    )
)


def add_to_subtrees(connection: sa.Connection, amounts: Mapping[int, int]) -> None:
    """Add an amount to the ``subtree`` of each row, by id. The transaction must have locked the rows."""
    update_each(connection, _ADD_TO_SUBTREES, amounts)


_BUMP_GENERATIONS_OF_ROWS = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(generation=generations.other_than(_usage.generation))
    )
)


def bump_generations_of_rows(connection: sa.Connection, usage_ids: Sequence[int]) -> None:
    """Add 1 to the generations of these rows: a charge with the old path then fails."""
    for chunk in chunks(sorted(usage_ids)):
        _BUMP_GENERATIONS_OF_ROWS.changed(connection, chunk, generations.random_step())


def subtrees_query(size: int) -> sa.Select[Any]:
    """The query for the id and the ``subtree`` of rows, by a list of ids: moves.py locks the rows with it."""
    return sa.select(_usage.id, _usage.subtree).where(any_of(_usage.id, size))


def lock_order_columns(*, by_id: bool) -> list[sa.ColumnElement[Any]]:
    """The columns by which ``subtrees_query`` is sorted: the id, or the names."""
    return [_usage.id] if by_id else list(_KEY)


# Queries for holdings.py.

_IS_HELD: Final = sa.or_(_usage.used > 0, _usage.reserved > 0)


def of_project_query(project_id: str) -> sa.Select[Any]:
    """The query for one row of a project, if it has any."""
    return sa.select(_usage.project_id).where(_usage.project_id == project_id).limit(1)


def holders_query(after: str, count: int) -> sa.Select[Any]:
    """The query for the first ``count`` projects with usage and with an id greater than ``after``."""
    return paging.first_projects(_usage.project_id, after, count, _IS_HELD)


def held_query(project_ids: Sequence[str] | None, *, whole: bool = True) -> sa.Select[Any]:
    """The query for the rows of these projects (None: of all) that are not zero; not ``whole``: those of pods."""
    query = sa.select(*_KEY, _usage.used, _usage.reserved)
    query = query.where(_IS_HELD, COUNTS_WHOLE if whole else _usage.pod != "")
    return query if project_ids is None else query.where(_usage.project_id.in_(project_ids))
