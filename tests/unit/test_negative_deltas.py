# SPDX-License-Identifier: Apache-2.0
"""The rule of negative deltas, checked on plain numbers: no database, small counters, every order of calls."""

from __future__ import annotations

import dataclasses

import hypothesis
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.transitions import Freed, adjust

MAX = 7
"""The largest value of a counter here."""


@dataclasses.dataclass
class Row:
    """A committed reservation. ``adjusts``: the negative row that this row adjusts."""

    id: int
    delta: int
    is_held: bool = True
    adjusts: int | None = None


class Ledger:
    """One usage row and its committed reservations, according to the rule."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.used = 0
        self.last = 0

    def add(self, delta: int, *, is_held: bool = True, adjusts: int | None = None) -> int:
        self.last += 1
        self.rows[self.last] = Row(self.last, delta, is_held, adjusts)
        return self.last

    def commit(self, delta: int) -> int | None:
        """Reserve and commit. Returns None if the counter would overflow, so that the reserve is refused."""
        if self.used + delta > MAX:
            return None
        number = self.add(delta)
        self.count({number})
        return number

    def release(self, number: int) -> None:
        del self.rows[number]
        for row in [row for row in self.rows.values() if row.adjusts == number]:
            del self.rows[row.id]
        self.count(set())

    def subtracted(self) -> list[Freed]:
        """Return the amount that each negative row subtracts at present."""
        found = []
        for row in self.rows.values():
            if row.delta < 0:
                amount = -row.delta - sum(other.delta for other in self.rows.values() if other.adjusts == row.id)
                assert amount >= 0, row
                found.append(Freed(row.id, amount))
        return found

    def count(self, committed: set[int]) -> None:
        self.used = sum(row.delta for row in self.rows.values())
        if self.used < 0:
            for change in adjust(-self.used, self.subtracted(), committed):
                self.add(change.amount, is_held=False, adjusts=change.id)
            self.used = 0
        if self.used > MAX:
            self.add(MAX - self.used, is_held=False)
            self.used = MAX

    def assert_right(self) -> None:
        assert self.used == sum(row.delta for row in self.rows.values())
        assert 0 <= self.used <= MAX
        assert self.used <= sum(row.delta for row in self.rows.values() if row.is_held and row.delta > 0)


class NaiveLedger(Ledger):
    """The previous rule: the excess is a row of its own, which stays when the negative row ends."""

    def count(self, committed: set[int]) -> None:
        self.used = sum(row.delta for row in self.rows.values())
        if self.used < 0:
            self.add(-self.used, is_held=False)
            self.used = 0


STEPS = st.lists(st.tuples(st.booleans(), st.integers(-MAX, MAX).filter(bool), st.integers(0, 99)), max_size=30)


def play(ledger: Ledger, steps: list[tuple[bool, int, int]]) -> None:
    """Commit a delta, or release a row; at the end release all rows, in random order."""
    held: list[int] = []
    for is_release, delta, which in steps:
        if is_release and held:
            ledger.release(held.pop(which % len(held)))
        elif (number := ledger.commit(delta)) is not None:
            held.append(number)
        ledger.assert_right()
    for _, _, which in [*steps, *([(True, 1, 0)] * len(held))]:
        if held:
            ledger.release(held.pop(which % len(held)))
            ledger.assert_right()
    assert ledger.used == 0
    assert all(row.delta < 0 or row.adjusts is not None for row in ledger.rows.values())


class TestRule(base.BaseTestCase):
    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(steps=STEPS)
    def test_never_more_than_is_held_and_zero_at_the_end(self, steps: list[tuple[bool, int, int]]) -> None:
        play(Ledger(), steps)

    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(steps=STEPS, delta=st.integers(-MAX, -1))
    def test_a_negative_delta_can_be_undone(self, steps: list[tuple[bool, int, int]], delta: int) -> None:
        """After any history, a negative delta that is committed and released at once changes nothing."""
        ledger = Ledger()
        held: list[int] = []
        for is_release, amount, which in steps:
            if is_release and held:
                ledger.release(held.pop(which % len(held)))
            elif (number := ledger.commit(amount)) is not None:
                held.append(number)
        before = ledger.used, sorted(ledger.subtracted())
        number = ledger.commit(delta)
        assert number is not None
        ledger.release(number)
        assert before == (ledger.used, sorted(ledger.subtracted()))

    def test_the_previous_rule_fails(self) -> None:
        """The control: with the previous rule, the check finds a wrong history."""
        for steps in ([(False, 5, 0), (False, -5, 0), (True, 1, 0)], [(False, 7, 1), (False, -7, 0), (False, 7, 0)]):
            self.assertRaises(AssertionError, play, NaiveLedger(), steps)


class TestAdjust(base.BaseTestCase):
    ROWS = (Freed(1, 2), Freed(5, 3), Freed(3, 4))

    def test_the_latest_first(self) -> None:
        self.assertEqual([Freed(5, 3), Freed(3, 1)], adjust(4, self.ROWS))

    def test_rows_committed_now_come_first(self) -> None:
        self.assertEqual([Freed(1, 2), Freed(5, 3), Freed(3, 1)], adjust(6, self.ROWS, {1}))

    def test_no_more_than_there_is(self) -> None:
        self.assertEqual(9, sum(change.amount for change in adjust(10, self.ROWS)))

    def test_one_that_subtracts_nothing_is_passed_over(self) -> None:
        self.assertEqual([Freed(5, 3)], adjust(3, [Freed(9, 0), *self.ROWS]))

    def test_nothing(self) -> None:
        self.assertEqual([], adjust(0, self.ROWS))
