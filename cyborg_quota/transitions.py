# SPDX-License-Identifier: Apache-2.0
"""The state machine: which transition is legal, what each call answers, what a transition does to counters.

Pure: no I/O, no clock. ``doc/source/concepts.rst`` shows the same table to people.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from cyborg_quota import exceptions
from cyborg_quota.types import COMMITTED, EXPIRED, LIVE_STATES, RELEASED, RESERVED, ROLLED_BACK, State

Call = Literal["commit", "rollback", "release", "extend", "expire"]


class Row(NamedTuple):
    """What a decision needs to know of one stored reservation. ``overdue`` is judged on the database's clock.

    ``ended_after`` is the highest id of a reservation when this one ended: ids, not times, say what came first. The
    times are used only where ``ended_after`` is missing; see present_life.
    """

    id: int
    uuid: str
    usage_id: int
    project_id: str
    resource: str
    delta: int
    state: State
    overdue: bool
    consumer: str | None = None
    ended_after: int | None = None
    created_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None


class Move(NamedTuple):
    """One reservation goes from ``row.state`` to ``to``. ``to == row.state`` means: a new expiry."""

    row: Row
    to: State


class Plan(NamedTuple):
    """What to write, and what to raise once that is durable."""

    moves: tuple[Move, ...]
    error: exceptions.ReservationError | None = None


_Refusal = Callable[[str], exceptions.ReservationError]
_NOTHING: Final = None
_Outcome = State | _Refusal | None

_TABLE: Final[dict[Call, dict[State, _Outcome]]] = {
    "commit": {
        RESERVED: COMMITTED,
        COMMITTED: _NOTHING,
        ROLLED_BACK: exceptions.ReservationRolledBack,
        EXPIRED: exceptions.ReservationExpired,
        RELEASED: exceptions.ReservationReleased,
    },
    "rollback": {
        RESERVED: ROLLED_BACK,
        COMMITTED: exceptions.ReservationCommitted,
        ROLLED_BACK: _NOTHING,
        EXPIRED: _NOTHING,
        RELEASED: _NOTHING,
    },
    "release": {
        RESERVED: ROLLED_BACK,
        COMMITTED: RELEASED,
        ROLLED_BACK: _NOTHING,
        EXPIRED: _NOTHING,
        RELEASED: _NOTHING,
    },
    "extend": {
        RESERVED: RESERVED,
        COMMITTED: _NOTHING,
        ROLLED_BACK: exceptions.ReservationRolledBack,
        EXPIRED: exceptions.ReservationExpired,
        RELEASED: exceptions.ReservationReleased,
    },
    "expire": dict.fromkeys((RESERVED, COMMITTED, ROLLED_BACK, EXPIRED, RELEASED), _NOTHING),
}

_REFUSES_EXPIRED: Final = frozenset({"commit", "extend"})


def decide(call: Call, rows: Iterable[Row]) -> Plan:
    """What ``call`` does to ``rows``: all of them, or none but the overdue.

    An overdue reservation is expired by whichever call meets it, also when the call as a whole is refused: the
    refusal is then true for good. The error is that of the first offending row, in the order given.
    """
    moves: list[Move] = []
    expiries: list[Move] = []
    error: exceptions.ReservationError | None = None
    for row in rows:
        if row.state == RESERVED and row.overdue:
            expiries.append(Move(row, EXPIRED))
            if call in _REFUSES_EXPIRED:
                error = error or exceptions.ReservationExpired(row.uuid)
            continue
        outcome = _TABLE[call][row.state]
        if isinstance(outcome, str):
            moves.append(Move(row, outcome))
        elif outcome is not None:
            error = error or outcome(row.uuid)
    if error is not None:
        return Plan(tuple(expiries), error)
    return Plan(tuple(sorted(moves + expiries, key=lambda move: move.row.id)))


def effect(before: State | None, after: State, delta: int) -> tuple[int, int]:
    """What a transition adds to (reserved, used). ``before`` None is a reservation being made.

    A negative delta frees something when it is committed; until then it is counted nowhere.
    """
    in_flight = max(delta, 0)
    reserved = (in_flight if after == RESERVED else 0) - (in_flight if before == RESERVED else 0)
    used = (delta if after == COMMITTED else 0) - (delta if before == COMMITTED else 0)
    return reserved, used


class Freed(NamedTuple):
    """What a committed reservation with a negative delta subtracts from ``used`` (an amount above zero)."""

    id: int
    amount: int


def adjust(shortfall: int, freed: Iterable[Freed], committed: Collection[int] = ()) -> list[Freed]:
    """By how much to reduce which of ``freed``, so that together they subtract ``shortfall`` less.

    First those that are committed now (``committed``: their ids), for it is they that find too little in use; then
    the latest first. Reduces less than ``shortfall`` where they subtract less.
    """
    reductions = []
    for one in sorted(freed, key=lambda one: (one.id in committed, one.id), reverse=True):
        amount = min(shortfall, one.amount)
        if amount > 0:
            reductions.append(Freed(one.id, amount))
            shortfall -= amount
    return reductions


def current_attempt(rows: Sequence[Row]) -> list[Row]:
    """Of all the rows a consumer or group ever had, those a call by that name means, in order of id.

    Per consumer and resource only one row counts: the live one (there is at most one), else the newest. And what ended
    before the present life began is history: a detach of last week must not make today's commit fail. The present
    life begins when the oldest row still in flight was made, or else when the newest of all was.

    Only ids are compared, because clocks can run backwards, and two hosts have two. A row with a higher id was made
    later: always for one consumer, whose next row is not inserted before its last one has ended.
    """
    current: dict[tuple[object, str], Row] = {}
    for row in sorted(rows, key=lambda row: (row.state in LIVE_STATES, row.id)):
        current[row.consumer or row.uuid, row.resource] = row
    if not current:
        return []
    in_flight = [row for row in current.values() if row.state == RESERVED]
    begin = min(in_flight, key=_id) if in_flight else max(current.values(), key=_id)
    return sorted((row for row in current.values() if not _ended_before(row, begin)), key=_id)


def _ended_before(row: Row, begin: Row) -> bool:
    """Whether ``row`` had ended when ``begin`` was made."""
    if row.state in LIVE_STATES or row.id >= begin.id:
        return False
    if row.ended_after is not None:
        return row.ended_after < begin.id
    # A release before revision c3d0 ended it, and recorded only the time.
    return row.ended_at is not None and begin.created_at is not None and row.ended_at < begin.created_at


_id: Final = operator.attrgetter("id")
