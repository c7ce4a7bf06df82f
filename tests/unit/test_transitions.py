# SPDX-License-Identifier: Apache-2.0
"""The state machine, without a database."""

from __future__ import annotations

import datetime
import itertools
import operator

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.ledger import transitions
from cyborg_quota.types import LIVE_STATES, STATES, Row

CALLS = ("commit", "rollback", "release", "extend", "resize", "transfer", "expire")
CHANGES = {"extend": {"reserved"}, "resize": LIVE_STATES, "transfer": LIVE_STATES}
"""The states of the rows that a call changes, and that keep their state."""

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


class TestEffect(base.BaseTestCase):
    @given(st.sampled_from((None, *STATES)), st.sampled_from(STATES), st.integers(1, 9))
    def test_effect_is_the_difference_of_two_states(self, before: str | None, after: str, delta: int) -> None:
        """The counters depend on the state and not on its history: an effect is the difference of two states."""
        there = transitions.effect(None, after, delta)  # type: ignore[arg-type]
        from_nothing = transitions.effect(None, before, delta) if before else (0, 0)  # type: ignore[arg-type]
        step = transitions.effect(before, after, delta)  # type: ignore[arg-type]
        self.assertEqual(there, (from_nothing[0] + step[0], from_nothing[1] + step[1]))


class TestCurrentAttempt(base.BaseTestCase):
    """The rows that a consumer or a group selects. ``ended_after`` is the highest ID at the time when a row ended."""

    def test_the_attempt_begins_with_the_oldest_row_in_flight(self) -> None:
        """What ended between two rows in flight belongs to the attempt: a commit of the group must not ignore it."""
        lost = row(2, consumer="b", state="rolled_back", ended_after=2)
        stored = [row(1, consumer="a"), lost, row(3, consumer="c")]
        for order in itertools.permutations(stored):
            self.assertEqual(stored, transitions.current_attempt(order))

    STORED = st.lists(
        st.builds(
            lambda number, consumer, state, passed: row(
                number,
                consumer=consumer,
                state=state,
                ended_after=None if state in LIVE_STATES else number + passed,
            ),
            st.integers(1, 99),
            st.sampled_from("abc"),
            st.sampled_from(STATES),
            st.integers(0, 99),
        ),
        max_size=8,
        unique_by=(operator.attrgetter("id"), lambda item: (item.state in LIVE_STATES and item.consumer) or item.id),
    )

    @given(STORED)
    def test_live_rows_are_always_selected(self, stored: list[Row]) -> None:
        found = transitions.current_attempt(stored)
        self.assertLessEqual({row for row in stored if row.state in LIVE_STATES}, set(found))
        consumers = [item.consumer for item in found]
        self.assertEqual(len(set(consumers)), len(consumers))
        self.assertEqual(bool(stored), bool(found))
