# SPDX-License-Identifier: Apache-2.0
"""Claims with ANY: the provider that is chosen, and the next one after a lost race."""

from __future__ import annotations

import functools
import random
import threading

from cyborg_quota import ANY, Claim, Inventory, exceptions
from cyborg_quota.capacity import selection
from cyborg_quota.capacity.claims import CapacityEnforcer
from tests import base, clouds, fixtures, hooks
from tests.functional.test_capacity import CapacityTestCase, PluggedSelection


class TestAny(CapacityTestCase):
    def test_the_whole_claim_is_at_one_provider(self) -> None:
        self.add_provider("n2", gpu=2, fpga=8)
        self.add_provider("n3", gpu=1)
        reserve = functools.partial(self.quotas.reserve, self.context, provider=ANY, consumer="c")
        error = self.assertRaises(exceptions.OverCapacity, reserve, {"gpu": 4, "fpga": 5})
        self.assertEqual([None, None], [over.provider for over in error.overs])
        reserve({"gpu": 2, "fpga": 5})
        self.assertEqual("n2", self.provider_of("c"))
        self.set("n1", gpu=Inventory(8, min_unit=4))
        self.claim(1, ANY)
        self.assertRaises(exceptions.OverCapacity, self.claim, 1, ANY)
        # The named claims of a batch come first.
        claims = [Claim("a", {"gpu": 4}, provider=ANY), Claim("b", {"gpu": 4}, provider="n1")]
        self.quotas.reserve_many(self.context, claims)
        self.assertEqual(8, self.used())

    def test_a_read_that_is_repeated_chooses_anew(self) -> None:
        """If the read is retried after a lost connection, its first choice is discarded."""
        database = hooks.database_of(self.engine)
        read = database.read
        self.patch(database, "read", lambda work: (read(work), read(work))[1])
        self.claim(8, ANY)
        self.assertEqual(8, self.used())

    def test_a_lost_race_costs_one_more_attempt(self) -> None:
        self.engine = self.make_engine(selection=PluggedSelection())
        self.add_provider("n2", gpu=9)
        for provider in ("n1", ANY):
            self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=provider))
        take = functools.partial(self.make_engine().reserve, base.Context("other"), {"gpu": 8}, provider="n1")
        choices = self.useFixture(hooks.Meanwhile(CapacityEnforcer, "prepare", take, after=True))
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 8}, provider=ANY, consumer="c")
        self.assertEqual(("n2", 3), (self.provider_of("c"), choices.count), "one is that of the other call")
        if self.backend == "mariadb":
            counts = [sum(text.startswith(begin) for text in sent) for begin in ("SELECT inventory_0", "EXECUTE")]
            self.assertEqual([2, 2], counts, sent)

    def test_selections(self) -> None:
        self.add_provider("n2", gpu=6)
        self.add_provider("n3", gpu=7)
        for chosen, expected in (
            (selection.BestFit(), ["n2", "n2", "n3", "n3", "n1"]),
            (selection.Spread(), ["n1", "n3", "n2", "n1", "n3"]),
            (selection.First(), ["n1", "n1", "n2", "n2", "n3"]),
        ):
            engine = self.make_engine(selection=chosen)
            for number in range(5):
                engine.reserve(self.context, {"gpu": 3}, provider=ANY, consumer=f"c{number}", group="g")
            self.assertEqual(expected, [self.provider_of(f"c{number}") for number in range(5)])
            engine.release(self.context, group="g")
        self.assert_invariants()

    def test_equally_good_providers_are_chosen_at_random(self) -> None:
        """Also by the client, which reads only a few of them: for claims of two resources, or in a cluster."""
        names = [f"n{number}" for number in range(2, 31)]
        clouds.add_inventories(self.sql, [(name, *own, own[1]) for name in names for own in (("gpu", 8), ("fpga", 2))])
        for deltas in ({"gpu": 8}, {"gpu": 8, "fpga": 1}):
            chosen = set()
            for _ in range(30):
                self.engine.reserve(self.context, deltas, provider=ANY, consumer="c")
                chosen.add(self.provider_of("c"))
                self.engine.release(self.context, consumer="c")
            # 9 are read in the order of their ids. (PostgreSQL's function starts at a random id from 1 on, and the ids
            # of this database may begin far above.)
            least = 1 if self.backend == "postgresql" and len(deltas) == 1 else 10
            self.assertGreater(len(chosen), least, deltas)

    def test_a_batch_uses_several_providers(self) -> None:
        """More claims than are read as candidates at once."""
        clouds.add_inventories(self.sql, [(f"n{number}", "gpu", 8, 8) for number in range(2, 101)])
        claims = [Claim(f"c{number}", {"gpu": 8}, provider=ANY) for number in range(100)]
        self.quotas.reserve_many(self.context, claims)
        self.assertEqual([("gpu", 8)], self.fetch("SELECT DISTINCT resource, used FROM inventories WHERE used > 0"))
        self.assertRaises(exceptions.OverCapacity, self.claim, 1, ANY)

    def test_until_all_is_full(self) -> None:
        """Claims of 1 to 8 of many nodes: a refusal means that no provider could have taken the claim."""
        nodes = [
            (f"node{number}", "gpu", size, size * (number % 2)) for number, size in enumerate(30 * (1, 1, 4, 8, 8))
        ]
        clouds.add_inventories(self.sql, nodes)
        dice, left, largest = random.Random(5), 8 + sum(free for *_, free in nodes), 8
        while largest:
            amount = dice.randint(1, largest)
            try:
                self.engine.reserve(base.Context(f"p{left % 12}"), {"gpu": amount}, provider=ANY)
            except exceptions.OverCapacity:
                (row,) = self.fetch("SELECT MAX(free) AS free FROM inventories WHERE resource = 'gpu'")
                self.assertLess(row.free, amount)
                largest = amount - 1
            else:
                left -= amount
        self.assertEqual(0, left)
        self.assert_invariants()


class TestLocked(CapacityTestCase):
    """Another session holds the lock of the only provider, n1, which has 8 gpu."""

    scenarios = fixtures.SCENARIOS[1:]

    def test_a_claim_that_fits_only_at_a_locked_provider_waits(self) -> None:
        """It is not refused: a refusal means that no provider could have taken it."""
        is_placed = threading.Event()
        self.useFixture(hooks.Meanwhile(CapacityEnforcer, "prepare", is_placed.set, after=True))
        caller = threading.Thread(target=lambda: self.claim(8, ANY))
        with hooks.row_locks(self.sql).begin() as holder:
            holder.exec_driver_sql("UPDATE inventories SET used = used")
            caller.start()
            self.assertTrue(is_placed.wait(60))
        caller.join(60)
        self.assertEqual(8, self.used())
