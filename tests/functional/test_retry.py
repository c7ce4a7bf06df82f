# SPDX-License-Identifier: Apache-2.0
"""A call that is repeated, by its caller or by a retry, takes effect once."""

from __future__ import annotations

import testscenarios

from cyborg_quota import exceptions
from tests import base, hooks

load_tests = testscenarios.load_tests_apply_scenarios


class TestRetry(base.LedgerTestCase):
    """A call that is retried with the same consumers is charged once (I7)."""

    def test_several_consumers(self) -> None:
        claims = [base.claim("a", gpu=1), base.claim("b", fpga=2, gpu=3)]
        first = self.quotas.reserve_many(self.context, claims)
        self.assertEqual(first, self.quotas.reserve_many(self.context, claims))
        self.assertEqual((0, 4), self.figures())

    def test_at_the_limit(self) -> None:
        self.limits.own[None, "gpu"] = 3
        first = self.quotas.reserve(self.context, {"gpu": 3}, consumer="a")
        self.assertEqual(first, self.quotas.reserve(self.context, {"gpu": 3}, consumer="a"))

    def test_one_more_consumer_than_before(self) -> None:
        (first,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        uuids = self.quotas.reserve_many(
            self.context, [base.claim("b", gpu=2), base.claim("a", gpu=1), base.claim(None, gpu=4)]
        )
        self.assertEqual(first, uuids[1])
        self.assertEqual((0, 7), self.figures())

    def test_one_consumer_holds_something_else(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        claims = [base.claim("b", gpu=2), base.claim("a", gpu=5)]
        error = self.assertRaises(exceptions.ReservationConflict, self.quotas.reserve_many, self.context, claims)
        self.assertEqual("a", error.consumer)
        self.assertIn("gpu=1", str(error))
        self.assertEqual((0, 1), self.figures())


class TestLostCommit(base.LedgerTestCase):
    """The answer to a successful COMMIT is lost: the call is retried, and takes effect once."""

    def lose(self, times: int = 1) -> hooks.LostCommits:
        self.quotas.check(self.context, {"gpu": 1})
        return self.useFixture(hooks.LostCommits(self.engine, self.backend, times))

    def test_reserve(self) -> None:
        for consumer in (None, "c"):
            lost = self.lose()
            (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, consumer=consumer)
            self.assertEqual(1, lost.lost)
            self.assertEqual(["reserved"], self.states(uuid))
        self.assertEqual((0, 4), self.figures())
        self.assertEqual(2, len(self.quotas.list_reservations(base.ADMIN)))

    def test_reserve_at_the_limit(self) -> None:
        """The retry finds the limit reached, by its own first attempt."""
        self.limits.own[None, "gpu"] = 2
        lost = self.lose()
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertEqual((1, (0, 2)), (lost.lost, self.figures()))

    def test_reserve_many(self) -> None:
        lost = self.lose()
        uuids = self.quotas.reserve_many(
            self.context, [base.claim("a", gpu=1), base.claim(None, gpu=2, fpga=1)], group="g"
        )
        self.assertEqual((1, (0, 3)), (lost.lost, self.figures()))
        self.assertEqual(["reserved"] * 3, self.states(*uuids))

    def test_reserve_for_one_consumer_that_holds_it_and_one_that_does_not(self) -> None:
        (held,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="a")
        lost = self.lose()
        uuids = self.quotas.reserve_many(self.context, [base.claim("a", gpu=1), base.claim("b", gpu=2)])
        self.assertEqual((1, (0, 3)), (lost.lost, self.figures()))
        self.assertEqual(held, uuids[0])

    def test_adopt(self) -> None:
        lost = self.lose()
        self.quotas.adopt(base.ADMIN, [base.claim("a", gpu=2)], "p1")
        self.assertEqual((1, (2, 0)), (lost.lost, self.figures()))

    def test_several_times(self) -> None:
        lost = self.lose(3)
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.quotas.commit(self.context, uuids)
        self.quotas.release(self.context, uuids)
        self.assertEqual((3, (0, 0)), (lost.lost, self.figures()))

    def test_settle(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 8}, consumer="other"))
        for call, state, figures in (
            ("commit", "committed", (10, 0)),
            ("rollback", "rolled_back", (8, 0)),
            ("release", "rolled_back", (8, 0)),
            ("extend", "reserved", (8, 2)),
        ):
            uuids = self.quotas.reserve(self.context, {"gpu": 2}, consumer="c", group="g")
            with hooks.LostCommits(self.engine, self.backend) as lost:
                self.assertIsNone(getattr(self.quotas, call)(self.context, group="g"))
            self.assertEqual((1, [state], figures), (lost.lost, self.states(*uuids), self.figures()), call)
            self.quotas.release(self.context, uuids)

    def test_commit_of_an_overdue_reservation(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2})
        self.make_overdue(uuid)
        lost = self.lose()
        self.assertRaises(exceptions.ReservationExpired, self.quotas.commit, self.context, [uuid])
        self.assertEqual((1, ["expired"]), (lost.lost, self.states(uuid)))

    def test_fold(self) -> None:
        for _ in range(3):
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 2}))
        lost = self.lose()
        self.quotas.purge(base.ADMIN, 0)
        self.assertEqual((1, (6, 0)), (lost.lost, self.figures()))
