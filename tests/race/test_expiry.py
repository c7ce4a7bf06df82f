# SPDX-License-Identifier: Apache-2.0
"""Sweepers race against each other, and against calls that settle the same overdue reservations."""

from __future__ import annotations

import collections
import functools
import time

import testscenarios

from cyborg_quota import Claim, QuotaEngine, exceptions
from tests import base, fixtures, hooks, trees
from tests.race.workers import race

load_tests = testscenarios.load_tests_apply_scenarios

PROJECTS = 12
EACH = 18
SECONDS = 0.5
_OVERDUE_IN = {
    "mariadb": "UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND",
    "postgresql": "(statement_timestamp() AT TIME ZONE 'UTC') + {} * INTERVAL '1 microsecond'",
}


class TestSweepersRace(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        trees.plant(hooks.database_of(self.engine), {"top": None, **{f"p{n}": "top" for n in range(PROJECTS // 2)}})
        self.projects: dict[str, str] = {}
        for number in range(PROJECTS):
            name = f"p{number}"
            claims = [Claim(None, {"gpu": 2})] * EACH
            self.projects |= dict.fromkeys(self.engine.reserve_many(base.Context(name), claims), name)
        # Two thirds are overdue; the others become overdue during the race.
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        moment = _OVERDUE_IN[self.backend].format(f"(id % 100) * {int(SECONDS * 10_000)}")
        self.execute(f"UPDATE reservations SET expire = {moment} WHERE id % 3 = 0")
        self.engine.close()

    def sweep(self, engine: QuotaEngine) -> int:
        """Expire until the time is over; returns the number expired."""
        end = time.monotonic() + SECONDS * 1.5
        total = 0
        while time.monotonic() < end:
            total += engine.expire(base.ADMIN)
            time.sleep(0.02)
        return total

    def settle(self, part: int) -> dict[str, str]:
        """Commit, roll back and extend a third of them each; returns the results."""
        answers = {}
        for number, (uuid, name) in enumerate(self.projects.items()):
            if number % 3 != part:
                continue
            context = base.Context(name)
            try:
                if number % 5 == 0:
                    self.engine.extend(context, [uuid], 3600)
                elif number % 2:
                    self.engine.commit(context, [uuid])
                else:
                    self.engine.rollback(context, [uuid])
            except exceptions.ReservationExpired:
                answers[uuid] = "expired"
            else:
                answers[uuid] = "extended" if number % 5 == 0 else "committed" if number % 2 else "rolled_back"
        return answers

    def test_each_is_settled_once(self) -> None:
        sweeper = self.make_engine(batch_rows=4)
        *settled, first, second = race(
            functools.partial(self.settle, 0),
            functools.partial(self.settle, 1),
            functools.partial(self.sweep, sweeper),
            functools.partial(self.sweep, sweeper),
        )
        uuids = list(self.projects)
        states = dict(zip(uuids, self.states(*uuids), strict=True))
        allowed = {
            "expired": {"expired"},
            "extended": {"reserved"},
            "committed": {"committed"},
            "rolled_back": {"rolled_back", "expired"},  # an expired reservation has been freed already
        }
        for answers in settled:
            for uuid, answer in answers.items():
                self.assertIn(states[uuid], allowed[answer], uuid)
        count = collections.Counter(states.values())
        self.assertLessEqual(first + second, count["expired"])
        self.assertGreater(first + second, 0)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
