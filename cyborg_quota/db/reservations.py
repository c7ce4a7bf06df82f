# SPDX-License-Identifier: Apache-2.0
"""reservations: finding them, and taking them from state to state. inserting.py makes them, upkeep.py ends them."""

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
_FACTS: Final[tuple[Any, ...]] = (
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
_WITH_ORDER = sa.select(*_FACTS, _row.ended_after, _row.created_at, _row.deleted_at)
"""For a call by name, which may mean several attempts of a consumer; see transitions.present_life."""


def _fact(found: Any) -> Row:
    """A row of _FACTS or of _WITH_ORDER."""
    return Row(*found)


_BY_UUID = ListStatement(lambda size: sa.select(*_FACTS).where(any_of(_row.uuid, size)))
_BY_CONSUMER = _WITH_ORDER.where(
    _row.project_id == sa.bindparam("b_project"), _row.consumer_id == sa.bindparam("b_name")
)
_BY_GROUP = _WITH_ORDER.where(_row.project_id == sa.bindparam("b_project"), _row.group_id == sa.bindparam("b_name"))


def by_uuids(connection: sa.Connection, uuids: Sequence[str], project_id: str | None, grace: int) -> list[Row]:
    """The rows of these UUIDs, in the order given; of ``project_id`` alone unless None. ``grace``: microseconds."""
    found = [_fact(row) for row in _BY_UUID.rows(connection, uuids, {"b_grace": grace})]
    rows = {row.uuid: row for row in found if project_id is None or row.project_id == project_id}
    return [rows[uuid] for uuid in dict.fromkeys(uuids) if uuid in rows]


def by_consumer(connection: sa.Connection, project_id: str, consumer: str, grace: int) -> list[Row]:
    """Every row this consumer of the project ever had (that is not purged)."""
    found = connection.execute(_BY_CONSUMER, {"b_project": project_id, "b_name": consumer, "b_grace": grace})
    return [_fact(row) for row in found]


def by_group(connection: sa.Connection, project_id: str, group: str, grace: int) -> list[Row]:
    """Every row of this group of the project (that is not purged)."""
    found = connection.execute(_BY_GROUP, {"b_project": project_id, "b_name": group, "b_grace": grace})
    return [_fact(row) for row in found]


_LIVE = ListStatement(
    lambda size: sa.select(*_FACTS).where(
        _row.project_id == sa.bindparam("b_project"),
        any_of(_row.consumer_id, size),
        _row.live == sa.literal_column("1"),
    )
)


def live_of(
    connection: sa.Connection, project_id: str, consumers: Collection[str], grace: int
) -> dict[str | None, list[Row]]:
    """What each of these consumers holds now (the overdue included)."""
    held: dict[str | None, list[Row]] = {}
    for found in _LIVE.rows(connection, sorted(consumers), {"b_project": project_id, "b_grace": grace}):
        row = _fact(found)
        held.setdefault(row.consumer, []).append(row)
    return held


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
    """Whether one of these consumers holds something now."""
    results = _HAS_LIVE.execute(connection, sorted(consumers), {"b_project": project_id})
    return any(result.first() is not None for result in results)


def _unindexed(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """The same as an expression that is no index condition.

    PostgreSQL must find rows by their ids or UUIDs. Without statistics, or with those of a smaller table, it may read
    all rows in flight instead, by the index on ``state`` and ``expire``.
    """
    one: sa.ColumnElement[int] = sa.literal_column("1")
    return sa.case((condition, one), else_=sa.literal_column("0")) == one


def _from_state(size: int, *conditions: sa.ColumnElement[bool]) -> sa.Update:
    unindexed = [_unindexed(one) for one in (_row.state == sa.bindparam("b_before"), *conditions)]
    return sa.update(reservations).where(any_of(_row.id, size), *unindexed)


def _newest_id() -> sa.ScalarSelect[Any]:
    """(SELECT newest.id FROM (SELECT max(id) AS id FROM reservations) AS newest)

    MySQL does not read the table that a statement updates, except through a derived table.
    """
    every = reservations.alias("every_reservation")
    newest = sa.select(sa.func.max(every.c.id).label("id")).subquery("newest")
    return sa.select(newest.c.id).scalar_subquery()


def ended(state: sa.ColumnElement[str]) -> dict[str, Any]:
    """What a row that ends is given: this state, and what follows from it."""
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
    """Take rows from one state to another: all of them, or (False) roll back, for somebody else moved one.

    A row is committed only while it is not overdue, and expired only when it is, on the clock of this statement.
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
    """Commit or roll back what is in flight and in time, by UUID."""
    state: sa.ColumnElement[str] = sa.literal_column(f"'{after}'")
    values = {"state": state, "updated_at": clock.utc_now()} if after in LIVE_STATES else ended(state)
    in_flight = _unindexed(_row.state == sa.literal_column(f"'{RESERVED}'"))
    return sa.update(reservations).where(any_of(_row.uuid, size), in_flight, _unindexed(_NOT_OVERDUE)).values(values)


_SETTLE_IN_FLIGHT: Final = {
    COMMITTED: ListStatement(lambda size: settle_in_flight_update(size, COMMITTED)),
    ROLLED_BACK: ListStatement(lambda size: settle_in_flight_update(size, ROLLED_BACK)),
}


def settle_in_flight(connection: sa.Connection, uuids: Sequence[str], after: State, grace: int) -> bool:
    """Commit or roll back what is in flight and in time, unseen: all of them, or (False) roll back, and look."""
    return _SETTLE_IN_FLIGHT[after].changed(connection, sorted(uuids), {"b_grace": grace}) == len(uuids)


def extend(connection: sa.Connection, ids: Sequence[int], ttl_microseconds: int, grace: int) -> bool:
    """Give rows in flight a new expiry, counted from now: all of them, or (False) roll back."""
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
    """Tie a project's live reservations to the usage row that was made anew for them."""
    connection.execute(_LINK, {"b_usage_id": usage_id, "b_project": project_id, "b_resource": resource})
