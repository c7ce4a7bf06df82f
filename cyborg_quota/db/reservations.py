# SPDX-License-Identifier: Apache-2.0
"""The table reservations: queries, and changes of state.

new_reservations.py inserts the rows; maintenance.py deletes, folds and sums them.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations, resource_providers
from cyborg_quota.db.prepared import ListStatement, Statement, any_of
from cyborg_quota.transitions import Row
from cyborg_quota.types import COMMITTED, EXPIRED, LIVE_STATES, RESERVED, ROLLED_BACK, Reservation, State

_row = reservations.c


_IS_OVERDUE = sa.and_(
    _row.state == sa.literal_column(f"'{RESERVED}'"),
    _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)),
)
NOT_OVERDUE = sa.or_(
    _row.expire.is_(None), _row.expire > clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger))
)
GENERATION: Final = sa.func.coalesce(_row.generation, sa.literal_column("0"))
_COLUMNS: Final[tuple[Any, ...]] = (
    _row.id,
    _row.uuid,
    _row.usage_id,
    _row.project_id,
    _row.resource,
    _row.delta,
    _row.state,
    sa.case((_IS_OVERDUE, sa.literal_column("1")), else_=sa.literal_column("0")).label("overdue"),
    _row.consumer_id,
    _row.provider_id,
    GENERATION,
)
_WITH_ORDER = sa.select(*_COLUMNS, _row.ended_after, _row.created_at, _row.deleted_at)
"""For a call by consumer or group, which may select several attempts: see transitions.current_attempt."""


def _to_row(result_row: Any) -> Row:
    """Convert a result row with the columns _COLUMNS, or those of _WITH_ORDER."""
    return Row(*result_row)


_BY_UUID = ListStatement(lambda size: sa.select(*_COLUMNS).where(any_of(_row.uuid, size)))
_BY_CONSUMER = _WITH_ORDER.where(
    _row.project_id == sa.bindparam("b_project"), _row.consumer_id == sa.bindparam("b_name")
)
_BY_GROUP = _WITH_ORDER.where(_row.project_id == sa.bindparam("b_project"), _row.group_id == sa.bindparam("b_name"))


def by_uuids(connection: sa.Connection, uuids: Sequence[str], project_id: str | None, grace: int) -> list[Row]:
    """The rows with these UUIDs, in the given order; of ``project_id`` alone unless None. ``grace``: microseconds."""
    rows = [_to_row(row) for row in _BY_UUID.rows(connection, uuids, {"b_grace": grace})]
    by_uuid = {row.uuid: row for row in rows if project_id is None or row.project_id == project_id}
    return [by_uuid[uuid] for uuid in dict.fromkeys(uuids) if uuid in by_uuid]


def by_consumer(connection: sa.Connection, project_id: str, consumer: str, grace: int) -> list[Row]:
    """All rows of this consumer of the project, in every state, that are not purged."""
    result = connection.execute(_BY_CONSUMER, {"b_project": project_id, "b_name": consumer, "b_grace": grace})
    return [_to_row(row) for row in result]


def by_group(connection: sa.Connection, project_id: str, group: str, grace: int) -> list[Row]:
    """All rows of this group of the project, in every state, that are not purged."""
    result = connection.execute(_BY_GROUP, {"b_project": project_id, "b_name": group, "b_grace": grace})
    return [_to_row(row) for row in result]


_LIVE = ListStatement(
    lambda size: sa.select(*_COLUMNS).where(
        _row.project_id == sa.bindparam("b_project"),
        any_of(_row.consumer_id, size),
        _row.live == sa.literal_column("1"),
    )
)


def live_of(
    connection: sa.Connection, project_id: str, consumers: Collection[str], grace: int
) -> dict[str | None, list[Row]]:
    """The live reservations of each of these consumers, including overdue ones."""
    live_rows: dict[str | None, list[Row]] = {}
    for result_row in _LIVE.rows(connection, sorted(consumers), {"b_project": project_id, "b_grace": grace}):
        row = _to_row(result_row)
        live_rows.setdefault(row.consumer, []).append(row)
    return live_rows


_HAS_LIVE = ListStatement(
    lambda size: (
        sa.select(sa.literal_column("1"))
        .where(
            _row.project_id == sa.bindparam("b_project"),
            any_of(_row.consumer_id, size),
            _row.live == sa.literal_column("1"),
        )
        .limit(sa.literal_column("1"))
    )
)


def any_live(connection: sa.Connection, project_id: str, consumers: Collection[str]) -> bool:
    """Whether any of these consumers has a live reservation."""
    results = _HAS_LIVE.execute(connection, sorted(consumers), {"b_project": project_id})
    return any(result.first() is not None for result in results)


def is_any_live(connection: sa.Connection, project_id: str) -> bool:
    """Whether the project has a live reservation."""
    query = sa.select(sa.literal(1)).where(_row.project_id == project_id, _row.live == 1)
    return connection.execute(query.limit(1)).first() is not None


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


def _newest_id() -> sa.ScalarSelect[Any]:
    """(SELECT newest.id FROM (SELECT max(id) AS id FROM reservations) AS newest)

    In an UPDATE, MySQL can read the updated table only through a derived table.
    """
    every = reservations.alias("every_reservation")
    newest = sa.select(sa.func.max(every.c.id).label("id")).subquery("newest")
    return sa.select(newest.c.id).scalar_subquery()


def _ended(state: sa.ColumnElement[str]) -> dict[str, Any]:
    """The new values of a row that ends in ``state``."""
    now = clock.utc_now()
    return {
        "state": state,
        "updated_at": now,
        "deleted_at": now,
        "deleted": sa.true(),
        "live": sa.null(),
        "claim_ordinal": sa.null(),
        "ended_after": _newest_id(),
    }


def _ending(size: int, *conditions: sa.ColumnElement[bool]) -> sa.Update:
    return _from_state(size, *conditions).values(_ended(sa.bindparam("b_after")))


_COMMIT = ListStatement(
    lambda size: _from_state(size, NOT_OVERDUE).values(state=sa.bindparam("b_after"), updated_at=clock.utc_now())
)
_END = ListStatement(_ending)
_EXPIRE = ListStatement(lambda size: _ending(size, _IS_OVERDUE))
_EXTEND = ListStatement(
    lambda size: _from_state(size, NOT_OVERDUE).values(
        expire=clock.utc_after(sa.bindparam("b_ttl", type_=sa.BigInteger)), updated_at=clock.utc_now()
    )
)


def move(
    connection: sa.Connection, ids: Sequence[int], before: State, after: State, grace: int, *, generation: int = 0
) -> bool:
    """Change the state of these rows. False: another transaction changed one of them, and the caller must roll back.

    All rows have the same ``generation``: another one means another amount or project than the caller has read. A row
    is committed only if it is not overdue, and expired only if it is, by the database's clock at this statement.
    """
    parameters: dict[str, Any] = {"b_before": before, "b_after": after, "b_generation": generation}
    if after in LIVE_STATES:
        statement, parameters["b_grace"] = _COMMIT, grace
    elif after == EXPIRED:
        statement, parameters["b_grace"] = _EXPIRE, grace
    else:
        statement = _END
    return statement.changed(connection, sorted(ids), parameters) == len(ids)


def settle_in_flight_update(size: int, after: State) -> sa.Update:
    """The UPDATE that commits or rolls back reservations in flight that are not overdue, by UUID.

    It leaves out those that were resized or transferred: the caller knows only the rows as they were inserted.
    """
    state: sa.ColumnElement[str] = sa.literal_column(f"'{after}'")
    values = {"state": state, "updated_at": clock.utc_now()} if after in LIVE_STATES else _ended(state)
    is_in_flight = (_row.state == sa.literal_column(f"'{RESERVED}'"), _row.generation.is_(None), NOT_OVERDUE)
    return sa.update(reservations).where(any_of(_row.uuid, size), *map(_unindexed, is_in_flight)).values(values)


_SETTLE_IN_FLIGHT: Final = {
    COMMITTED: ListStatement(lambda size: settle_in_flight_update(size, COMMITTED)),
    ROLLED_BACK: ListStatement(lambda size: settle_in_flight_update(size, ROLLED_BACK)),
}


def settle_in_flight(connection: sa.Connection, uuids: Sequence[str], after: State, grace: int) -> bool:
    """Commit or roll back reservations in flight that are not overdue, without reading them first.

    False: at least one is in another state or overdue, or was resized or transferred. The caller must roll back, and
    read them.
    """
    return _SETTLE_IN_FLIGHT[after].changed(connection, sorted(uuids), {"b_grace": grace}) == len(uuids)


def extend(
    connection: sa.Connection, ids: Sequence[int], ttl_microseconds: int, grace: int, *, generation: int = 0
) -> bool:
    """Set the expiry of rows in flight to now plus the TTL. False: one was not changed; roll back."""
    parameters = {"b_before": RESERVED, "b_ttl": ttl_microseconds, "b_grace": grace, "b_generation": generation}
    return _EXTEND.changed(connection, sorted(ids), parameters) == len(ids)


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


_LINK = (
    sa.update(reservations)
    .where(
        _row.project_id == sa.bindparam("b_project"),
        _row.resource == sa.bindparam("b_resource"),
        _row.live == 1,
    )
    .values(usage_id=sa.bindparam("b_usage_id"))
)


def link(connection: sa.Connection, usage_id: int, project_id: str, resource: str) -> None:
    """Link a project's live reservations to their usage row after that row was recreated."""
    connection.execute(_LINK, {"b_usage_id": usage_id, "b_project": project_id, "b_resource": resource})


