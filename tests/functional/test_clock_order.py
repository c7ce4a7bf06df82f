# SPDX-License-Identifier: Apache-2.0
"""The clock runs backwards between two calls: after a step, a failover, or on another node of a cluster.

The order of events is never derived from stored times. See record 0026.
"""

from __future__ import annotations

from collections.abc import Callable

from cyborg_quota import exceptions
from tests import base


class TestClockRunsBackwards(base.LedgerTestCase):
    """According to the stored times, each reservation was made, and ended, a minute before the previous one."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.make_engine()  # it has made none of the reservations, and so has none in its cache

    def step_back(self) -> None:
        """Shift all stored times by an hour, so that later events get earlier times."""
        self.calls = getattr(self, "calls", 0) + 1
        moment = f"'2099-01-01 {23 - self.calls:02}:00:00.000000'"
        self.execute(
            f"UPDATE reservations SET created_at = {moment}, updated_at = {moment}"
            " WHERE created_at < '2099-01-01 00:00:00.000000'"
        )
        self.execute(
            f"UPDATE reservations SET deleted_at = {moment}"
            " WHERE live IS NULL AND deleted_at < '2099-01-01 00:00:00.000000'"
        )

    def reserve(self, consumer: str = "c") -> str:
        (uuid,) = self.engine.reserve(self.context, {"gpu": 1}, consumer=consumer, group="g")
        self.step_back()
        return uuid

    def roll_back(self, consumer: str = "c") -> None:
        self.other.rollback(self.context, consumer=consumer)
        self.step_back()

    def test_commit_finds_reservations_in_flight(self) -> None:
        """And a release the committed ones: Cyborg makes it when an accelerator is unbound."""
        for named in ({"consumer": "c"}, {"group": "g"}):
            for consumer in ("a", "c"):  # of one group
                self.reserve(consumer)
                self.roll_back(consumer)
            uuid = self.reserve()
            self.other.commit(self.context, **named)
            self.assertEqual(["committed"], self.states(uuid))
            self.other.release(self.context, **named)
            self.assertEqual((0, 0), self.figures())
            self.step_back()
        self.assert_invariants()

    def test_the_latest_end_determines_the_answer(self) -> None:
        self.other.commit(self.context, [self.reserve()])
        self.other.release(self.context, consumer="c")
        self.step_back()
        self.assertRaises(exceptions.ReservationReleased, self.other.commit, self.context, consumer="c")
        self.reserve()
        self.roll_back()
        self.assertRaises(exceptions.ReservationRolledBack, self.other.commit, self.context, consumer="c")
        self.make_overdue(self.reserve())
        self.assertEqual(1, self.other.expire(base.ADMIN))
        self.step_back()
        for _ in range(2):
            self.assertRaises(exceptions.ReservationExpired, self.other.commit, self.context, consumer="c")
            self.other.rollback(self.context, consumer="c")
            self.other.release(self.context, consumer="c")

    def test_rows_that_ended_during_the_attempt_count(self) -> None:
        """Half of the group was rolled back, expired or released after the other half had reserved."""
        ends: list[Callable[[str], object]] = [
            lambda uuid: self.other.rollback(self.context, [uuid]),
            lambda uuid: (self.make_overdue(uuid), self.other.expire(base.ADMIN)),
            lambda uuid: self.other.release(self.context, [uuid]),
        ]
        for end in ends:
            lost, kept = self.reserve("a"), self.reserve("b")
            end(lost)
            self.step_back()
            error = self.assertRaises(exceptions.ReservationError, self.other.commit, self.context, group="g")
            self.assertEqual(lost, error.uuid)
            self.assertEqual(["reserved"], self.states(kept))
            self.roll_back("b")
