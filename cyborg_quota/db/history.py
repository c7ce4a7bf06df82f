# SPDX-License-Identifier: Apache-2.0
"""Reads reservations: lists of them, those that are overdue, and their history, as events for an export.

The events are one statement, so that its result is one point in time; the database sorts, and the rows are read as a
stream. The time of a commit is stored only while the reservation is committed: that of a released one is reported at
its creation.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import clock, dialects, paging, resource_providers, usages
from cyborg_quota.db.models import reservation_changes, reservations
from cyborg_quota.db.reservations import IS_LIVE_CLAIM, IS_OVERDUE, ROW_COLUMNS, in_group
from cyborg_quota.types import COMMITTED, RELEASED, RESERVED, Reservation, ReservationFilter, Row, State
from cyborg_quota.types.capacity import Allocation

_row = reservations.c
_change = reservation_changes.c
_STREAM_ROWS: Final = 1000
_ZERO: Final = sa.literal_column("0", sa.Integer)

RESERVE: Final = 0
LEAVE: Final = 1
TAKE: Final = 2
COMMIT: Final = 3
END: Final = 4


def begin(connection: sa.Connection, microseconds: int | None) -> datetime.datetime:
    """So many microseconds ago (naive UTC). None: the time of the first reservation that is stored."""
    if microseconds is None:
        first = sa.select(sa.func.min(_row.created_at)).scalar_subquery()
        moment: sa.ColumnElement[Any] = sa.func.coalesce(first, clock.utc_now())
    else:
        moment = clock.utc_after(-sa.literal(microseconds, sa.BigInteger))
    return connection.execute(sa.select(sa.type_coerce(moment, sa.DateTime()))).scalar_one()


def stream(connection: sa.Connection, begin: datetime.datetime) -> Iterable[Any]:
    """The reserves, commits and ends of reservations since ``begin``, as rows ordered by time; see ``_events``.

    Reservations that were live then come first, with the moment None, and those that were made at an unknown time.
    ``state`` is the reservation's last one. A resize or a transfer is two events: LEAVE, with the project and the
    amount before, and TAKE, with those after; their ``state`` is that at this time. The sums of the committed and of
    the reserved deltas are those of the counters.
    """
    is_new = sa.func.coalesce(_row.created_at, _row.updated_at, _row.deleted_at) > begin
    # Rows that a purge has folded, and adopted rows, were attached at an unknown time before they were inserted.
    is_older = sa.and_(
        _row.state == COMMITTED, _row.expire.is_(None), _row.updated_at.is_(None), _row.consumer_id.is_(None)
    )
    made = sa.case((sa.and_(is_new, sa.not_(is_older)), _row.created_at))
    is_committed_later = sa.and_(
        _row.state == COMMITTED, _row.updated_at > begin, sa.or_(made.is_(None), _row.updated_at > made)
    )
    committed = sa.case((is_committed_later, _row.updated_at), else_=made)
    # The resizes and transfers. Their moment: not before that of the reservation's change before it.
    moment = sa.func.max(_change.created_at).over(partition_by=_change.reservation_id, order_by=_change.generation)
    ordered = sa.select(reservation_changes, moment.label("moment")).subquery("ordered_changes")
    changes = sa.select(ordered).where(ordered.c.moment > begin).subquery("changes")
    first, first_committed = _first(changes, "first_change"), _first(changes, "first_committed", COMMITTED)
    ended = _not_before(_row.deleted_at, made)
    ended = sa.case((first.c.last > ended, first.c.last), else_=ended)
    present = _Held(_row.project_id, _row.delta)
    initial = _before(first, present)
    later = _before(first_committed, present)
    at_commit = _Held(
        *[
            sa.case((_row.state == RELEASED, released), else_=otherwise)
            for released, otherwise in zip(initial, later, strict=True)
        ]
    )
    source = reservations.outerjoin(first, first.c.reservation_id == _row.id)
    source = source.outerjoin(first_committed, first_committed.c.reservation_id == _row.id)
    is_selected = sa.or_(_row.live == 1, _row.deleted_at > begin)
    all_events = sa.union_all(
        _events(made, RESERVE, initial).select_from(source).where(is_selected),
        _events(committed, COMMIT, at_commit)
        .select_from(source)
        .where(is_selected, _row.state.in_((COMMITTED, RELEASED))),
        _events(ended, END, present).select_from(source).where(is_selected, _row.state.not_in((COMMITTED, RESERVED))),
        *(query.where(is_selected) for query in _change_events(changes, made, committed)),
    ).subquery("events")
    is_after_begin = sa.case((all_events.c.moment.is_(None), 0), else_=1)
    order = [all_events.c[name] for name in ("moment", "id", "phase", "generation", "step")]
    query = sa.select(all_events).order_by(is_after_begin, *order)
    return connection.execution_options(yield_per=_STREAM_ROWS).execute(query)


class _Held(NamedTuple):
    """What a reservation holds at some time."""

    project_id: sa.ColumnElement[str]
    delta: sa.ColumnElement[int]


def _events(
    moment: sa.ColumnElement[Any],
    step: int,
    held: _Held,
    *,
    state: sa.ColumnElement[str] = _row.state,
    phase: sa.ColumnElement[int] | None = None,
    generation: sa.ColumnElement[int] = _ZERO,
) -> sa.Select[Any]:
    """The columns of an event, and two that order the events of one moment. ``state``: at that time."""
    step_column = sa.literal_column(str(step), sa.Integer)
    return sa.select(
        moment.label("moment"),
        _row.id.label("id"),
        step_column.label("step"),
        _row.uuid,
        held.project_id.label("project_id"),
        _row.resource,
        held.delta.label("delta"),
        state.label("state"),
        (step_column if phase is None else phase).label("phase"),
        generation.label("generation"),
    )


def _change_events(
    changes: sa.Subquery, made: sa.ColumnElement[Any], committed: sa.ColumnElement[Any]
) -> list[sa.Select[Any]]:
    """LEAVE and TAKE of each change, after the events that the change follows.

    (A released reservation counts as committed from the beginning, because the time of its commit is not stored.)
    """
    is_committed = sa.or_(
        _row.state == RELEASED, sa.and_(_row.state == COMMITTED, changes.c.state == sa.literal_column(f"'{COMMITTED}'"))
    )
    moment = _not_before(changes.c.moment, sa.case((is_committed, committed), else_=made))
    is_too_late = sa.and_(_row.state == COMMITTED, sa.not_(is_committed), committed < moment)
    moment = sa.case((is_too_late, committed), else_=moment)
    order: dict[str, Any] = {
        "state": sa.case((is_committed, COMMITTED), else_=RESERVED),
        "phase": sa.case((is_committed, COMMIT), else_=RESERVE),
        "generation": changes.c.generation,
    }
    source = sa.join(changes, reservations, changes.c.reservation_id == _row.id)
    before = _Held(changes.c.project_before, changes.c.delta_before)
    after = _Held(changes.c.project_after, changes.c.delta_after)
    return [_events(moment, step, held, **order).select_from(source) for step, held in ((LEAVE, before), (TAKE, after))]


def _before(first: sa.Subquery, present: _Held) -> _Held:
    """What was held before the first change; without a change, what is held at present."""
    return _Held(
        sa.func.coalesce(first.c.project_before, present.project_id),
        sa.func.coalesce(first.c.delta_before, present.delta),
    )


def _not_before(moment: sa.ColumnElement[Any], floor: sa.ColumnElement[Any]) -> sa.Case[Any]:
    """The later one of two times; ``moment`` if ``floor`` is NULL. (Several clocks may contradict each other.)"""
    return sa.case((sa.or_(floor.is_(None), moment > floor), moment), else_=floor)


def _first(changes: sa.Subquery, name: str, state: State | None = None) -> sa.Subquery:
    """The first change of each reservation since the beginning (in ``state``), and the time of its last one."""
    query = sa.select(
        changes.c.reservation_id,
        sa.func.min(changes.c.generation).label("generation"),
        sa.func.max(changes.c.moment).label("last"),
    ).group_by(changes.c.reservation_id)
    query = query.where(*paging.given((changes.c.state, state)))
    least = query.subquery(f"{name}_generation")
    is_first = sa.and_(
        reservation_changes.c.reservation_id == least.c.reservation_id,
        reservation_changes.c.generation == least.c.generation,
    )
    return (
        sa.select(least.c.reservation_id, least.c.last, _change.project_before, _change.delta_before)
        .select_from(sa.join(least, reservation_changes, is_first))
        .subquery(name)
    )


# --- Lists ---

_RESERVATIONS = sa.select(
    _row.id,
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
    resource_providers.NAME.label("provider"),
).select_from(resource_providers.join(reservations, _row.provider_id, is_outer=True))


def _reservations(connection: sa.Connection, query: sa.Select[Any]) -> list[Reservation]:
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


def list_by_consumer(
    connection: sa.Connection,
    *,
    project_id: str | None,
    consumers: Collection[str] | None,
    limit: int | None,
    after: Sequence[str] | None,
) -> list[Reservation]:
    """The live reservations that have a consumer, by consumer and UUID, after this consumer and UUID."""
    consumer = dialects.of(connection).by_bytes(_row.consumer_id)
    selected = *paging.given((_row.project_id, project_id)), *paging.among((_row.consumer_id, consumers))
    is_wanted = (_row.live == 1, _row.consumer_id.is_not(None), *selected)
    query = _RESERVATIONS.where(*is_wanted).order_by(consumer, _row.uuid)
    if after is not None:
        query = query.where(sa.or_(consumer > after[0], sa.and_(consumer == after[0], _row.uuid > after[1])))
    return _reservations(connection, query.limit(limit))


def list_reservations(connection: sa.Connection, wanted: ReservationFilter) -> list[Reservation]:
    """The reservations that match, oldest first; of a project that was removed and added again: those since then.

    Raises ReservationNotFound.
    """
    conditions = paging.given(
        (_row.state, wanted.state), (_row.consumer_id, wanted.consumer), (_row.resource, wanted.resource)
    )
    conditions += paging.among((_row.uuid, wanted.uuids))
    if wanted.after is not None:
        after_id = connection.scalar(sa.select(_row.id).where(_row.uuid == wanted.after))
        if after_id is None:
            raise exceptions.ReservationNotFound(wanted.after)  # purged: an empty page would mean the end of the list
        conditions.append(_row.id > after_id)
    if wanted.group is not None:
        parts = [_RESERVATIONS.where(*conditions, part) for part in in_group(wanted.group, wanted.project_id)]
        in_either = sa.union_all(*parts).subquery()
        return _reservations(connection, sa.select(in_either).order_by(in_either.c.id).limit(wanted.limit))
    is_named = wanted.consumer is not None or wanted.uuids is not None
    if wanted.project_id is None and not is_named:
        return _reservations(connection, _RESERVATIONS.where(*conditions).order_by(_row.id).limit(wanted.limit))
    of_project = sa.and_(sa.true(), *paging.given((_row.project_id, wanted.project_id)))
    # Sorted by an expression: for a page sorted by the id, a database may read all reservations in this order.
    query = _RESERVATIONS.where(*conditions).order_by(_row.id + sa.literal_column("0")).limit(wanted.limit)
    if wanted.project_id is None or is_named:
        return _reservations(connection, query.where(of_project))
    # Through the usage rows of the project: of these, an index has the reservations by state.
    usage = usages.ids_query(wanted.project_id, wanted.resource)
    records = _reservations(connection, query.where(_row.usage_id.in_(usage)))
    if records or connection.execute(usages.ids_query(wanted.project_id, None).limit(1)).first():
        return records
    return _reservations(connection, query.where(of_project))  # it was removed


def oldest_overdue(connection: sa.Connection, grace: int) -> datetime.timedelta:
    """How long ago the reservation that is longest overdue became so; zero if none is overdue."""
    overdue_at = clock.utc_after(-sa.bindparam("b_grace", type_=sa.BigInteger)).label("overdue_at")
    query = sa.select(_row.expire, overdue_at).where(IS_OVERDUE).order_by(_row.expire).limit(sa.literal_column("1"))
    row = connection.execute(query, {"b_grace": grace}).first()
    return datetime.timedelta() if row is None else max(datetime.timedelta(), row.overdue_at - row.expire)


def list_allocations(
    connection: sa.Connection,
    provider_id: int | None = None,
    *,
    limit: int | None = None,
    after: str | None = None,
    resource: str | None = None,
) -> list[Allocation]:
    """The live reservations that name a provider, by provider, project and id, after the UUID ``after``.

    ``after`` may have ended in the meantime. Raises MarkerNotFound.
    """
    source = resource_providers.join(reservations, _row.provider_id)
    owner = resource_providers.NAME
    order = (owner, _row.project_id, _row.id)
    query = (
        sa.select(
            owner,
            _row.project_id,
            _row.consumer_id,
            _row.resource,
            _row.delta,
            _row.group_id,
            _row.uuid,
        )
        .select_from(source)
        .where(IS_LIVE_CLAIM, *paging.given((_row.provider_id, provider_id), (_row.resource, resource)))
        .order_by(*order)
        .limit(limit)
    )
    if after is not None:
        marker = connection.execute(sa.select(*order).select_from(source).where(_row.uuid == after)).one_or_none()
        if marker is None:
            raise exceptions.MarkerNotFound((after,))
        name, project_id, row_id = marker
        is_later = sa.or_(_row.project_id > project_id, sa.and_(_row.project_id == project_id, _row.id > row_id))
        query = query.where(owner >= name, sa.or_(owner > name, is_later))
    return [Allocation(*row) for row in connection.execute(query)]


def was_transferred(connection: sa.Connection, consumer: str, sender: str, receiver: str) -> bool:
    """Whether ``receiver`` holds live reservations of the consumer that came from ``sender``."""
    return paging.exists(
        connection,
        _change.reservation_id == _row.id,
        _row.project_id == receiver,
        _row.consumer_id == consumer,
        _row.live == 1,
        _change.project_before == sender,
        _change.project_after == receiver,
    )


# --- Overdue reservations, for the expiry ---

ExpiryPosition = tuple[datetime.datetime, int]
"""The position of a reservation in the order of expiry: its ``expire``, and its id."""

_OVERDUE = sa.select(*ROW_COLUMNS).where(IS_OVERDUE)
_LONGEST_OVERDUE = _OVERDUE.order_by(_row.expire, _row.id).limit(sa.bindparam("b_limit", type_=sa.Integer))
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


def overdue_after(
    connection: sa.Connection, position: ExpiryPosition | None, limit: int, grace: int
) -> tuple[list[Row], ExpiryPosition | None]:
    """The next overdue reservations after ``position`` (None: from the first), and the position of the last one.

    Reading on from a position skips the rows that are being expired, and the dead index entries of expired ones.
    Locks them, and leaves out locked ones; a server that cannot skip locked rows reads all, and locks none.
    """
    query = _LONGEST_OVERDUE
    parameters: dict[str, Any] = {"b_limit": limit, "b_grace": grace}
    if position is not None:
        query = _OVERDUE_AFTER
        parameters |= {"b_expire": position[0], "b_id": position[1]}
    query = dialects.of(connection).skip_locked(connection.dialect, query)
    rows = [Row(*row) for row in connection.execute(query, parameters)]
    # (Read the date of one row only: PyMySQL takes longer to parse a date than the rest of a row.)
    for row in reversed(rows):
        moment = connection.execute(_EXPIRE_OF, {"b_id": row.id, "b_grace": grace}).scalar()
        if moment is not None:  # None: the reservation was not locked, and was extended or ended concurrently
            return rows, (moment, row.id)
    return rows, position