def list_reservations(
    connection: sa.Connection,
    *,
    project_id: str | None = None,
    state: State | None = None,
    uuids: Collection[str] | None = None,
    consumer: str | None = None,
    group: str | None = None,
    limit: int | None = None,
    after: str | None = None,
    resource: str | None = None,
) -> list[Reservation]:
    """The reservations that match all filters, oldest first, after the UUID ``after``. Raises ReservationNotFound."""
    query = sa.select(
        _row.uuid,
        _row.project_id,
        _row.resource,
        _row.delta,
        _row.state,
        _row.consumer_id,
        _row.group_id,
        _row.expire,
        _row.created_at,
        _row.deleted_at,
        _row.source,
        resource_providers.c.name.label("provider"),
    ).order_by(_row.id)
    query = query.select_from(reservations.outerjoin(resource_providers, resource_providers.c.id == _row.provider_id))
    for column, value in (
        (_row.project_id, project_id),
        (_row.state, state),
        (_row.consumer_id, consumer),
        (_row.group_id, group),
        (_row.resource, resource),
    ):
        if value is not None:
            query = query.where(column == value)
    if uuids is not None:
        query = query.where(_row.uuid.in_(sorted(uuids)))
    if after is not None:
        after_id = connection.scalar(sa.select(_row.id).where(_row.uuid == after))
        if after_id is None:
            raise exceptions.ReservationNotFound(after)  # purged: an empty page would mean the end of the list
        query = query.where(_row.id > after_id)
    if limit is not None:
        query = query.limit(limit)
    return [
        Reservation(
            uuid=row.uuid,
            project_id=row.project_id,
            resource=row.resource,
            delta=row.delta,
            state=row.state,
            consumer=row.consumer_id,
            group=row.group_id,
            expire=row.expire,
            created_at=row.created_at,
            ended_at=row.deleted_at,
            source=row.source,
            provider=row.provider,
        )
        for row in connection.execute(query)
    ]


