# SPDX-License-Identifier: Apache-2.0
"""The table quota_usages: charge, lock and read the counters. (maintenance.py sums the reservations.)

A charge is a conditional UPDATE. It changes one row; if it changes none, the charge is refused::

    UPDATE quota_usages SET reserved = reserved + :reserved, used = used + :used, subtree = subtree + :subtree,
      metered = metered - :subtree * :at                                    -- device-seconds, see meters.py
    WHERE id = :id AND generation = :generation            -- the path is still the one that was read
      AND used + reserved <= :max_held AND subtree + promised <= :max_subtree -- the limits
      AND metered + subtree * (:at + :ahead) <= :max_metered                -- the budget
      AND :at < month_ends                                                  -- the month of the meter is not over
      AND now - :until < '1970-01-01'                                         -- until the limits change
      AND reserved + :reserved >= 0 AND used + :used >= 0 AND subtree + :subtree >= 0

``:max_held`` is the limit minus the amount of the charge, that is the maximum of ``used + reserved`` before the change;
``:max_subtree`` and ``:max_metered`` likewise (``values``). ``:at`` is the second of the call (clock.py). ``:until`` is
in microseconds since the epoch. (A charge that waits for the lock of its row may compare the time at which it began to
wait.)

On a path with a minimum, it also adds to ``promised`` (minimums.py).

``charge_update`` makes this UPDATE for one row, for several, and for a list. PostgreSQL's functions contain it once
more (dialects/postgresql.sql), with the same conditions.

No usage row is locked before that statement. The leaf is charged first and the root last, so that the row that most
transactions need, the root's, is locked for the shortest time. (On MariaDB, one UPDATE locks all rows by id.)
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import calendar, clock, paging
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, case_by_value, chunks, insert_many, update_each
from cyborg_quota.types import MAX_AMOUNT, MAX_COUNTED, TOTAL, Counters, Page, ResourceKey, UsageKey
from cyborg_quota.types.limits import RowBound

_usage = quota_usages.c
ID: Final[Any] = _usage.id
KEY: Final = (_usage.project_id, _usage.resource, _usage.pod)
"""The columns of a UsageKey, in its order."""
NODE: Final = (_usage.id, _usage.generation, _usage.minimum)
"""The columns of a Node, besides its key."""
_NO_BOUND = 2**62
"""The bound of a charge that does not grow. One statement text thus serves all charges."""
_NO_METER_BOUND: Final = 2**63 - 1
_NO_END: Final = 2**53
"""The end, in the year 2255, of limits that do not change. (A greater number would precede the range of dates.)"""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One usage row on the path from a project to its root. The root has depth 0. NODE: the columns that it needs."""

    usage_id: int
    project_id: str
    resource: str
    generation: int
    depth: int
    pod: str = ""
    minimum: int = 0

    @property
    def key(self) -> UsageKey:
        return UsageKey(self.project_id, self.resource, self.pod)


def deepest_first(node: Node) -> tuple[int, str, str, str]:
    """The order from the leaves to the roots, and by name within a depth."""
    return -node.depth, node.project_id, node.resource, node.pod


@dataclasses.dataclass(slots=True)
class Posting:
    """The amounts that a transaction adds to one row, and the limits of its counters (None: no limit).

    ``max_held`` is the limit of ``used + reserved``, ``max_subtree`` that of ``subtree + promised``. A limit is
    compared only if what it bounds grows. ``above``: the id of the row above, to which the amount is passed on.
    ``has_minimum``: the row has one, so that it may pass on another amount than is added to it (minimums.py).
    ``bound``: the maximum of the device-seconds that are used, and of those that the new holdings use within the next
    ``bound.ahead`` seconds. ``until``: the time at which these limits end, by the database's clock, in microseconds
    since the epoch (UTC); None: they do not end. From then on, the posting is refused if it grows.
    """

    node: Node
    reserved: int = 0
    used: int = 0
    subtree: int = 0
    promised: int = 0
    above: int | None = None
    has_minimum: bool = False
    max_held: int | None = None
    max_subtree: int | None = None
    bound: RowBound | None = None
    until: int | None = None

    @property
    def grows(self) -> bool:
        return self.reserved + self.used > 0 or self.subtree + self.promised > 0

    def plus(self, other: Posting) -> Posting:
        """Both postings of one row. Raises ConcurrentChange: see ``merge``."""
        if self.node.generation != other.node.generation:
            raise ConcurrentChange
        return Posting(
            self.node,
            self.reserved + other.reserved,
            self.used + other.used,
            self.subtree + other.subtree,
            self.promised + other.promised,
            self.above,
            self.has_minimum or other.has_minimum,
            _least(self.max_held, other.max_held),
            _least(self.max_subtree, other.max_subtree),
            self.bound or other.bound,
            _least(self.until, other.until),
        )


