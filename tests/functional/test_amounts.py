# SPDX-License-Identifier: Apache-2.0
"""Amounts below zero, and beyond what a counter holds."""

from __future__ import annotations

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base

load_tests = testscenarios.load_tests_apply_scenarios


class TestNegative(base.LedgerTestCase):
    """A negative delta frees something when it is committed, and never below zero."""

    def hold(self, amount: int) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": amount}))

    def test_in_flight_it_counts_nowhere(self) -> None:
        self.hold(3)
        self.quotas.reserve(self.context, {"gpu": -2})
        self.assertEqual((3, 0), self.figures())

    def test_committed(self) -> None:
        self.hold(3)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -2}))
        self.assertEqual((1, 0), self.figures())

    def test_rolled_back_or_expired(self) -> None:
        self.hold(3)
        first, second = (self.quotas.reserve(self.context, {"gpu": -2}) for _ in range(2))
        self.quotas.rollback(self.context, first)
        self.make_overdue(*second)
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual((3, 0), self.figures())

    def test_room_for_others_only_after_its_commit(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        self.hold(3)
        uuids = self.quotas.reserve(self.context, {"gpu": -2})
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 2})
        self.quotas.commit(self.context, uuids)
        self.quotas.reserve(self.context, {"gpu": 2})

    def test_clamped_at_zero_with_an_adjustment(self) -> None:
        self.hold(3)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -5}))
        self.assertEqual((0, 0), self.figures())
        rows = self.quotas.list_reservations(base.ADMIN, state="committed")
        self.assertEqual([3, -5, 2], [row.delta for row in rows])
        self.assertIsNone(rows[-1].consumer)

    def test_clamped_beside_what_is_in_flight(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 4})
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -1}))
        self.assertEqual((0, 4), self.figures())

    def test_released(self) -> None:
        self.hold(3)
        uuids = self.quotas.reserve(self.context, {"gpu": -2})
        self.quotas.commit(self.context, uuids)
        self.quotas.release(self.context, uuids)
        self.assertEqual((3, 0), self.figures())

    def test_release_of_the_positive_after_the_negative(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": 3})
        self.quotas.commit(self.context, uuids)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -2}))
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())
        self.hold(2)
        self.assertEqual((2, 0), self.figures())

    def test_mixed_in_one_claim(self) -> None:
        self.hold(3)
        self.limits.limits[None, "gpu"] = 0
        uuids = self.quotas.reserve(self.context, {"gpu": -1, "fpga": 2})
        self.assertEqual([(3, 0), (0, 2)], [self.figures(), self.figures(resource="fpga")])
        self.quotas.commit(self.context, uuids)
        self.assertEqual([(2, 0), (2, 0)], [self.figures(), self.figures(resource="fpga")])

    def test_mixed_in_one_call(self) -> None:
        self.limits.limits[None, "gpu"] = 3
        self.hold(3)
        claims = [base.claim("a", gpu=1), base.claim("b", gpu=-1)]
        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve_many, self.context, claims
        )
        self.assertEqual(1, error.overs[0].requested)


class TestOverflow(base.LedgerTestCase):
    """A counter is 32 bits wide on each database, and says so before it is passed."""

    def assert_overflow(self, call: object, *args: object) -> None:
        before = self.quotas.list_reservations(base.ADMIN)
        error = self.assertRaises(exceptions.UsageOverflow, call, *args)
        self.assertEqual(("p1", "gpu"), (error.project_id, error.resource))
        self.assertIn("2147483647", str(error))
        self.assertEqual(before, self.quotas.list_reservations(base.ADMIN))

    def test_full(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assertEqual((0, MAX_AMOUNT), self.figures())

    def test_one_more_than_reserved(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.reserve, self.context, {"gpu": 1})
        self.assertEqual((0, MAX_AMOUNT), self.figures())

    def test_more_than_used_and_reserved(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT - 1}))
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assert_overflow(self.quotas.reserve, self.context, {"fpga": 1, "gpu": 1})
        self.assertEqual((0, 0), self.figures(resource="fpga"))

    def test_under_a_limit_that_is_larger(self) -> None:
        self.limits.limits[None, "gpu"] = 2**40
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.reserve, self.context, {"gpu": 1})

    def test_adopt(self) -> None:
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.assert_overflow(self.quotas.adopt, base.ADMIN, [base.claim("a", gpu=1)], "p1")

    def test_full_can_be_settled(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.quotas.commit(self.context, uuids)
        self.assertEqual((MAX_AMOUNT, 0), self.figures())
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())

    def test_the_most_negative(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -MAX_AMOUNT}))
        self.assertEqual((0, 0), self.figures())