_OPEN = sa.and_(
    _row.usage_id == sa.bindparam("b_usage_id", type_=_row.usage_id.type),
    _row.state == sa.literal_column(f"'{RESERVED}'"),
)
# SELECT count(*) FROM reservations WHERE usage_id = :id AND state = 'reserved': an index-only scan.
_COUNT_OPEN = Statement(sa.select(sa.func.count()).select_from(reservations).where(_OPEN))
_COUNT_OPEN_NEGATIVE = Statement(
    sa.select(sa.func.count()).select_from(reservations).where(_OPEN, _row.delta < sa.literal_column("0"))
)


def count_open(connection: sa.Connection, usage_id: int) -> int:
    """The number of open reservations, including overdue ones. Exact if the transaction has locked the usage row."""
    return int(_COUNT_OPEN(connection, {"b_usage_id": usage_id}).scalar_one())


def open_of_row(usage_id: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """A subquery: the number of open reservations of the usage row with this id."""
    is_open = _row.state == sa.literal_column(f"'{RESERVED}'")
    return sa.select(sa.func.count()).where(_row.usage_id == usage_id, is_open).scalar_subquery()


def count_open_negative(connection: sa.Connection, usage_id: int) -> int:
    """The number of open reservations with a negative delta."""
    return int(_COUNT_OPEN_NEGATIVE(connection, {"b_usage_id": usage_id}).scalar_one())


_SET_SOURCE = ListStatement(
    lambda size: (
        sa.update(reservations)
        .where(any_of(_row.uuid, size), _row.source.is_(None), _row.live == sa.literal_column("1"))
        .values(source=sa.bindparam("b_source", type_=_row.source.type))
    )
)


def set_source(connection: sa.Connection, uuids: Sequence[str], source: str) -> int:
    """Set the source of those of these live reservations that have none. Returns the number of changed rows."""
    return _SET_SOURCE.changed(connection, sorted(uuids), {"b_source": source})


Overdue = tuple[int, str, str, int, int | None, int]
"""An overdue reservation: id, project_id, resource, delta, provider_id, generation."""

ExpiryPosition = tuple[datetime.datetime, int]
"""The position of a reservation in the order of expiry: its ``expire``, and its id."""

_OVERDUE = sa.select(
    _row.id, _row.project_id, _row.resource, _row.delta, _row.provider_id, GENERATION.label("generation")
).where(_IS_OVERDUE)
_MAX_ROWS = sa.bindparam("b_limit", type_=sa.Integer)
# (In index order. With the id as a second key, PostgreSQL might sort all overdue rows again for each batch.)
_NEXT_OVERDUE = _OVERDUE.order_by(_row.expire).limit(_MAX_ROWS)
_LONGEST_OVERDUE = _OVERDUE.order_by(_row.expire, _row.id).limit(_MAX_ROWS)
_OVERDUE_AFTER = _LONGEST_OVERDUE.where(
    _row.expire >= sa.bindparam("b_expire", type_=_row.expire.type),
    sa.or_(
        _row.expire > sa.bindparam("b_expire", type_=_row.expire.type),
        _row.id > sa.bindparam("b_id", type_=_row.id.type),
    ),
)
_EXPIRE_OF = sa.select(_row.expire).where(
    _row.id == sa.bindparam("b_id"), _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger))
)
_OVERDUE_OF = ListStatement(lambda size: _OVERDUE.where(any_of(_row.id, size)))
_EXPIRE_BATCH = ListStatement(
    lambda size: (
        sa.update(reservations)
        .where(any_of(_row.id, size), _IS_OVERDUE, IS_SAME_GENERATION)
        .values(_ended(sa.literal_column(f"'{EXPIRED}'")))
    )
)


