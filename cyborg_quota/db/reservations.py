# SPDX-License-Identifier: Apache-2.0
"""The table reservations: queries, and changes of state.

inserting.py inserts the rows, many.py expires them in batches, and maintenance.py deletes and folds them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations
from cyborg_quota.db.prepared import ListStatement, any_of
from cyborg_quota.transitions import Row
from cyborg_quota.types import COMMITTED, EXPIRED, LIVE_STATES, RESERVED, ROLLED_BACK, State

_row = reservations.c


IS_OVERDUE = sa.and_(
    _row.state == sa.literal_column(f"'{RESERVED}'"),
    _row.expire <= clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)),
)
_NOT_OVERDUE = sa.or_(
    _row.expire.is_(None), _row.expire > clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger))
)
_COLUMNS: Final[tuple[Any, ...]] = (
    _row.id,
    _row.uuid,
    _row.usage_id,
    _row.project_id,
    _row.resource,
    _row.delta,
    _row.state,
    sa.case((IS_OVERDUE, sa.literal_column("1")), else_=sa.literal_column("0")).label("overdue"),
    _row.consumer_id,
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


def _unindexed(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """An equivalent expression that cannot be an index condition.

    PostgreSQL must find the rows by their ids or UUIDs. Without statistics, or with statistics of a smaller table, it
    might instead read all rows in flight through the index on ``state`` and ``expire``.
    """
    one: sa.ColumnElement[int] = sa.literal_column("1")
    return sa.case((condition, one), else_=sa.literal_column("0")) == one


def _from_state(size: int, *conditions: sa.ColumnElement[bool]) -> sa.Update:
    unindexed = [_unindexed(condition) for condition in (_row.state == sa.bindparam("b_before"), *conditions)]
    return sa.update(reservations).where(any_of(_row.id, size), *unindexed)


def _newest_id() -> sa.ScalarSelect[Any]:
    """(SELECT newest.id FROM (SELECT max(id) AS id FROM reservations) AS newest)

    In an UPDATE, MySQL can read the updated table only through a derived table.
    """
    every = reservations.alias("every_reservation")
    newest = sa.select(sa.func.max(every.c.id).label("id")).subquery("newest")
    return sa.select(newest.c.id).scalar_subquery()


def ended(state: sa.ColumnElement[str]) -> dict[str, Any]:
    """The new values of a row that ends in ``state``."""
    now = clock.utc_now()
    return {
        "state": state,
        "updated_at": now,
        "deleted_at": now,
        "deleted": sa.true(),
        "live": sa.null(),
        "place": sa.null(),
        "ended_after": _newest_id(),
    }


def _ending(size: int, *conditions: sa.ColumnElement[bool]) -> sa.Update:
    return _from_state(size, *conditions).values(ended(sa.bindparam("b_after")))


_COMMIT = ListStatement(
    lambda size: _from_state(size, _NOT_OVERDUE).values(state=sa.bindparam("b_after"), updated_at=clock.utc_now())
)
_END = ListStatement(_ending)
_EXPIRE = ListStatement(lambda size: _ending(size, IS_OVERDUE))
_EXTEND = ListStatement(
    lambda size: _from_state(size, _NOT_OVERDUE).values(
        expire=clock.utc_after(sa.bindparam("b_life", type_=sa.BigInteger)), updated_at=clock.utc_now()
    )
)


def move(connection: sa.Connection, ids: Sequence[int], before: State, after: State, grace: int) -> bool:
    """Change the state of these rows. False: another transaction changed one of them, and the caller must roll back.

    A row is committed only if it is not overdue, and expired only if it is, by the database's clock at this statement.
    """
    parameters: dict[str, Any] = {"b_before": before, "b_after": after}
    if after in LIVE_STATES:
        statement, parameters["b_grace"] = _COMMIT, grace
    elif after == EXPIRED:
        statement, parameters["b_grace"] = _EXPIRE, grace
    else:
        statement = _END
    return statement.changed(connection, sorted(ids), parameters) == len(ids)


def settle_in_flight_update(size: int, after: State) -> sa.Update:
    """The UPDATE that commits or rolls back reservations in flight that are not overdue, by UUID."""
    state: sa.ColumnElement[str] = sa.literal_column(f"'{after}'")
    values = {"state": state, "updated_at": clock.utc_now()} if after in LIVE_STATES else ended(state)
    in_flight = _unindexed(_row.state == sa.literal_column(f"'{RESERVED}'"))
    return sa.update(reservations).where(any_of(_row.uuid, size), in_flight, _unindexed(_NOT_OVERDUE)).values(values)


_SETTLE_IN_FLIGHT: Final = {
    COMMITTED: ListStatement(lambda size: settle_in_flight_update(size, COMMITTED)),
    ROLLED_BACK: ListStatement(lambda size: settle_in_flight_update(size, ROLLED_BACK)),
}


def settle_in_flight(connection: sa.Connection, uuids: Sequence[str], after: State, grace: int) -> bool:
    """Commit or roll back reservations in flight that are not overdue, without reading them first.

    False: at least one is in another state or overdue. The caller must roll back, and read them.
    """
    return _SETTLE_IN_FLIGHT[after].changed(connection, sorted(uuids), {"b_grace": grace}) == len(uuids)


def extend(connection: sa.Connection, ids: Sequence[int], ttl_microseconds: int, grace: int) -> bool:
    """Set the expiry of rows in flight to now plus the TTL. False: one was not changed; roll back."""
    parameters = {"b_before": RESERVED, "b_life": ttl_microseconds, "b_grace": grace}
    return _EXTEND.changed(connection, sorted(ids), parameters) == len(ids)


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
