# SPDX-License-Identifier: Apache-2.0
"""A reservation is settled while it is adopted: the adoption charges, whatever the other call does at which time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from cyborg_quota import exceptions
from tests import base, hooks
from tests.race.interleaving import interleave


class TestAdopt(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.make_engine()
        self.other.get_usages(self.context)

    def reserve(self, consumer: str) -> None:
        self.engine.reserve(self.context, {"gpu": 1}, consumer=consumer)

    def interleave(self, prepare: Callable[[str], Any], act: Callable[[str], Any]) -> list[tuple[str, ...]]:
        """Interrupt an adoption before each statement; returns each consumer's reservation states, oldest first."""
        states = []
        sql = hooks.database_of(self.engine).engine
        adopt = lambda consumer: self.engine.adopt(base.ADMIN, [base.claim(consumer, gpu=1)], "p1")  # noqa: E731
        for consumer, uuids in interleave(sql, prepare, adopt, act):
            self.assert_invariants()
            rows = self.engine.list_reservations(base.ADMIN, consumer=consumer)
            self.assertEqual(uuids, [rows[-1].uuid])
            states.append(tuple(row.state for row in rows))
        return states

    def settle(self, consumer: str, *calls: str) -> None:
        """(A call may find that another one came before it.)"""
        for call in calls:
            with contextlib.suppress(exceptions.ReservationError):
                getattr(self.other, call)(self.context, consumer=consumer)

    def roll_back_and_purge(self, consumer: str) -> None:
        self.settle(consumer, "rollback")
        self.other.purge(base.ADMIN, 0)

    def roll_back_and_reserve_again(self, consumer: str) -> None:
        self.settle(consumer, "rollback")
        self.other.reserve(self.context, {"gpu": 1}, consumer=consumer)

    def expire(self, consumer: str) -> None:
        overdue = "UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'"
        self.execute(f"{overdue} WHERE state = 'reserved' AND consumer_id = '{consumer}'")
        self.other.expire(base.ADMIN)

    def test_settled_meanwhile(self) -> None:
        """The adoption charges."""
        for act, ended in (
            (lambda consumer: self.settle(consumer, "rollback"), "rolled_back"),
            (self.expire, "expired"),
            (self.roll_back_and_purge, None),
            (self.roll_back_and_reserve_again, None),
        ):
            states = self.interleave(self.reserve, act)
            self.assertEqual({"committed"}, {last for *_, last in states})
            if ended is not None:
                self.assertIn((ended, "committed"), states)
            # One more: the adoption that was not interrupted.
            self.assertEqual((len(states) + 1, 0), self.figures())
            self.other.release(self.context, [row.uuid for row in self.engine.list_reservations(base.ADMIN)])
            self.other.purge(base.ADMIN, 0)

    def test_released_meanwhile(self) -> None:
        """A charge that was released after its adoption stays released: it is not charged again.

        If the other call commits the reservation and releases it at once, the adoption makes a new charge.
        """
        release = lambda consumer: self.settle(consumer, "release")  # noqa: E731
        commit_and_release = lambda consumer: self.settle(consumer, "commit", "release")  # noqa: E731
        allowed = {("released",), ("committed",)}
        for prepare, more in ((lambda _: None, set()), (self.reserve, {("rolled_back", "committed")})):
            self.assertLessEqual(set(self.interleave(prepare, release)), allowed | more)
            self.execute("DELETE FROM reservations")
            self.engine.heal(base.ADMIN)
        self.assertIn(("released", "committed"), self.interleave(self.reserve, commit_and_release))
