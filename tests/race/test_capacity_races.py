# SPDX-License-Identifier: Apache-2.0
"""Processes that claim capacity at the same time: with ANY, in batches, while it is audited, healed and expired.

Those that claim one provider while it is changed or removed are in test_provider_races.py.
"""

from __future__ import annotations

import functools
import random

from cyborg_quota import ANY, Claim, Inventory, exceptions
from tests import base
from tests.base import ADMIN
from tests.race.test_provider_races import CAPACITY, claim_all
from tests.race.workers import PATIENT, PROCESSES, race, race_in_turns


class CapacityRaceTestCase(base.LedgerTestCase):
    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        self.add("n1", CAPACITY)
        # Forked processes find the statements compiled and the modules imported.
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=ANY))
        self.engine.close()

    def add(self, name: str, total: int) -> None:
        self.add_provider(name, gpu=total)

    def used(self, name: str = "n1") -> int:
        (record,) = self.capacity.list_inventories(ADMIN, name)
        return record.used

    def fill(self, number: int, provider: str) -> int:
        return claim_all(self.engine, number, provider)


class TestClaims(CapacityRaceTestCase):
    def test_any_of_several_providers(self) -> None:
        for number in range(2, 6):
            self.add(f"n{number}", 20)
        self.engine.close()
        claimed = race(*(functools.partial(self.fill, number, ANY) for number in range(PROCESSES)))
        self.assertEqual(CAPACITY + 80, sum(claimed), claimed)
        self.assert_invariants()

    def test_one_consumer_with_any(self) -> None:
        """Several deliveries of one call take one provider once."""
        for number in range(2, 6):
            self.add(f"n{number}", CAPACITY)
        self.engine.close()
        reserve = functools.partial(self.engine.reserve, self.context, {"gpu": 3}, provider=ANY)
        turns = [[functools.partial(reserve, consumer=f"c{turn}")] * PROCESSES for turn in range(3)]
        for answers in race_in_turns(turns):
            self.assertEqual([answers[0]] * PROCESSES, answers)
        self.assertEqual(9, sum(record.used for record in self.capacity.list_inventories(ADMIN)))
        self.assert_invariants()

    def test_batches_in_opposite_orders(self) -> None:
        """Claims of several inventories lock them in one order: no call fails because of a deadlock."""
        for number in range(2, 5):
            self.add(f"n{number}", CAPACITY)
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
        self.assertEqual({PROCESSES * 2}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        self.assert_invariants()


class TestAdministration(CapacityRaceTestCase):
    def test_two_writers_of_one_generation(self) -> None:
        """Compare-and-update: of the writers that read the same generation, one succeeds."""
        first = self.capacity.show_provider(ADMIN, "n1").generation
        self.engine.close()
        turns = [
            [functools.partial(self.write, total, generation) for total in range(10, 14)]
            for generation in range(first, first + 4)
        ]
        self.assertEqual([1] * 4, [sum(answers) for answers in race_in_turns(turns)])
        self.assertEqual(first + 4, self.capacity.show_provider(ADMIN, "n1").generation)

    def write(self, total: int, generation: int) -> bool:
        try:
            self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(total)}, generation=generation)
        except exceptions.ProviderConflict:
            return False
        return True


class TestExpiry(CapacityRaceTestCase):
    """Batches of expiry share the inventories, although they share no usage row."""

    def test_parallel_expiry(self) -> None:
        projects, providers, size = 12, 4, 8
        for number in range(2, providers + 1):
            self.add(f"n{number}", 10_000)
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(10_000)})
        chance = random.Random(1)
        for number in range(projects):
            claims = [Claim(None, {"gpu": 1}, provider=f"n{chance.randint(1, providers)}") for _ in range(size)]
            self.engine.reserve_many(base.Context(f"p{number}"), claims)
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        engine = self.make_engine(batch_rows=10)
        engine.close()
        self.assertEqual(projects * size, sum(race(*[functools.partial(engine.expire, ADMIN)] * 3)))
        self.assertEqual({0}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        self.assert_invariants()

    def test_expiry_against_claims(self) -> None:
        """The capacity of overdue reservations is claimed again while they are expired."""
        self.fill(0, "n1")
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        self.engine.close()

        def claim_all(number: int) -> int:
            return self.fill(number, ("n1", ANY)[number % 2])

        *claimed, _, _ = race(
            *(functools.partial(claim_all, number) for number in range(1, 7)),
            *[functools.partial(self.engine.expire, ADMIN)] * 2,
        )
        claimed.append(self.fill(7, "n1"))
        self.assertEqual(CAPACITY, sum(claimed), claimed)
        self.assertEqual(CAPACITY, self.used())
        self.assert_invariants()
