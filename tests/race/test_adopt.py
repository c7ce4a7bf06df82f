# SPDX-License-Identifier: Apache-2.0
"""A reservation is settled while it is adopted: the adoption charges, whatever the other call does at which time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import testscenarios

from cyborg_quota import exceptions
from tests import base, hooks
from tests.race.interleaving import interleave

load_tests = testscenarios.load_tests_apply_scenarios


class TestAdopt(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.make_engine()
        self.other.get_usages(self.context)

    def reserve(self, consumer: str) -> None:
        self.engine.reserve(self.context, {"gpu": 1}, consumer=consumer)

    def adopt(self, consumer: str) -> str:
        (uuid,) = self.engine.adopt(base.ADMIN, [base.claim(consumer, gpu=1)], "p1")
        return uuid

    def interleave(self, prepare: Callable[[str], Any], act: Callable[[str], Any]) -> list[list[str]]:
        """Interrupt an adoption before each statement; returns each consumer's reservation states, oldest first."""
        states = []
        sql = hooks.database_of(self.engine).engine
        for consumer, uuid in interleave(sql, prepare, self.adopt, act):
            self.assert_invariants()
            rows = self.engine.list_reservations(base.ADMIN, consumer=consumer)
            self.assertEqual(uuid, rows[-1].uuid)
            states.append([row.state for row in rows])
        return states

    def test_rolled_back(self) -> None:
        states = self.interleave(self.reserve, self.roll_back)
        self.assertEqual({"committed"}, {last for *_, last in states})
        self.assertIn(["rolled_back", "committed"], states)
        self.assertEqual((len(states) + 1, 0), self.figures())  # one more: the adoption that was not interrupted

    def roll_back(self, consumer: str) -> None:
        with contextlib.suppress(exceptions.ReservationCommitted):  # it was adopted before
            self.other.rollback(self.context, consumer=consumer)

    def test_expired(self) -> None:
        def expire(consumer: str) -> None:
            with self.sql.begin() as connection:
                connection.exec_driver_sql(
                    "UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'"
                    f" WHERE state = 'reserved' AND consumer_id = '{consumer}'"
                )
            self.other.expire(base.ADMIN)

        states = self.interleave(self.reserve, expire)
        self.assertEqual({"committed"}, {last for *_, last in states})
        self.assertIn(["expired", "committed"], states)

    def test_rolled_back_and_purged(self) -> None:
        def purge(consumer: str) -> None:
            self.roll_back(consumer)
            self.other.purge(base.ADMIN, 0)

        self.assertEqual({"committed"}, {last for *_, last in self.interleave(self.reserve, purge)})

    def test_rolled_back_and_reserved_again(self) -> None:
        def reserve_again(consumer: str) -> None:
            self.roll_back(consumer)
            self.other.reserve(self.context, {"gpu": 1}, consumer=consumer)

        self.assertEqual({"committed"}, {last for *_, last in self.interleave(self.reserve, reserve_again)})

    def test_committed_and_released(self) -> None:
        """The other call commits the reservation and releases it at once: the adoption makes a new charge."""

        def commit_and_release(consumer: str) -> None:
            with contextlib.suppress(exceptions.ReservationNotFound, exceptions.ReservationRolledBack):
                self.other.commit(self.context, consumer=consumer)
            self.other.release(self.context, consumer=consumer)

        states = self.interleave(self.reserve, commit_and_release)
        self.assertIn(["released", "committed"], states)

    def test_released(self) -> None:
        """A charge that was released after its adoption stays released: it is not charged again."""
        states = self.interleave(self.reserve, lambda consumer: self.other.release(self.context, consumer=consumer))
        self.assertLessEqual(
            {tuple(state) for state in states}, {("released",), ("rolled_back", "committed"), ("committed",)}
        )

    def test_released_when_it_was_not_reserved(self) -> None:
        states = self.interleave(lambda _: None, lambda consumer: self.other.release(self.context, consumer=consumer))
        self.assertLessEqual({tuple(state) for state in states}, {("released",), ("committed",)})
