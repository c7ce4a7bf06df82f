# SPDX-License-Identifier: Apache-2.0
"""Processes that claim capacity at the same time: with ANY, in batches, while it is audited, healed and expired.

Those that claim one provider while it is changed or removed are in test_provider_races.py.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, Claim, Inventory, QuotaEngine, exceptions
from cyborg_quota.db import change_log
from tests import base, history_replay, hooks
from tests.race.test_provider_races import CAPACITY, PROCESSES, claim_all
from tests.race.workers import PATIENT, Signal, race, race_beside, race_in_turns

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN


class CapacityRaceTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.capacity = self.engine.capacity
        self.add("n1", CAPACITY)
        # Forked processes find the statements compiled and the modules imported.
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=ANY))
        self.engine.close()

    def make_engine(self, **changes: object) -> QuotaEngine:
        return super().make_engine(**{**PATIENT, **changes})

    def add(self, name: str, total: int) -> None:
        self.capacity.add_provider(ADMIN, name)
        self.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(total)})

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
        """Eight deliveries of one call take one provider once."""
        for number in range(2, 6):
            self.add(f"n{number}", CAPACITY)
        self.engine.close()
        reserve = functools.partial(self.engine.reserve, self.context, {"gpu": 3}, provider=ANY)
        turns = [[functools.partial(reserve, consumer=f"c{turn}")] * PROCESSES for turn in range(5)]
        for answers in race_in_turns(turns):
            self.assertEqual([answers[0]] * PROCESSES, answers)
        self.assertEqual(15, sum(record.used for record in self.capacity.list_inventories(ADMIN)))
        self.assert_invariants()

    def test_batches_in_opposite_orders(self) -> None:
        """Claims of several inventories lock them in one order: no call fails because of a deadlock."""
        for number in range(2, 5):
            self.add(f"n{number}", CAPACITY)
        self.engine.close()

        def job(number: int) -> None:
            names = ["n1", "n2", "n3", "n4"]
            context = base.Context(f"p{number % 2}")
            for turn in range(8):
                random.Random(f"{number} {turn}").shuffle(names)
                claims = [Claim(f"{number} {turn} {name}", {"gpu": 1}, provider=name) for name in names]
                uuids = self.engine.reserve_many(context, claims, group=f"{number} {turn}")
                (self.engine.release if turn % 3 else self.engine.commit)(context, uuids)

        race(*(functools.partial(job, number) for number in range(PROCESSES)))
        self.assertEqual({PROCESSES * 3}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        self.assert_invariants()


class TestAdministration(CapacityRaceTestCase):
    CYCLES = 24

    def churn(self, number: int) -> None:
        """Claim 1 to 5, and end most claims in some way."""
        chance = random.Random(number)
        context = base.Context(f"p{number % 3}")
        held: list[list[str]] = []
        for _ in range(self.CYCLES):
            with contextlib.suppress(exceptions.OverCapacity):
                held.append(self.engine.reserve(context, {"gpu": chance.randint(1, 5)}, provider="n1"))
            if held and (len(held) > 6 or chance.random() < 0.4):
                uuids = held.pop(chance.randrange(len(held)))
                if chance.random() < 0.5:
                    self.engine.commit(context, uuids)
                    self.engine.release(context, uuids)
                else:
                    self.engine.rollback(context, uuids)

    def churners(self) -> list[Callable[[], Any]]:
        return [functools.partial(self.churn, number) for number in range(4)]

    def test_two_writers_of_one_generation(self) -> None:
        """Compare-and-update: of the writers that read the same generation, one succeeds."""
        first = self.capacity.show_provider(ADMIN, "n1").generation
        self.engine.close()
        turns = [
            [functools.partial(self.write, total, generation) for total in range(10, 14)]
            for generation in range(first, first + 10)
        ]
        self.assertEqual([1] * 10, [sum(answers) for answers in race_in_turns(turns)])
        self.assertEqual(first + 10, self.capacity.show_provider(ADMIN, "n1").generation)

    def write(self, total: int, generation: int) -> bool:
        try:
            self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(total)}, generation=generation)
        except exceptions.ProviderConflict:
            return False
        return True

    def test_audit_and_heal_find_nothing(self) -> None:
        _, (audits, heals) = race_beside(
            self.churners(), functools.partial(self.capacity.audit, ADMIN), functools.partial(self.capacity.heal, ADMIN)
        )
        self.assertEqual([], [drift for drifts in audits + heals for drift in drifts])
        self.assert_invariants()

    def test_heal_repairs_drift_under_load(self) -> None:
        def spoil_and_heal() -> int:
            with sql.begin() as connection:
                connection.exec_driver_sql("UPDATE inventories SET used = used + 3, free = free - 3")
            return len(self.capacity.heal(ADMIN))

        sql = sa.create_engine(self.url, poolclass=sa.NullPool)
        _, (healed,) = race_beside(self.churners(), spoil_and_heal)
        self.assertGreater(sum(healed), 0)
        self.capacity.heal(ADMIN)
        self.assert_invariants()


class TestExpiry(CapacityRaceTestCase):
    """Batches of expiry share the inventories, although they share no usage row."""

    def test_parallel_expiry(self) -> None:
        projects, providers, size = 30, 4, 8
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
        counts = race(*[functools.partial(engine.expire, ADMIN)] * 3)
        self.assertEqual(projects * size, sum(counts))
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


class TestHistory(CapacityRaceTestCase):
    """Each entry's values before are those after the entry before it, whoever changes the same inventories at once."""

    CHANGES = 15

    def change(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(self.CHANGES):
            name = chance.choice(("n1", "n2"))
            wanted = {resource: Inventory(chance.randrange(1, 50)) for resource in chance.sample(("gpu", "fpga"), 2)}
            with contextlib.suppress(exceptions.ProviderNotFound, exceptions.ProviderExists):
                if seed:
                    self.capacity.set_inventories(ADMIN, name, wanted)
                elif chance.random() < 0.5:
                    self.capacity.remove_provider(ADMIN, "n2")
                else:
                    self.capacity.add_provider(ADMIN, "n2")

    def test_the_history_is_in_the_order_of_the_changes(self) -> None:
        race(*(functools.partial(self.change, seed) for seed in range(4)))
        self.assertEqual([], history_replay.differences(self.engine))

    def test_a_history_that_is_written_after_the_change_is_found_wrong(self) -> None:
        """The control: record each change in a transaction of its own. The first one is recorded after the second."""
        made, recorded = Signal(), Signal()
        database = hooks.database_of(self.engine)
        record = change_log.record
        kept: list[Any] = []

        def keep(_connection: Any, *rest: Any) -> None:
            kept.append(rest)

        def write_all() -> None:
            def work(connection: sa.Connection) -> None:
                change_log.serialize(connection)
                for rest in kept:
                    record(connection, *rest)

            database.write(work)

        def first() -> None:
            self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(1)})
            made.set()
            recorded.wait()
            write_all()

        def second() -> None:
            made.wait()
            self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(2)})
            write_all()
            recorded.set()

        self.patch(change_log, "record", keep)
        self.engine.close()
        race(first, second)
        # Each of the two entries begins with other values than it should, and the last one ends with other values than
        # the stored ones.
        self.assertEqual(3, len(history_replay.differences(self.engine)))
