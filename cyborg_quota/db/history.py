# SPDX-License-Identifier: Apache-2.0
"""The stored reservations as a sequence of events in the order of time, for an export of the ledger's history.

One statement, so that its result is one point in time; the database sorts, and the rows are read as a stream. The time
of a commit is stored only while the reservation is committed: that of a released one is reported at its creation.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations
from cyborg_quota.types import COMMITTED, RELEASED, RESERVED, State

_row = reservations.c
_STREAM_ROWS: Final = 1000

RESERVE: Final = 0
COMMIT: Final = 1
END: Final = 2


class HistoryRow(NamedTuple):
    """A reserve, commit or end of a reservation. ``moment`` is naive UTC; ``state`` is the reservation's last one."""

    moment: datetime.datetime
    id: int
    step: int
    uuid: str
    project_id: str
    resource: str
    delta: int
    state: State


class Span(NamedTuple):
    """The beginning of a history and the present time of the database, naive UTC."""

    begin: datetime.datetime
    now: datetime.datetime


def span(connection: sa.Connection, microseconds: int | None) -> Span:
    """The span of the last ``microseconds``. None: since the first reservation that is stored."""
    if microseconds is None:
        first = sa.select(sa.func.min(_row.created_at)).scalar_subquery()
        begin: sa.ColumnElement[Any] = sa.func.coalesce(first, clock.utc_now())
    else:
        begin = clock.utc_after(-sa.literal(microseconds, sa.BigInteger))
    query = sa.select(sa.type_coerce(begin, sa.DateTime()), sa.type_coerce(clock.utc_now(), sa.DateTime()))
    return Span(*connection.execute(query).one())


def stream(connection: sa.Connection, begin: datetime.datetime) -> Iterator[HistoryRow]:
    """The events since ``begin``, ordered by time. What was live at that time comes first, as if made then.

    A negative delta is reported only if it is committed, with the amount that it still frees (see I2: adjustments
    reduce it). Therefore the sums of the committed and of the reserved deltas are those of the counters.
    """
    for row in connection.execution_options(yield_per=_STREAM_ROWS).execute(_query(begin)):
        moment, *values = row
        yield HistoryRow(begin if moment is None else moment, *values)


def _query(begin: datetime.datetime) -> sa.Select[Any]:
    """The column ``moment`` is NULL for what was made before ``begin``, or at an unknown time."""
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
    ended = sa.case((sa.or_(made.is_(None), _row.deleted_at > made), _row.deleted_at), else_=made)
    adjusted = _adjustments()
    delta = _row.delta + sa.func.coalesce(adjusted.c.amount, 0)
    source = sa.outerjoin(reservations, adjusted, adjusted.c.adjusts == _row.id)
    selected = sa.and_(
        _row.adjusts.is_(None),
        sa.or_(_row.live == 1, _row.deleted_at > begin),
        sa.or_(_row.delta > 0, sa.and_(_row.state == COMMITTED, delta < 0)),
    )
    values = (_row.uuid, _row.project_id, _row.resource, delta.label("delta"), _row.state)

    def events(moment: sa.ColumnElement[Any], step: int, condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
        step_column = sa.literal_column(str(step), sa.Integer).label("step")
        columns = (moment.label("moment"), _row.id.label("id"), step_column, *values)
        return sa.select(*columns).select_from(source).where(selected, condition)

    all_events = sa.union_all(
        events(made, RESERVE, sa.true()),
        events(committed, COMMIT, _row.state.in_((COMMITTED, RELEASED))),
        events(ended, END, _row.state.not_in((COMMITTED, RESERVED))),
    ).subquery("events")
    is_after_begin = sa.case((all_events.c.moment.is_(None), 0), else_=1)
    return sa.select(all_events).order_by(is_after_begin, all_events.c.moment, all_events.c.id, all_events.c.step)


def _adjustments() -> sa.Subquery:
    """The amounts by which adjustments reduce each negative reservation; see I2."""
    return (
        sa.select(_row.adjusts, sa.cast(sa.func.sum(_row.delta), sa.BigInteger).label("amount"))
        .where(_row.adjusts.is_not(None), _row.state == COMMITTED)
        .group_by(_row.adjusts)
        .subquery("adjusted")
    )