def read_overdue(connection: sa.Connection, limit: int, grace: int) -> Sequence[Overdue]:
    """The next ``limit`` overdue reservations, longest overdue first."""
    return [tuple(row) for row in connection.execute(_NEXT_OVERDUE, {"b_limit": limit, "b_grace": grace})]


def read_overdue_after(
    connection: sa.Connection, position: ExpiryPosition | None, limit: int, grace: int
) -> tuple[Sequence[Any], ExpiryPosition | None]:
    """The next overdue reservations after ``position`` (None: from the first), and the position of the last one.

    Reading on from a position skips the rows that are being expired, and the dead index entries of expired ones.
    """
    parameters: dict[str, Any] = {"b_limit": limit, "b_grace": grace}
    if position is None:
        rows = connection.execute(_LONGEST_OVERDUE, parameters).all()
    else:
        rows = connection.execute(_OVERDUE_AFTER, {**parameters, "b_expire": position[0], "b_id": position[1]}).all()
    # (Read the date of one row only: PyMySQL takes longer to parse a date than the rest of a row.)
    for row in reversed(rows):
        moment = connection.execute(_EXPIRE_OF, {"b_id": row.id, "b_grace": grace}).scalar()
        if moment is not None:  # None: the reservation was extended or ended concurrently
            return rows, (moment, row.id)
    return rows, position


def still_overdue(connection: sa.Connection, ids: Collection[int], grace: int) -> Sequence[Overdue]:
    """Those of these reservations that are still overdue."""
    return [tuple(row) for row in _OVERDUE_OF.rows(connection, sorted(ids), {"b_grace": grace})]


def expire(connection: sa.Connection, rows: Sequence[Overdue], grace: int) -> bool:
    """Expire these reservations. False: another transaction changed one, and the caller must roll back."""
    by_generation: dict[int, list[int]] = {}
    for row in rows:
        by_generation.setdefault(row[5], []).append(row[0])
    return all(
        _EXPIRE_BATCH.changed(connection, sorted(ids), {"b_grace": grace, "b_generation": generation}) == len(ids)
        for generation, ids in sorted(by_generation.items())
    )