def _least(*values: int | None) -> int | None:
    """The least of those that are not None."""
    return min((value for value in values if value is not None), default=None)


COLUMNS: Final = (
    "id", "generation", "reserved", "used", "subtree", "max_held", "max_subtree", "max_metered", "ahead", "until"
)  # fmt: skip
"""The values of a charge, in the order of ``values``."""
COUNTED: Final = ("reserved", "used", "subtree", "promised")
"""The counters to which a charge adds."""


def values(posting: Posting) -> tuple[int, ...]:
    """The values of COLUMNS for one row.

    ``max_held`` also keeps ``used + reserved`` within the width of its column (MAX_AMOUNT), whatever the limit;
    ``max_subtree`` keeps the meter within that of its own (MAX_COUNTED).
    """
    node, growth, counted = posting.node, posting.used + posting.reserved, posting.subtree + posting.promised
    max_held = MAX_AMOUNT if posting.max_held is None else min(MAX_AMOUNT, posting.max_held)
    max_subtree = MAX_COUNTED if posting.max_subtree is None else min(MAX_COUNTED, posting.max_subtree)
    max_metered, ahead = _NO_METER_BOUND, 0
    if posting.bound is not None and posting.subtree > 0:
        ahead = posting.bound.ahead
        max_metered = posting.bound.at_most - posting.subtree * ahead
    return (
        node.usage_id,
        node.generation,
        posting.reserved,
        posting.used,
        posting.subtree,
        max_held - growth if growth > 0 else _NO_BOUND,
        max_subtree - counted if counted > 0 else _NO_BOUND,
        max_metered,
        ahead,
        min(posting.until, _NO_END) if posting.until is not None and posting.grows else _NO_END,
    )


def charge_update(
    of: Mapping[str, sa.ColumnElement[Any]], *is_row: sa.ColumnElement[bool], at: sa.ColumnElement[int] = clock.at
) -> sa.Update:
    """The UPDATE of a charge. ``of``: an expression for each of COLUMNS, and for ``promised`` if it changes.

    ``is_row``: what selects the rows.
    """
    counted = {_usage[name]: _usage[name] + of[name] for name in COUNTED if name in of}
    zero: sa.ColumnElement[int] = sa.literal_column("0")
    conditions = (
        _usage.generation == of["generation"],
        _usage.used + _usage.reserved <= of["max_held"],
        _usage.subtree + _usage.promised <= of["max_subtree"],
        _usage.metered + _usage.subtree * (at + of["ahead"]) <= of["max_metered"],
        at < _usage.month_ends,
        # (A comparison that SQLite, too, makes with the precision of a microsecond.)
        clock.utc_after(-of["until"]) < sa.literal_column("'1970-01-01'"),
        *(value >= zero for value in counted.values()),
    )
    metered = {_usage.metered: _usage.metered - of["subtree"] * at}
    changed = {**counted, **metered, _usage.updated_at: clock.utc_now()}
    return sa.update(quota_usages).where(*is_row, *conditions).values(changed)


def charge_rows(size: int, columns: Sequence[str] = COLUMNS) -> sa.Update:
    """The UPDATE of a charge of ``size`` rows, with the parameters of ``arguments``.

    For several rows: ``id IN (:b_id_0, ...) AND generation = CASE id WHEN :b_id_0 THEN :b_generation_0 ...``
    """
    parameters = {
        name: [sa.bindparam(f"b_{name}_{index}", type_=sa.BigInteger) for index in range(size)] for name in columns
    }
    ids = parameters["id"]
    if size == 1:
        return charge_update({name: of_rows[0] for name, of_rows in parameters.items()}, _usage.id == ids[0])
    by_row = {
        name: sa.case(dict(zip(ids, of_rows, strict=True)), value=_usage.id) for name, of_rows in parameters.items()
    }
    return charge_update(by_row, _usage.id.in_(ids))


