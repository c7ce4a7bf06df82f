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

UNBOUNDED = 10**18


@dataclasses.dataclass
class Row:
    """A committed reservation. ``adjusts``: the negative row that this row adjusts."""

    id: int
    delta: int
    is_held: bool = True
    adjusts: int | None = None


class Ledger:
    """One usage row and its reservations, according to the rule. ``most``: the maximum of ``used + reserved``."""

    def __init__(self, most: int = MAX) -> None:
        self.most = most
        self.rows: dict[int, Row] = {}
        self.flying: dict[int, int] = {}
        self.used = 0
        self.last = 0

    @property
    def reserved(self) -> int:
        return sum(self.flying.values())

    def fits(self, delta: int) -> bool:
        """Whether a reserve is granted: it must not make the counter exceed its maximum."""
        return delta <= 0 or self.used + self.reserved + delta <= self.most

    def add(self, delta: int, *, is_held: bool = True, adjusts: int | None = None) -> int:
        self.last += 1
        self.rows[self.last] = Row(self.last, delta, is_held, adjusts)
        return self.last

    def commit(self, delta: int) -> int:
        """Reserve and commit."""
        number = self.add(delta)
        self.count({number})
        return number

    def reserve(self, delta: int) -> int:
        self.last += 1
        self.flying[self.last] = delta
        return self.last

    def rollback(self, number: int) -> None:
        del self.flying[number]
        self.count(set())

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
        held = self.adjust(committed)
        self.used = min(held, self.most - self.reserved)

    def adjust(self, committed: set[int]) -> int:
        """Return the sum of the rows, which is made zero if it is negative."""
        held = sum(row.delta for row in self.rows.values())
        if held < 0:
            for change in adjust(-held, self.subtracted(), committed):
                self.add(change.amount, is_held=False, adjusts=change.id)
        return max(0, held)

    def assert_right(self) -> None:
        assert self.used >= 0
        assert self.used + self.reserved <= self.most
        assert self.used <= sum(row.delta for row in self.rows.values() if row.is_held and row.delta > 0)


class Unadjusted(Ledger):
    """The first rule: the shortfall is a row of its own, which stays when the negative row ends."""

    def count(self, committed: set[int]) -> None:
        self.used = sum(row.delta for row in self.rows.values())
        if self.used < 0:
            self.add(-self.used, is_held=False)
            self.used = 0


class LastingExcess(Ledger):
    """The second rule: what does not fit when a negative row ends is subtracted by a row that stays."""

    def count(self, committed: set[int]) -> None:
        self.used = self.adjust(committed)
        excess = self.used + self.reserved - self.most
        if excess > 0:
            self.add(-excess, is_held=False)
            self.used -= excess


KINDS = st.sampled_from(["commit", "commit", "release", "reserve", "rollback"])
STEPS = st.lists(st.tuples(KINDS, st.integers(-MAX, MAX).filter(bool), st.integers(0, 99)), max_size=30)
Step = tuple[str, int, int]


class Play:
    """The same calls to a ledger, and to one whose counter has no maximum."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.unbounded = Ledger(UNBOUNDED)
        self.held: list[tuple[int, int]] = []
        self.flying: list[tuple[int, int]] = []

    def step(self, kind: str, delta: int, which: int) -> None:
        both = (self.ledger, self.unbounded)
        if kind in ("release", "rollback"):
            numbers = self.held if kind == "release" else self.flying
            if numbers:
                pair = numbers.pop(which % len(numbers))
                for one, number in zip(both, pair, strict=True):
                    (one.release if kind == "release" else one.rollback)(number)
        elif kind == "reserve" and self.ledger.fits(abs(delta)):
            self.flying.append((self.ledger.reserve(abs(delta)), self.unbounded.reserve(abs(delta))))
        elif kind == "commit" and self.ledger.fits(delta):
            self.held.append((self.ledger.commit(delta), self.unbounded.commit(delta)))
        self.assert_right()

    def assert_right(self) -> None:
        """Assert that ``used`` is what it would be without a maximum; or the maximum, while that is more."""
        self.ledger.assert_right()
        assert self.ledger.reserved == self.unbounded.reserved
        assert self.ledger.used == min(self.unbounded.used, self.ledger.most - self.ledger.reserved)


def play(ledger: Ledger, steps: list[Step]) -> None:
    """Make the calls; at the end, release all rows in random order."""
    calls = Play(ledger)
    for step in steps:
        calls.step(*step)
    for _, _, which in [*steps, *([("", 1, 0)] * (len(calls.held) + len(calls.flying)))]:
        calls.step("release", 1, which)
        calls.step("rollback", 1, which)
    assert (ledger.used, ledger.reserved) == (0, 0)
    assert not ledger.rows


class TestRule(base.BaseTestCase):
    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(steps=STEPS)
    def test_as_without_a_maximum_and_zero_at_the_end(self, steps: list[Step]) -> None:
        play(Ledger(), steps)

    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(steps=STEPS, delta=st.integers(-MAX, -1))
    def test_a_negative_delta_can_be_undone(self, steps: list[Step], delta: int) -> None:
        """After any history, a negative delta that is committed and released at once changes nothing."""
        ledger = Ledger()
        calls = Play(ledger)
        for step in steps:
            calls.step(*step)
        before = ledger.used, sorted(ledger.subtracted())
        ledger.release(ledger.commit(delta))
        assert before == (ledger.used, sorted(ledger.subtracted()))

    def test_the_first_rule_fails(self) -> None:
        """The control: with the first rule, the check finds a wrong history."""
        for steps in (
            [("commit", 5, 0), ("commit", -5, 0), ("release", 1, 0)],
            [("commit", 7, 1), ("commit", -7, 0), ("commit", 7, 0)],
        ):
            self.assertRaises(AssertionError, play, Unadjusted(), steps)

    def test_the_second_rule_fails(self) -> None:
        """The control: 7, -7 and 3 are committed, and the first two are released: 3 are held, and ``used`` is 0."""
        steps = [("commit", 7, 0), ("commit", -7, 0), ("commit", 3, 0), ("release", 1, 1), ("release", 1, 0)]
        play(Ledger(), steps)
        self.assertRaises(AssertionError, play, LastingExcess(), steps)

    def test_the_counters_do_not_show_what_negative_deltas_subtract(self) -> None:
        """Two histories with the same counters: from them alone, no reserve can know which one must be refused.

        In the second, 7 more would be held than fit if the negative delta is released afterwards. See record 0027.
        """
        empty, full = Ledger(), Ledger()
        full.commit(MAX)
        number = full.commit(-MAX)
        self.assertEqual((empty.used, empty.reserved), (full.used, full.reserved))
        self.assertTrue(empty.fits(MAX) and full.fits(MAX))
        full.commit(MAX)
        full.release(number)
        self.assertEqual((MAX, 2 * MAX), (full.used, sum(row.delta for row in full.rows.values())))


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
