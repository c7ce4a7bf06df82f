# SPDX-License-Identifier: Apache-2.0
"""The table reservations: insert rows, find those of a call, and change their state.

maintenance.py deletes, folds and sums them; history.py lists them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from cyborg_quota.db import clock, paging
from cyborg_quota.db.models import reservation_changes, reservations
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, insert_many
from cyborg_quota.types import COMMITTED, EXPIRED, LIVE_STATES, RESERVED, Row, State, grouped

_row = reservations.c


IS_OVERDUE = sa.and_(
    _row.state == sa.literal_column(f"'{RESERVED}'"),
    _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)),
)
NOT_OVERDUE = sa.or_(
    _row.expire.is_(None), _row.expire > clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger))
)
GENERATION: Final = sa.func.coalesce(_row.generation, sa.literal_column("0"))
_COMPUTED: Final[dict[str, Any]] = {
    "overdue": sa.case((IS_OVERDUE, sa.literal_column("1")), else_=sa.literal_column("0")).label("overdue"),
    "consumer": _row.consumer_id,
    "generation": GENERATION,
}
ROW_COLUMNS: Final[tuple[Any, ...]] = tuple(_COMPUTED.get(name, _row.get(name)) for name in Row._fields[:-1])
_WITH_ORDER = sa.select(*ROW_COLUMNS, _row.ended_after)
"""For a call by consumer or group, which may select several attempts: see transitions.current_attempt."""


_BY_UUID = ListStatement(lambda size: sa.select(*ROW_COLUMNS).where(any_of(_row.uuid, size)))


def in_group(group: str, project_id: str | None) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """The conditions of a reservation in this group of the project, and in a group below it; None: of any project.

    ``project_id = 'p' AND group_id = 'a'``; ``project_id = 'p' AND group_id >= 'a/' AND group_id < 'a0'`` (0 follows /
    in ASCII). These are two ranges of an index. SQLite reads both for an OR of them only if the query has the project
    nowhere else; PostgreSQL, only if its statistics say that the table is large. A UNION ALL reads them always.
    """
    of_project = [] if project_id is None else [_row.project_id == project_id]
    is_below = (_row.group_id >= f"{group}/", _row.group_id < f"{group}0")
    return sa.and_(*of_project, _row.group_id == group), sa.and_(*of_project, *is_below)


def by_uuids(connection: sa.Connection, uuids: Sequence[str], project_id: str | None, grace: int) -> list[Row]:
    """The rows with these UUIDs, in the given order; of ``project_id`` alone unless None. ``grace``: microseconds."""
    rows = [Row(*row) for row in _BY_UUID.rows(connection, uuids, {"b_grace": grace})]
    by_uuid = {row.uuid: row for row in rows if project_id is None or row.project_id == project_id}
    return [by_uuid[uuid] for uuid in dict.fromkeys(uuids) if uuid in by_uuid]


def by_holder(
    connection: sa.Connection, project_id: str, *, consumer: str | None = None, group: str | None = None, grace: int
) -> list[Row]:
    """All rows of this consumer of the project, or of this group, in every state, that are not purged."""
    query: sa.Select[Any] | sa.CompoundSelect[Any]
    if group is None:
        query = _WITH_ORDER.where(_row.project_id == project_id, _row.consumer_id == consumer)
    else:
        query = sa.union_all(*map(_WITH_ORDER.where, in_group(group, project_id)))
    return [Row(*row) for row in connection.execute(query, {"b_grace": grace})]


class LiveOfConsumers(sa.ColumnElement[Any]):
    """The condition of a live reservation of one of ``size`` consumers (parameters ``b_0``, ...) of ``b_project``.

    A dialect may render it in another form than ``portable``, so that each consumer is looked up in a unique key.
    """

    inherit_cache = False
    type = sa.types.NULLTYPE  # (A Boolean would be rendered as ``... = 1`` for databases that have no such type.)

    def __init__(self, size: int) -> None:
        self.size = size

    def of(self, row: Any, is_consumer: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """The condition of a live reservation, where ``is_consumer`` selects the consumer. ``row``: the columns."""
        return sa.and_(row.project_id == sa.bindparam("b_project"), is_consumer, row.live == sa.literal_column("1"))

    @property
    def portable(self) -> sa.ColumnElement[bool]:
        """``project_id = :b_project AND consumer_id IN (:b_0, ...) AND live = 1``"""
        return self.of(_row, any_of(_row.consumer_id, self.size))


@compiles(LiveOfConsumers)
def _live_of_consumers(element: LiveOfConsumers, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.portable, **kw))


_LIVE = ListStatement(lambda size: sa.select(*ROW_COLUMNS).select_from(reservations).where(LiveOfConsumers(size)))


def live_of(
    connection: sa.Connection, project_id: str, consumers: Collection[str], grace: int
) -> dict[str | None, list[Row]]:
    """The live reservations of each of these consumers, including overdue ones."""
    live_rows = _LIVE.rows(connection, sorted(consumers), {"b_project": project_id, "b_grace": grace})
    return grouped((Row(*row) for row in live_rows), lambda row: row.consumer)


_HAS_LIVE = ListStatement(
    lambda size: (
        sa.select(sa.literal_column("1"))
        .select_from(reservations)
        .where(LiveOfConsumers(size))
        .limit(sa.literal_column("1"))
    )
)


def any_live(connection: sa.Connection, project_id: str, consumers: Collection[str]) -> bool:
    """Whether any of these consumers has a live reservation."""
    results = _HAS_LIVE.execute(connection, sorted(consumers), {"b_project": project_id})
    return any(result.first() is not None for result in results)


def is_any_live(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project has a live reservation."""
    return paging.exists(connection, _row.project_id == project_id, _row.live == 1)