@functools.cache
def _argument_names(index: int) -> tuple[str, ...]:
    return tuple(f"b_{name}_{index}" for name in COLUMNS)


def arguments(postings: Iterable[Posting]) -> dict[str, int]:
    """The parameters of ``charge_rows``, but the second of the call."""
    return {
        name: value
        for index, posting in enumerate(postings)
        for name, value in zip(_argument_names(index), values(posting), strict=True)
    }


_CHARGE: Final = Statement(charge_rows(1))


def charge(connection: sa.Connection, posting: Posting, at: int) -> bool:
    """Apply ``posting`` to its row if generation and bounds allow it. False: refused, and nothing was written."""
    if posting.promised:
        return charge_locked(connection, [posting], at)
    return _CHARGE(connection, {**arguments([posting]), "b_at": at}).rowcount == 1


@functools.cache
def _charge_promised(size: int) -> Statement:
    return Statement(charge_rows(size, (*COLUMNS, "promised")))


def charge_locked(connection: sa.Connection, postings: Sequence[Posting], at: int) -> bool:
    """``charge`` for several rows, with what they add to ``promised``. False: one of them is refused.

    The rows are locked, or the UPDATE locks them in order.
    """
    promised = {f"b_promised_{index}": posting.promised for index, posting in enumerate(postings)}
    result = _charge_promised(len(postings))(connection, {**arguments(postings), **promised, "b_at": at})
    return result.rowcount == len(postings)


def lock_usage_row(connection: sa.Connection, node: Node) -> bool:
    """Lock one row until the transaction ends, without changing it. This waits for earlier writers of the row.

    False: the row does not exist, or its project has moved.
    """
    is_row = (_usage.id == node.usage_id, _usage.generation == node.generation)
    return connection.execute(sa.update(quota_usages).where(*is_row).values(used=_usage.used)).rowcount == 1


def sums_passed_on(child: sa.FromClause) -> list[sa.Label[Any]]:
    """What these rows add to each counter (of PASSED_ON) of the row above them (see minimums.py)."""
    row = child.c
    counted = row.subtree + row.promised
    passed_on = sa.case((counted < row.minimum, row.minimum), else_=counted)
    sums = {"subtree": row.subtree, "promised": passed_on - row.subtree, "metered": row.metered}
    return [sa.func.sum(sums[name]).label(name) for name in PASSED_ON]


COUNTS_WHOLE: Final = _usage.pod == sa.literal_column("''")
"""The rows that count all pods."""

COUNTERS: Final = (
    _usage.used, _usage.reserved, _usage.subtree, _usage.promised, _usage.minimum, _usage.metered, _usage.meter_base
)  # fmt: skip
"""The columns of Counters, in its order."""
PASSED_ON: Final = ("subtree", "promised", "metered")
"""The counters of a row that include those of the rows below. ``metered``, which requires no row above, is the last."""
ROWS: Final = sa.select(ID, *COUNTERS)
"""The ids and the counters of rows."""
_COUNTERS = sa.select(*KEY, *COUNTERS)


def read(
    connection: sa.Connection,
    project_ids: Collection[str] | None = None,
    keys: Collection[ResourceKey] | None = None,
) -> dict[UsageKey, Counters]:
    """Counters, sorted. None: all, but no totals, or of no single pod. One snapshot."""
    of_projects = _usage.project_id != TOTAL if project_ids is None else _usage.project_id.in_(sorted(project_ids))
    conditions = [COUNTS_WHOLE]
    if keys is not None:  # (this reads each of their resources in each of their pods)
        resources, pods = parts_of(keys)
        conditions = [_usage.pod.in_(pods), _usage.resource.in_(resources)]
    return dict(sorted(_counters(connection, _COUNTERS.where(of_projects, *conditions)).items()))


def parts_of(keys: Collection[ResourceKey]) -> tuple[list[str], list[str]]:
    """The values of the columns ``resource`` and ``pod`` in a query of these keys.

    (Databases do not use the index for an empty list; no resource has an empty name.)
    """
    return sorted({key.resource for key in keys}) or [""], sorted({key.pod for key in keys}) or [""]


def _counters(connection: sa.Connection, query: sa.Select[Any]) -> dict[UsageKey, Counters]:
    return {UsageKey(*row[:3]): Counters(*row[3:]) for row in connection.execute(query)}


