# SPDX-License-Identifier: Apache-2.0
"""Negative amounts, and amounts that exceed the range of a counter."""

from __future__ import annotations

import threading
from concurrent import futures

import sqlalchemy as sa
import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base, hooks, trees

load_tests = testscenarios.load_tests_apply_scenarios


class TestNegative(base.LedgerTestCase):
    """A negative delta subtracts from used when it is committed; used does not go below zero."""

    def hold(self, amount: int) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": amount}))

    def test_in_flight_it_changes_no_counter(self) -> None:
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

    def test_others_can_reserve_only_after_its_commit(self) -> None:
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

    def test_clamped_with_a_reservation_in_flight(self) -> None:
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

    def held(self, amount: int, consumer: str | None = None) -> list[str]:
        uuids = self.quotas.reserve(self.context, {"gpu": amount}, consumer=consumer)
        self.quotas.commit(self.context, uuids)
        return uuids

    def deltas(self) -> list[int]:
        return [row.delta for row in self.quotas.list_reservations(base.ADMIN, state="committed")]

    def test_both_released_the_positive_first(self) -> None:
        positive, negative = self.held(5), self.held(-5)
        self.quotas.release(self.context, positive)
        self.assertEqual((0, 0), self.figures())
        self.quotas.release(self.context, negative)
        self.assertEqual(((0, 0), []), (self.figures(), self.deltas()))

    def test_both_released_the_negative_first(self) -> None:
        positive, negative = self.held(5), self.held(-5)
        self.quotas.release(self.context, negative)
        self.assertEqual((5, 0), self.figures())
        self.quotas.release(self.context, positive)
        self.assertEqual(((0, 0), []), (self.figures(), self.deltas()))

    def test_both_released_in_one_call(self) -> None:
        uuids = [*self.held(5), *self.held(-7)]
        self.quotas.release(self.context, uuids)
        self.assertEqual(((0, 0), []), (self.figures(), self.deltas()))

    def test_released_after_it_was_clamped(self) -> None:
        """Its release restores what it has subtracted, and its adjustment ends with it."""
        self.held(3)
        negative = self.held(-5)
        self.assertEqual([3, -5, 2], self.deltas())
        self.quotas.release(self.context, negative)
        self.assertEqual(((3, 0), [3]), (self.figures(), self.deltas()))

    def test_undone_while_an_older_one_is_adjusted(self) -> None:
        """The adjustment of one negative delta is not used for another."""
        older = self.held(-5)
        self.held(4)
        mistake = self.held(-3)
        self.assertEqual((1, 0), self.figures())
        self.quotas.release(self.context, mistake)
        self.assertEqual((4, 0), self.figures())
        self.quotas.release(self.context, older)
        self.assertEqual(((4, 0), [4]), (self.figures(), self.deltas()))

    def test_the_one_committed_now_is_clamped(self) -> None:
        """And not one that was reserved later, but committed before, when used was large enough."""
        first = self.quotas.reserve(self.context, {"gpu": -3})
        self.held(2)
        second = self.held(-2)
        self.quotas.commit(self.context, first)
        self.quotas.release(self.context, second)
        self.assertEqual((2, 0), self.figures())
        self.quotas.release(self.context, first)
        self.assertEqual(((2, 0), [2]), (self.figures(), self.deltas()))

    def test_several_of_a_consumer(self) -> None:
        self.held(4)
        for number in range(3):
            self.held(-2, consumer=f"c{number}")
        self.quotas.release(self.context, consumer="c1")
        self.assertEqual((2, 0), self.figures())

    def test_in_a_tree(self) -> None:
        """The subtree counter of the root follows: I9 is asserted after each call."""
        trees.plant(hooks.database_of(self.engine), {"root": None, "p1": "root", "a": "root"})
        self.quotas.adopt(base.ADMIN, [base.claim("a", gpu=2)], "a")
        uuids = [self.held(3), self.held(-5), self.held(4), self.held(-2)]
        for each in (uuids[2], uuids[1], uuids[0], uuids[3]):
            self.quotas.release(self.context, each)
        self.assertEqual([(0, 0), (2, 0)], [self.figures(), self.figures("a")])
        self.assertEqual([], self.quotas.audit(base.ADMIN))

    def test_with_a_drifted_counter(self) -> None:
        """A call that changes the counters of a drifted row corrects them; a negative delta does so too."""
        self.held(3)
        negative = self.held(-2)
        self.execute("UPDATE quota_usages SET used = 9, subtree = 9")
        self.engine.release(self.context, negative)
        self.assertEqual((3, 0), self.figures())
        self.assert_invariants()

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