def _unindexed(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """An equivalent expression that cannot be an index condition.

    PostgreSQL must find the rows by their ids or UUIDs. Without statistics, or with statistics of a smaller table, it
    might instead read all rows in flight through the index on ``state`` and ``expire``.
    """
    one: sa.ColumnElement[int] = sa.literal_column("1")
    return sa.case((condition, one), else_=sa.literal_column("0")) == one


IS_SAME_GENERATION: Final = sa.bindparam("b_generation", type_=_row.generation.type) == GENERATION


def _from_state(size: int, *conditions: sa.ColumnElement[bool]) -> sa.Update:
    is_same = (_row.state == sa.bindparam("b_before"), IS_SAME_GENERATION, *conditions)
    return sa.update(reservations).where(any_of(_row.id, size), *map(_unindexed, is_same))


def ended(state: sa.ColumnElement[str]) -> dict[str, Any]:
    """The new values of a row that ends in ``state``."""
    now = clock.utc_now()
    # In an UPDATE, MySQL can read the updated table only through a derived table:
    # (SELECT newest.id FROM (SELECT max(id) AS id FROM reservations) AS newest)
    newest = sa.select(sa.func.max(reservations.alias("every_reservation").c.id).label("id")).subquery("newest")
    return {
        "state": state,
        "updated_at": now,
        "deleted_at": now,
        "deleted": sa.true(),
        "live": sa.null(),
        "claim_ordinal": sa.null(),
        "ended_after": sa.select(newest.c.id).scalar_subquery(),
    }


def time_of(connection: sa.Connection, rows: Iterable[Row] = ()) -> int:
    """The second of a call that changes these reservations. It is not before the last change of any of them."""
    begun = (-(row.meter // row.delta) for row in rows)
    return max(clock.read_second(connection), *begun, 0)


METERED: Final = _row.meter + _row.delta * clock.at
"""The meter of a reservation that ends, or that changes: see meters.py."""


_COMMIT = ListStatement(
    lambda size: _from_state(size, NOT_OVERDUE).values(state=sa.bindparam("b_after"), updated_at=clock.utc_now())
)
_ENDED: Final = {**ended(sa.bindparam("b_after")), "meter": METERED}
_END = ListStatement(lambda size: _from_state(size).values(_ENDED))
_EXPIRE = ListStatement(lambda size: _from_state(size, IS_OVERDUE).values(_ENDED))
_EXTEND = ListStatement(
    lambda size: _from_state(size, NOT_OVERDUE).values(
        expire=clock.utc_after(sa.bindparam("b_ttl", type_=sa.BigInteger)), updated_at=clock.utc_now()
    )
)


def move(
    connection: sa.Connection,
    ids: Sequence[int],
    before: State,
    after: State,
    grace: int,
    *,
    at: int,
    generation: int = 0,
    ttl_microseconds: int = 0,
) -> bool:
    """Change the state of these rows. False: another transaction changed one of them, and the caller must roll back.

    The same state means an extension: their expiry becomes now plus the TTL. All rows have the same ``generation``:
    another generation means another amount or project than the caller has read. A row is committed or extended only if
    it is not overdue, and expired only if it is, by the database's clock at this statement. ``at``: the second at which
    the meters of those that end stop.
    """
    statement = _EXTEND if before == after else {COMMITTED: _COMMIT, EXPIRED: _EXPIRE}.get(after, _END)
    parameters = {
        "b_before": before, "b_after": after, "b_generation": generation, "b_grace": grace, "b_ttl": ttl_microseconds,
        "b_at": at,
    }  # fmt: skip
    return statement.changed(connection, sorted(ids), parameters) == len(ids)


def settle_in_flight_update(size: int, after: State) -> sa.Update:
    """The UPDATE that commits or rolls back reservations in flight that are not overdue, by UUID.

    It leaves out those that were resized or transferred: the caller knows only the rows as they were inserted. It also
    leaves out reservations that were made later than ``:b_at``, by another clock.
    """
    state: sa.ColumnElement[str] = sa.literal_column(f"'{after}'")
    values = {"state": state, "updated_at": clock.utc_now()}
    is_in_flight = [_row.state == sa.literal_column(f"'{RESERVED}'"), _row.generation.is_(None), NOT_OVERDUE]
    if after not in LIVE_STATES:
        values = {**ended(state), "meter": METERED}
        is_in_flight.append(sa.literal_column("-1") < METERED)
    return sa.update(reservations).where(any_of(_row.uuid, size), *map(_unindexed, is_in_flight)).values(values)


class Amendment(NamedTuple):
    """A change of the project and the amount of ``row``, by a resize or a transfer.

    ``uuid``: of the record of the change, generated by the call. ``usage_id``: the usage row of the new project.
    ``claim_ordinal``: the number of the row within its claim; None: it does not change.
    """

    row: Row
    uuid: str
    project_id: str
    usage_id: int
    delta: int
    claim_ordinal: int | None = None


_AMEND: Final = Statement(
    sa.update(reservations)
    .where(
        _row.id == sa.bindparam("b_id", type_=_row.id.type),
        _unindexed(_row.state == sa.bindparam("b_state")),
        IS_SAME_GENERATION,
        _row.delta == sa.bindparam("b_delta_before", type_=_row.delta.type),
        _unindexed(sa.or_(_row.state == sa.literal_column(f"'{COMMITTED}'"), NOT_OVERDUE)),
    )
    .values(
        **{
            name: sa.bindparam(f"b_{name}", type_=_row[name].type)
            for name in ("project_id", "usage_id", "delta", "meter")
        },
        claim_ordinal=sa.func.coalesce(
            sa.bindparam("b_claim_ordinal", type_=_row.claim_ordinal.type), _row.claim_ordinal
        ),
        generation=GENERATION + sa.literal_column("1"),
    )
)


def amend(connection: sa.Connection, changes: Sequence[Amendment], grace: int) -> int | None:
    """Make the changes, and record them. Returns the second from which the rows are metered with their new amounts.

    None: a row is no longer as its ``row`` says, or overdue: roll back.

    (``updated_at`` stays: in a committed row, it is the time of the commit.)
    """
    at = time_of(connection, [change.row for change in changes])
    for change in sorted(changes, key=lambda change: change.row.id):
        row = change.row
        parameters: dict[str, Any] = {f"b_{name}": value for name, value in change._asdict().items() if name != "row"}
        parameters |= {"b_id": row.id, "b_state": row.state, "b_generation": row.generation}
        parameters |= {"b_delta_before": row.delta, "b_grace": grace, "b_meter": -change.delta * at}
        if _AMEND(connection, parameters).rowcount == 0:
            return None
    records = [
        {
            "uuid": change.uuid,
            "reservation_id": change.row.id,
            "generation": change.row.generation + 1,
            "state": change.row.state,
            "project_before": change.row.project_id,
            "project_after": change.project_id,
            "delta_before": change.row.delta,
            "delta_after": change.delta,
        }
        for change in changes
    ]
    insert_many(connection, reservation_changes, records)
    return at


_NAME = Statement(
    sa.update(reservations)
    .where(
        _row.id == sa.bindparam("b_id", type_=_row.id.type),
        _row.consumer_id.is_(None),
        _row.live == sa.literal_column("1"),
        IS_SAME_GENERATION,
    )
    .values(
        consumer_id=sa.bindparam("b_consumer", type_=_row.consumer_id.type),
        claim_ordinal=sa.bindparam("b_ordinal", type_=_row.claim_ordinal.type),
    )
)


def name(connection: sa.Connection, row: Row, consumer: str, ordinal: int) -> bool:
    """Give a live row without a consumer to ``consumer``, as number ``ordinal`` of its claim. False: roll back.

    Raises DBDuplicateEntry if the consumer has live reservations.
    """
    parameters = {"b_id": row.id, "b_generation": row.generation, "b_consumer": consumer, "b_ordinal": ordinal}
    return _NAME(connection, parameters).rowcount == 1


_SET_SOURCE = ListStatement(
    lambda size: (
        sa.update(reservations)
        .where(
            any_of(_row.uuid, size),
            sa.func.coalesce(_row.source, sa.literal_column("''")) == sa.bindparam("b_replaced"),
            _row.live == sa.literal_column("1"),
        )
        .values(source=sa.bindparam("b_source", type_=_row.source.type))
    )
)


def set_source(connection: sa.Connection, uuids: Sequence[str], source: str, replaced: str | None) -> int:
    """Set the source of those of these live reservations whose source is ``replaced``; None: that have none.

    Returns the number of changed rows.
    """
    return _SET_SOURCE.changed(connection, sorted(uuids), {"b_source": source, "b_replaced": replaced or ""})


# --- Claims of capacity ---

IS_LIVE_CLAIM = sa.and_(_row.provider_id.is_not(None), _row.live == 1)


def claimed_sums() -> sa.Subquery:
    """A subquery: what live reservations claim, by provider and resource (``expected``)."""
    return (
        sa.select(_row.provider_id, _row.resource, sa.func.sum(_row.delta).label("expected"))
        .where(IS_LIVE_CLAIM)
        .group_by(_row.provider_id, _row.resource)
        .subquery("sums")
    )


def claimed_query(provider_id: int, resource: str) -> sa.Select[Any]:
    """The query for what live reservations claim of one inventory."""
    return sa.select(sa.func.coalesce(sa.func.sum(_row.delta), 0)).where(
        IS_LIVE_CLAIM, _row.provider_id == provider_id, _row.resource == resource
    )


# --- New rows ---

_MAX_ROWS: Final = 64
"""The maximum number of rows of one INSERT."""


def _own(name: str, index: int) -> sa.BindParameter[Any]:
    """A value of one row, by its index; ``row_parameters``: the parameters."""
    return sa.bindparam(f"b_{name}_{index}", type_=_row[name].type)


def insert_rows(size: int, columns: Sequence[str], state: State) -> sa.Insert:
    """The INSERT of live rows that set these columns, with the parameters ``b_project``, ``b_ttl`` and ``b_at``."""
    shared: dict[str, Any] = {
        "created_at": clock.utc_now(),
        "deleted": sa.false(),
        "project_id": sa.bindparam("b_project", type_=_row.project_id.type),
        "expire": clock.utc_after(sa.bindparam("b_ttl", type_=sa.BigInteger)) if state == RESERVED else sa.null(),
        "state": sa.literal_column(f"'{state}'"),
        "live": sa.literal_column("1"),
    }
    rows = [
        {"meter": -_own("delta", index) * clock.at, **shared, **{name: _own(name, index) for name in columns}}
        for index in range(size)
    ]
    return sa.insert(reservations).values(rows if size > 1 else rows[0])


def live_rows_of_consumers(size: int) -> sa.Select[Any]:
    """A query for the live reservations of the consumers of the first ``size`` rows."""
    holder = reservations.alias("holder")
    consumers = [_own("consumer_id", index) for index in range(size)]
    return sa.select(sa.literal_column("1")).where(
        holder.c.project_id == sa.bindparam("b_project", type_=_row.project_id.type),
        holder.c.consumer_id == consumers[0] if size == 1 else holder.c.consumer_id.in_(consumers),
        holder.c.live == sa.literal_column("1"),
    )


@functools.cache
def _insert_of(size: int, columns: Sequence[str], state: State) -> Statement:
    return Statement(insert_rows(size, columns, state))


def insert(connection: sa.Connection, rows: Sequence[NewReservation]) -> int:
    """Insert live rows of one project, one state and one lifetime. Returns the second from which they are metered.

    Raises DBDuplicateEntry if a UUID, or a live reservation of the same consumer, exists.
    """
    first, columns, at = rows[0], columns_of(rows), time_of(connection)
    shared: dict[str, Any] = {"b_project": first.project_id, "b_ttl": first.ttl_microseconds, "b_at": at}
    begin = 0
    while begin < len(rows):
        size = 1
        while size * 2 <= min(len(rows) - begin, _MAX_ROWS):
            size *= 2
        parameters = {**shared, **row_parameters(rows[begin : begin + size], columns)}
        _insert_of(size, columns, first.state)(connection, parameters)
        begin += size
    return at


_VARIANTS: Final = {digit: "89ab"[index % 4] for index, digit in enumerate("0123456789abcdef")}


def new_uuid() -> str:
    """A random UUID (RFC 9562, version 4) for a reservation. Takes a third of the time of ``uuid.uuid4()``."""
    bits = os.urandom(16).hex()
    return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{_VARIANTS[bits[16]]}{bits[17:20]}-{bits[20:]}"


class NewReservation(NamedTuple):
    """A row to insert: first its own columns (COLUMNS), then what it shares with the other rows of its claim.

    ``claim_ordinal`` numbers the rows of a consumer's claim from 1, in the order of their resources; it is None without
    a consumer. ``ttl_microseconds`` None: the row does not expire, and is inserted as committed.
    """

    uuid: str
    usage_id: int
    resource: str
    delta: int
    consumer_id: str | None
    group_id: str | None
    claim_ordinal: int | None
    source: str | None
    provider_id: int | None
    pod: str | None
    project_id: str
    state: State
    ttl_microseconds: int | None


COLUMNS: Final = NewReservation._fields[:10]


def columns_of(rows: Sequence[NewReservation]) -> tuple[str, ...]:
    """The columns that any of the rows sets: most callers set few, and each parameter costs time."""
    by_column = zip(COLUMNS, zip(*rows, strict=True), strict=False)  # (without the shared values)
    return tuple([name for name, values in by_column if values.count(None) < len(values)])


def row_parameters(rows: Sequence[NewReservation], columns: Sequence[str]) -> dict[str, Any]:
    """The parameters of ``reservations.insert_rows``, but those that all rows share."""
    return {f"b_{name}_{index}": getattr(row, name) for index, row in enumerate(rows) for name in columns}


_change = reservation_changes.c


def is_any_change_recorded(connection: sa.Connection, uuids: Collection[str]) -> bool:
    """Whether an earlier attempt of the call that made these UUIDs was committed."""
    return paging.exists(connection, _change.uuid.in_(sorted(uuids)))


DELETE_CHANGES = ListStatement(lambda size: sa.delete(reservation_changes).where(any_of(_change.reservation_id, size)))
"""Deletes the changes of reservations, by their ids."""
