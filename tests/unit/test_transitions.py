# SPDX-License-Identifier: Apache-2.0
"""The state machine, without a database."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota import exceptions, transitions
from cyborg_quota.transitions import Move, Row
from cyborg_quota.types import LIVE_STATES, MAX_AMOUNT, STATES

CALLS = ("commit", "rollback", "release", "extend", "resize", "transfer", "expire")
CHANGES = {"extend": {"reserved"}, "resize": LIVE_STATES, "transfer": LIVE_STATES}
"""The states of the rows that a call changes, and that keep their state."""

LEGAL = {
    ("reserved", "committed"),
    ("reserved", "rolled_back"),
    ("reserved", "expired"),
    ("committed", "released"),
}
START = datetime.datetime(2030, 1, 1)


def row(number: int = 1, **changes: object) -> Row:
    values = {
        "id": number,
        "uuid": f"uuid {number}",
        "usage_id": 1,
        "project_id": "p",
        "resource": "gpu",
        "delta": 1,
        "state": "reserved",
        "overdue": False,
    }
    return Row(**(values | changes))  # type: ignore[arg-type]


def at(seconds: int) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


rows = st.lists(
    st.builds(
        row,
        st.integers(1, 50),
        state=st.sampled_from(STATES),
        overdue=st.booleans(),
        delta=st.integers(-5, 5).filter(bool),
    ),
    max_size=6,
    unique_by=lambda item: item.id,
)


class TestDecide(base.BaseTestCase):
    @given(st.sampled_from(CALLS), rows)
    def test_only_legal_moves(self, call: str, given_rows: list[Row]) -> None:
        plan = transitions.decide(call, given_rows)  # type: ignore[arg-type]
        for move in plan.moves:
            before, after = move.row.state, move.to
            self.assertTrue(
                (before, after) in LEGAL or (before == after and before in CHANGES.get(call, ()))
            )
            self.assertEqual(before == "reserved" and move.row.overdue, after == "expired")

    @given(st.sampled_from(CALLS), rows)
    def test_all_or_only_the_overdue(self, call: str, given_rows: list[Row]) -> None:
        plan = transitions.decide(call, given_rows)  # type: ignore[arg-type]
        overdue = {given_row.id for given_row in given_rows if given_row.state == "reserved" and given_row.overdue}
        moved = {move.row.id: move.to for move in plan.moves}
        self.assertEqual(overdue, {number for number, to in moved.items() if to == "expired"})
        if plan.error is not None:
            self.assertEqual(overdue, set(moved))

    @given(st.sampled_from(CALLS), rows)
    def test_a_repeated_call_is_a_no_op(self, call: str, given_rows: list[Row]) -> None:
        """A row that is already in the state to which the call leads is found done, with the same answer."""
        plan = transitions.decide(call, given_rows)  # type: ignore[arg-type]
        after = {move.row.id: move.to for move in plan.moves}
        again = [
            row(given_row.id, state=after.get(given_row.id, given_row.state), delta=given_row.delta)
            for given_row in given_rows
        ]
        second = transitions.decide(call, again)  # type: ignore[arg-type]
        self.assertEqual(type(plan.error), type(second.error))
        self.assertEqual(str(plan.error), str(second.error))
        if call not in CHANGES and plan.error is None:
            self.assertEqual((), second.moves)

    def test_the_first_offender_is_named(self) -> None:
        plan = transitions.decide(
            "commit", [row(5), row(3, state="released"), row(1, state="rolled_back")]
        )
        self.assertIsInstance(plan.error, exceptions.ReservationReleased)
        self.assertEqual(("uuid 3", ()), (plan.error.uuid, plan.moves))

    def test_moves_in_order_of_id(self) -> None:
        plan = transitions.decide(
            "release", [row(3), row(1, overdue=True), row(2, state="committed")]
        )
        self.assertEqual([1, 2, 3], [move.row.id for move in plan.moves])

    def test_nothing(self) -> None:
        for call in CALLS:
            self.assertEqual(transitions.Plan(()), transitions.decide(call, []))  # type: ignore[arg-type]

    def test_overdue_is_of_the_reserved_only(self) -> None:
        plan = transitions.decide("release", [row(state="committed", overdue=True)])
        self.assertEqual((Move(row(state="committed", overdue=True), "released"),), plan.moves)


class TestEffect(base.BaseTestCase):
    @given(st.sampled_from((None, *STATES)), st.sampled_from(STATES), st.integers(-9, 9))
    def test_effect_is_the_difference_of_two_states(self, before: str | None, after: str, delta: int) -> None:
        """The counters depend on the state and not on its history: an effect is the difference of two states."""
        there = transitions.effect(None, after, delta)  # type: ignore[arg-type]
        from_nothing = transitions.effect(None, before, delta) if before else (0, 0)  # type: ignore[arg-type]
        step = transitions.effect(before, after, delta)  # type: ignore[arg-type]
        self.assertEqual(there, (from_nothing[0] + step[0], from_nothing[1] + step[1]))

    def test_counters_of_each_state(self) -> None:
        expected = {"reserved": {3: (3, 0), -3: (0, 0)}, "committed": {3: (0, 3), -3: (0, -3)}}
        for state, delta in itertools.product(STATES, (3, -3)):
            held = transitions.effect(None, state, delta)
            self.assertEqual(expected.get(state, {}).get(delta, (0, 0)), held)
            self.assertTrue(state in LIVE_STATES or held == (0, 0))


class TestCurrentAttempt(base.BaseTestCase):
    """The rows that a consumer or a group selects. ``ended_after`` is the highest ID at the time when a row ended."""

    def assert_selected(self, expected: list[int], *stored: Row) -> None:
        for order in itertools.permutations(stored):
            found = transitions.current_attempt(order)
            self.assertEqual(expected, [item.id for item in found])

    def test_none(self) -> None:
        self.assert_selected([])

    def test_rows_that_ended_before_the_attempt_are_ignored(self) -> None:
        old = row(1, consumer="a", state="released", ended_after=1)
        self.assert_selected([2], old, row(2, consumer="b"))

    def test_rows_that_ended_during_the_attempt_are_selected(self) -> None:
        lost = row(1, consumer="a", state="expired", ended_after=2)
        self.assert_selected([1, 2], lost, row(2, consumer="b"))

    def test_the_attempt_begins_with_the_oldest_row_in_flight(self) -> None:
        """What ended between two rows in flight belongs to the attempt: a commit of the group must not ignore it."""
        lost = row(2, consumer="b", state="rolled_back", ended_after=2)
        self.assert_selected([1, 2, 3], row(1, consumer="a"), lost, row(3, consumer="c"))

    def test_a_retried_consumer_is_selected_once(self) -> None:
        first = row(1, consumer="a", state="rolled_back", ended_after=1)
        self.assert_selected([2], first, row(2, consumer="a"))

    def test_a_live_row_wins_whatever_its_id(self) -> None:
        """Two nodes of a Galera cluster assign IDs independently."""
        for state in LIVE_STATES:
            ended = row(9, consumer="a", state="rolled_back", ended_after=9)
            self.assert_selected([2], ended, row(2, consumer="a", state=state))

    def test_each_resource_for_itself(self) -> None:
        self.assert_selected([1, 2], row(1, consumer="a"), row(2, consumer="a", resource="fpga"))

    def test_without_consumers_each_row_is_one(self) -> None:
        self.assert_selected([1, 2], row(1), row(2))

    def test_committed_rows_stay_selected(self) -> None:
        self.assert_selected([1, 2], row(1, consumer="a", state="committed"), row(2, consumer="b"))

    def test_all_ended(self) -> None:
        first = row(1, consumer="a", state="released", ended_after=1)
        self.assert_selected([2], first, row(2, consumer="b", state="expired", ended_after=7))

    def test_ended_by_an_earlier_release(self) -> None:
        """It recorded only the time, which is compared with that of the first row of the current attempt."""
        new = row(2, consumer="b", created_at=at(9))
        self.assert_selected([2], row(1, consumer="a", state="released", ended_at=at(5)), new)
        self.assert_selected([1, 2], row(1, consumer="a", state="released", ended_at=at(9)), new)
        # Rows that were made later have ended later, whatever the times.
        self.assert_selected([2, 3], row(3, consumer="a", state="released", ended_at=at(5)), new)

    STORED = st.lists(
        st.builds(
            lambda number, consumer, state, passed, made, ended: row(
                number,
                consumer=consumer,
                state=state,
                ended_after=None if state in LIVE_STATES else number + passed,
                created_at=at(made),
                ended_at=None if state in LIVE_STATES else at(ended),
            ),
            st.integers(1, 99),
            st.sampled_from("abc"),
            st.sampled_from(STATES),
            st.integers(0, 99),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=8,
        unique_by=lambda item: (item.state in LIVE_STATES and item.consumer) or item.id,
    )

    @given(STORED)
    def test_live_rows_are_always_selected(self, stored: list[Row]) -> None:
        found = transitions.current_attempt(stored)
        self.assertLessEqual({row for row in stored if row.state in LIVE_STATES}, set(found))
        consumers = [item.consumer for item in found]
        self.assertEqual(len(set(consumers)), len(consumers))
        self.assertEqual(bool(stored), bool(found))

    @given(STORED)
    def test_no_clock_decides(self, stored: list[Row]) -> None:
        timeless = [row._replace(created_at=None, ended_at=None) for row in stored]
        found = [item.id for item in transitions.current_attempt(stored)]
        self.assertEqual(found, [item.id for item in transitions.current_attempt(timeless)])


class TestMergeable(base.BaseTestCase):
    """Which committed reservations one row can replace."""

    DELTAS = st.integers(1, 4).map(lambda amount: amount * MAX_AMOUNT // 4)

    @given(st.lists(DELTAS | DELTAS.map(lambda delta: -delta), max_size=6))
    def test_as_many_as_fit(self, deltas: list[int]) -> None:
        """Both sums fit. If fewer than two are taken, no two of them would."""
        positions = transitions.mergeable(deltas)
        taken = [deltas[position] for position in positions]
        self.assertEqual(sorted(set(positions)), positions)
        self.assertTrue(self.fits(taken))
        if len(taken) < 2:
            self.assertEqual(min(1, len(deltas)), len(taken))
            self.assertFalse(any(self.fits(pair) for pair in itertools.combinations(deltas, 2)))

    def fits(self, deltas: Collection[int]) -> bool:
        return all(abs(sum(one for one in deltas if (one < 0) == sign)) <= MAX_AMOUNT for sign in (True, False))