def read_page(connection: sa.Connection, project_id: str | None, page: Page, pod: str = "") -> dict[UsageKey, Counters]:
    """The counters in this pod ("": in all), of one project or of all, as the database sorts the names.

    Raises MarkerNotFound.
    """
    of_projects = _usage.project_id != TOTAL if project_id is None else _usage.project_id == project_id
    query = _COUNTERS.where(of_projects)
    page_query = paging.of_rows(connection, query, quota_usages, KEY[:2], page, condition=_usage.pod == pod)
    return _counters(connection, page_query)


def along(nodes: Sequence[Node], reserved: int, used: int) -> list[Posting]:
    """The postings of a project's row (the first of ``nodes``) and of those above it, which count its subtree."""
    growth = reserved + used
    return [
        Posting(
            node,
            0 if index else reserved,
            0 if index else used,
            growth,
            above=above,
            has_minimum=bool(growth and node.minimum),
        )
        for index, (node, above) in enumerate(zip(nodes, [*[node.usage_id for node in nodes[1:]], None], strict=True))
        if growth or not index
    ]


def merge(postings: Iterable[Posting], lock_order: Callable[[Node], Any]) -> list[Posting]:
    """The postings of one transaction, summed per row, in lock order (Dialect.lock_order).

    A row whose sum is 0 stays among them: the charge compares its generation, which shows whether the rows above it are
    still the same. Raises ConcurrentChange if two postings have different generations of a row: the path of one of them
    is out of date, and both must be read again.
    """
    by_row: dict[int, Posting] = {}
    for posting in postings:
        usage_id = posting.node.usage_id
        by_row[usage_id] = by_row[usage_id].plus(posting) if usage_id in by_row else posting
    return sorted(by_row.values(), key=lambda posting: lock_order(posting.node))


def set_counters(connection: sa.Connection, usage_id: int, counters: Counters) -> None:
    """Overwrite the counters. The transaction must have locked the usage row (lock_usage_row)."""
    update = sa.update(quota_usages).where(_usage.id == usage_id)
    connection.execute(update.values(**dataclasses.asdict(counters), updated_at=clock.utc_now()))


def read_notified_levels(connection: sa.Connection) -> dict[UsageKey, tuple[Counters, int]]:
    """The counters and the last notified level of every usage row that counts all pods."""
    query = _COUNTERS.add_columns(_usage.notified_level).where(COUNTS_WHOLE)
    rows = connection.execute(query.order_by(_usage.project_id, _usage.resource))
    return {UsageKey(*row[:3]): (Counters(*row[3:-1]), row.notified_level) for row in rows}