class TestConcurrentRelease(base.LedgerTestCase):
    """A positive delta and a negative one that subtracts from it are released concurrently."""

    def test_counters_return_to_zero(self) -> None:
        for number in range(8):
            names = (f"positive{number}", f"negative{number}")
            for name, amount in zip(names, (5, -5), strict=True):
                self.engine.commit(self.context, self.engine.reserve(self.context, {"gpu": amount}, consumer=name))
            barrier = threading.Barrier(2)

            def release(name: str, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(30)
                self.engine.release(self.context, consumer=name)

            with futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(release, names))
            self.assertEqual((0, 0), self.figures())
            self.assert_invariants()


class TestOverflow(base.LedgerTestCase):
    """A counter has 32 bits on each database. An error is raised before it overflows."""

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

    def test_release_of_a_negative_delta_when_full(self) -> None:
        """It is not refused: a row without a consumer subtracts what does not fit, for as long as it does not fit."""
        self.exceed()
        self.assertEqual((MAX_AMOUNT - 1, 1), self.figures())
        self.quotas.release(self.context, consumer=str(MAX_AMOUNT))
        self.assertEqual((MAX_AMOUNT - 4, 1), self.figures())
        self.quotas.release(self.context, consumer=str(MAX_AMOUNT - 4))
        self.assertEqual((0, 1), self.figures())

    def exceed(self) -> None:
        """Hold MAX_AMOUNT, MAX_AMOUNT - 4, and 1 in flight: more than a counter holds."""
        for amount in (MAX_AMOUNT, -MAX_AMOUNT, MAX_AMOUNT - 4):
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": amount}, consumer=str(amount)))
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="flying")
        self.quotas.release(self.context, consumer=str(-MAX_AMOUNT))

    def test_rollback_or_expiry_when_more_is_held_than_fits(self) -> None:
        self.exceed()
        self.quotas.rollback(self.context, consumer="flying")
        self.assertEqual((MAX_AMOUNT, 0), self.figures())
        self.assertEqual([-(MAX_AMOUNT - 4)], self.excess())
        self.quotas.release(self.context, consumer=str(MAX_AMOUNT - 4))
        self.assertEqual(((MAX_AMOUNT, 0), []), (self.figures(), self.excess()))

    def test_expiry_of_many_when_more_is_held_than_fits(self) -> None:
        """Also in batches, whose usage rows are changed by one statement."""
        for number in range(9):
            self.engine.reserve(base.Context(f"other{number}"), {"gpu": 2})
        self.exceed()
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE state = 'reserved'")
        self.assertEqual(10, self.quotas.expire(base.ADMIN))
        self.assertEqual((MAX_AMOUNT, 0), self.figures())
        self.assertEqual([-(MAX_AMOUNT - 4)], self.excess())

    def test_commit_of_a_negative_delta_when_more_is_held_than_fits(self) -> None:
        self.exceed()
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -MAX_AMOUNT}))
        self.assertEqual((MAX_AMOUNT - 4, 1), self.figures())

    def test_purge_when_more_is_held_than_fits(self) -> None:
        """An excess is not folded: it ends when it fits."""
        self.exceed()
        self.quotas.commit(self.context, consumer="flying")
        self.execute("UPDATE reservations SET consumer_id = NULL WHERE delta = :delta", delta=MAX_AMOUNT - 4)
        self.quotas.purge(base.ADMIN, 0)
        self.quotas.release(self.context, consumer=str(MAX_AMOUNT))
        self.assertEqual((MAX_AMOUNT - 3, 0), self.figures())

    def excess(self) -> list[int]:
        """Return the amounts that are subtracted because they do not fit."""
        with self.sql.connect() as connection:
            query = "SELECT delta FROM reservations WHERE adjusts = 0 AND live = 1"
            return list(connection.execute(sa.text(query)).scalars())

    def test_release_of_several_negative_deltas_when_full(self) -> None:
        """More than one row can subtract stays subtracted."""
        negative = []
        for _ in range(3):
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT}))
            uuids = self.quotas.reserve(self.context, {"gpu": -MAX_AMOUNT})
            self.quotas.commit(self.context, uuids)
            negative += uuids
        self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.quotas.release(self.context, negative)
        self.assertEqual((0, MAX_AMOUNT), self.figures())

    def test_the_most_negative(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": -MAX_AMOUNT}))
        self.assertEqual((0, 0), self.figures())
