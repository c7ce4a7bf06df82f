# SPDX-License-Identifier: Apache-2.0
"""Processes that claim capacity at the same time: with ANY, in batches, while it is audited, healed and expired.

Those that claim one provider while it is changed or removed are in test_provider_races.py.
"""

from __future__ import annotations

import functools
import random

from cyborg_quota import ANY, Claim
from tests import base
from tests.base import ADMIN
from tests.race.test_provider_races import CAPACITY, claim_all
from tests.race.workers import PATIENT, PROCESSES, race, race_in_turns


class TestClaims(base.LedgerTestCase):
    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n1", gpu=CAPACITY)
        # Forked processes find the statements compiled and the modules imported.
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=ANY))

    def used(self) -> list[int]:
        return [record.used for record in self.capacity.list_inventories(ADMIN)]

    def fill(self, number: int, provider: str) -> int:
        return claim_all(self.engine, number, provider)

    def test_one_consumer_with_any(self) -> None:
        """Several deliveries of one call take one provider once."""
        for number in range(2, 6):
            self.add_provider(f"n{number}", gpu=CAPACITY)
        self.engine.close()
        reserve = functools.partial(self.engine.reserve, self.context, {"gpu": 3}, provider=ANY)
        turns = [[functools.partial(reserve, consumer=f"c{turn}")] * PROCESSES for turn in range(3)]
        for answers in race_in_turns(turns):
            self.assertEqual([answers[0]] * PROCESSES, answers)
        self.assertEqual(9, sum(self.used()))
        self.assert_invariants()

    def test_batches_in_opposite_orders(self) -> None:
        """Claims of several inventories lock them in one order: no call fails because of a deadlock."""
        for number in range(2, 5):
            self.add_provider(f"n{number}", gpu=CAPACITY)
        self.engine.close()

        def job(number: int) -> None:
            names = ["n1", "n2", "n3", "n4"]
            context = base.Context(f"p{number % 2}")
            for turn in range(4):
                random.Random(f"{number} {turn}").shuffle(names)
                claims = [Claim(f"{number} {turn} {name}", {"gpu": 1}, provider=name) for name in names]
                uuids = self.engine.reserve_many(context, claims, group=f"{number} {turn}")
                (self.engine.release if turn % 3 else self.engine.commit)(context, uuids)

        race(*(functools.partial(job, number) for number in range(PROCESSES)))
        self.assertEqual([PROCESSES * 2] * 4, self.used())
        self.assert_invariants()

    def test_expiry_against_claims(self) -> None:
        """With ANY, all of several providers is claimed; when that is overdue, again, while it is expired.

        Batches of expiry share the inventories, although they share no usage row.
        """
        for number in range(2, 6):
            self.add_provider(f"n{number}", gpu=20)
        self.engine.close()
        claimed = race(*(functools.partial(self.fill, number, ANY) for number in range(PROCESSES)))
        self.assertEqual(CAPACITY + 80, sum(claimed), claimed)
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        expirer = self.make_engine(batch_rows=10)
        for engine in (self.engine, expirer):
            engine.close()
        *claimed, _, _ = race(
            *(functools.partial(self.fill, number, ("n1", ANY)[number % 2]) for number in range(1, 7)),
            *[functools.partial(expirer.expire, ADMIN)] * 2,
        )
        claimed.append(self.fill(7, ANY))
        self.assertEqual((CAPACITY + 80,) * 2, (sum(claimed), sum(self.used())), claimed)
        self.assert_invariants()