def claim_notified_level(connection: sa.Connection, project_id: str, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    is_row = (_usage.project_id == project_id, _usage.resource == resource, COUNTS_WHOLE)
    update = sa.update(quota_usages).where(*is_row, _usage.notified_level == before).values(notified_level=now)
    return connection.execute(update).rowcount == 1


def ids_query(project_id: str, resource: str | None) -> sa.Select[Any]:
    """The query for the ids of the rows of a project that reservations name; ``resource``: only of this one."""
    query = sa.select(_usage.id).where(_usage.project_id == project_id, COUNTS_WHOLE)
    return query.where(*paging.given((_usage.resource, resource)))


def keeping(
    connection: sa.Connection, project_ids: Collection[str] | None = None, resources: Collection[str] | None = None
) -> dict[UsageKey, Counters]:
    """The counters of the rows that have a minimum or promise something. None: of all projects, of all resources."""
    query = _COUNTERS.where(
        sa.or_(_usage.minimum > 0, _usage.promised > 0), *paging.among((_usage.resource, resources))
    )
    # (SQLite takes at most 32,766 parameters.)
    parts = [None] if project_ids is None else chunks(sorted(project_ids), 10_000)
    queries = (query.where(*paging.among((_usage.project_id, names))) for names in parts)
    return {key: row for part in queries for key, row in _counters(connection, part).items()}


def delete_zeros(connection: sa.Connection, project_id: str) -> int:
    """Delete the usage rows of the project whose counters are all 0. Returns the number of those that hold something:
    the project or a descendant has usage, or a minimum.

    A row that is metered stays: the report has what a removed project has used.
    """
    of_project, amounts = _usage.project_id == project_id, COUNTERS[:5]
    connection.execute(sa.delete(quota_usages).where(of_project, *(value == 0 for value in COUNTERS)))
    is_held = sa.or_(*(value != 0 for value in amounts))
    count = sa.select(sa.func.count()).select_from(quota_usages).where(of_project, is_held)
    left: int = connection.execute(count).scalar_one()
    return left


def delete(connection: sa.Connection, key: UsageKey) -> None:
    """Delete a row. A charge that has read it matches no row, and reads the path again."""
    connection.execute(sa.delete(quota_usages).where(*(_usage[name] == value for name, value in key._asdict().items())))


# Statements over many rows, for moves (moves.py).

_ROWS_OF = ListStatement(lambda size: sa.select(_usage.id, *KEY).where(any_of(_usage.project_id, size)))


def row_ids(connection: sa.Connection, project_ids: Iterable[str]) -> dict[UsageKey, int]:
    """The ids of all usage rows of these projects."""
    return {
        UsageKey(row.project_id, row.resource, row.pod): row.id
        for names in chunks(sorted(project_ids))
        for row in _ROWS_OF.rows(connection, names, {})
    }


def insert_zeros(connection: sa.Connection, keys: Iterable[UsageKey]) -> None:
    """Insert usage rows of zeros. The transaction must have locked the projects."""
    zeros = {"reserved": 0, "used": 0, "subtree": 0, "month_ends": calendar.end_of_month(clock.read_second(connection))}
    rows = [{**key._asdict(), "generation": new_generation(), **zeros} for key in keys]
    insert_many(connection, quota_usages, rows)


@functools.cache
def _add(column: str) -> ListStatement:
    counter = _usage[column]
    return ListStatement(
        lambda size: (
            sa.update(quota_usages)
            .where(any_of(_usage.id, size))
            .values({counter: counter + case_by_value(_usage.id, counter, size), _usage.updated_at: clock.utc_now()})
        )
    )


def add_to_many(connection: sa.Connection, column: str, amounts: Mapping[int, int]) -> None:
    """Add an amount to this counter of each row, by id. The transaction must have locked the rows."""
    update_each(connection, _add(column), amounts)


# Generations are random. After a restore from a backup, or the promotion of a lagging replica, a row may get the id of
# a lost row, and a project may be moved again whose move was lost. Numbers in sequence would be given twice then, and
# a process that was not restarted would charge the path that it had read before.

_GENERATION_BITS: Final = 30


def new_generation() -> int:
    """The generation of a new row, by which a charge detects that its path has changed (rule 1 in projects.py)."""
    return secrets.randbits(_GENERATION_BITS)


_RENEW_ROWS = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(
            generation=(_usage.generation + sa.bindparam("b_step", type_=_usage.generation.type)).bitwise_and(
                sa.literal_column(str(2**_GENERATION_BITS - 1))
            )
        )
    )
)


def renew_generations(connection: sa.Connection, usage_ids: Sequence[int]) -> None:
    """Give these rows other generations: a charge with the old path then fails."""
    for chunk in chunks(sorted(usage_ids)):
        # (A step of at most 2**29, so that the sum fits into 32 bits.)
        _RENEW_ROWS.changed(connection, chunk, {"b_step": 1 + secrets.randbits(_GENERATION_BITS - 1)})


# Queries for limits/tables.py.

_IS_HELD: Final = sa.or_(_usage.used > 0, _usage.reserved > 0)


HOLDING: Final = (_usage.project_id, _IS_HELD)
"""The projects of this table, and the condition of a row of one that holds something."""

COUNTING: Final = (
    _usage.project_id,
    sa.and_(_usage.project_id != TOTAL, sa.or_(_usage.subtree > 0, _usage.promised > 0)),
)
"""The same, of a row that counts something: what the project or a descendant holds, or what minimums below keep."""


def held_query(project_ids: Sequence[str] | None, *, whole: bool = True) -> sa.Select[Any]:
    """The query for the rows of these projects (None: of all) that are not zero; not ``whole``: those of pods."""
    selected = COUNTS_WHOLE if whole else _usage.pod != "", *paging.among((_usage.project_id, project_ids))
    return sa.select(*KEY, _usage.used, _usage.reserved).where(_IS_HELD, *selected)
