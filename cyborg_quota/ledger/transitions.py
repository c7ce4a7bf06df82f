# SPDX-License-Identifier: Apache-2.0
"""The state machine of reservations: permitted transitions, results of calls, effects on counters.

Pure: no I/O, no clock. ``doc/source/reference/concepts.rst`` contains the same table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from cyborg_quota import exceptions
from cyborg_quota.types import (
    COMMITTED,
    EXPIRED,
    LIVE_STATES,
    RELEASED,
    RESERVED,
    ROLLED_BACK,
    ResourceKey,
    Row,
    State,
    UsageKey,
    grouped,
    summed,
)

Call = Literal["commit", "rollback", "release", "extend", "resize", "transfer", "expire"]


class Move(NamedTuple):
    """A transition of a reservation from ``row.state`` to ``to``.

    ``to == row.state`` means a new expiry (extend), a new amount (resize) or another project (transfer).
    """

    row: Row
    to: State


class Plan(NamedTuple):
    """The transitions to write, and the error to raise after their commit."""

    moves: tuple[Move, ...]
    error: exceptions.ReservationError | None = None


_NOTHING: Final = None
_Outcome = State | Callable[[str], exceptions.ReservationError] | None

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
    "resize": {
        RESERVED: RESERVED,
        COMMITTED: COMMITTED,
        ROLLED_BACK: exceptions.ReservationRolledBack,
        EXPIRED: exceptions.ReservationExpired,
        RELEASED: exceptions.ReservationReleased,
    },
    "expire": dict.fromkeys((RESERVED, COMMITTED, ROLLED_BACK, EXPIRED, RELEASED), _NOTHING),
}

_TABLE["transfer"] = _TABLE["resize"]
_REFUSES_EXPIRED: Final = frozenset({"commit", "extend", "resize", "transfer"})


def decide(call: Call, rows: Iterable[Row]) -> Plan:
    """The transitions of ``rows`` in ``call``, and its error.

    Without an error, all rows change. With an error, only the overdue rows change: any call expires them, so that
    the reported expiry is final. The error is that of the first row, in the given order, that does not permit the call.
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
    """The amounts that a transition adds to (reserved, used). ``before`` None: the reservation is created."""
    reserved = (delta if after == RESERVED else 0) - (delta if before == RESERVED else 0)
    used = (delta if after == COMMITTED else 0) - (delta if before == COMMITTED else 0)
    return reserved, used


CountersOf = Callable[[str, str | None], Iterable[ResourceKey]]
"""Returns the counters of a reservation, by its resource and its pod (None: it has none): Enforcers.counters_of."""


def amounts(moves: Iterable[Move], counters_of: CountersOf) -> dict[UsageKey, tuple[int, int]]:
    """The amounts that the moves add to reserved and used, by usage row."""
    sums: dict[UsageKey, tuple[int, int]] = {}
    for row, to in moves:
        reserved, used = effect(row.state, to, row.delta)
        for counter in counters_of(row.resource, row.pod):
            key = UsageKey(row.project_id, *counter)
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + reserved, before[1] + used
    return sums


def amounts_by_state(added: Mapping[Row, int], counters_of: CountersOf) -> dict[State, dict[ResourceKey, int]]:
    """What is added to each counter, by the state of the reservations. ``added``: what is added to each reservation."""
    return {
        state: summed((key, added[row]) for row in rows for key in counters_of(row.resource, row.pod))
        for state, rows in grouped(added, lambda row: row.state).items()
    }


def by_counter(amounts: Mapping[str, int], counters_of: CountersOf, pod: str | None) -> dict[ResourceKey, int]:
    """What a claim of these amounts, by resource, adds to each counter."""
    return summed((key, amount) for resource, amount in amounts.items() for key in counters_of(resource, pod))


def current_attempt(rows: Sequence[Row]) -> list[Row]:
    """The rows that a call by consumer or group selects from all its rows, in order of id.

    For each consumer and resource, one row is selected: the live row (there is at most one), else the newest. Rows that
    ended before the current attempt began are not selected: a detach of last week must not make today's commit fail.
    The current attempt begins with the oldest row in state reserved or, if there is none, with the newest row.

    Only ids are compared, because clocks can run backwards and differ between hosts. For one consumer, a higher id
    means a later row: its next row is inserted only after the previous one has ended.
    """
    current: dict[tuple[object, str], Row] = {}
    for row in sorted(rows, key=lambda row: (row.state in LIVE_STATES, row.id)):
        current[row.consumer or row.uuid, row.resource] = row
    if not current:
        return []
    in_flight = [row for row in current.values() if row.state == RESERVED]
    begin = min(in_flight, key=_id) if in_flight else max(current.values(), key=_id)
    ended_before = {row.id for row in current.values() if row.ended_after is not None and row.ended_after < begin.id}
    return sorted((row for row in current.values() if row.id >= begin.id or row.id not in ended_before), key=_id)


_id: Final = operator.attrgetter("id")
