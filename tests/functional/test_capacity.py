# SPDX-License-Identifier: Apache-2.0
"""Capacity: providers, inventories, and claims that take capacity together with quota."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fixtures import FakeLogger

from cyborg_quota import ANY, Claim, Inventory, exceptions
from cyborg_quota.capacity import selection
from cyborg_quota.types.capacity import CapacityDrift
from tests import base, clouds
from tests.base import ADMIN


class PluggedSelection(selection.BestFit):
    """A plug-in, of which the server does not know how it chooses."""

    def rank(self, candidate: Any, amounts: Any) -> int:
        return super().rank(candidate, amounts)


class CapacityTestCase(base.LedgerTestCase):
    """With claims enabled, and the provider n1 with 8 gpu and 4 fpga."""

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n1", gpu=8, fpga=4)

    def set(self, name: str, **changes: Inventory) -> None:
        self.capacity.set_inventories(ADMIN, name, changes)

    def used(self, name: str = "n1", resource: str = "gpu") -> int:
        return {record.resource: record.used for record in self.capacity.list_inventories(ADMIN, name)}[resource]

    def provider_of(self, consumer: str) -> str | None:
        rows = self.engine.get_reservations(self.context, consumer=consumer)
        (provider,) = {row.provider for row in rows if row.ended_at is None}
        return provider

    def claim(self, amount: int = 1, provider: str | None = "n1", consumer: str | None = None) -> list[str]:
        return self.quotas.reserve(self.context, {"gpu": amount}, consumer=consumer, provider=provider)


class TestClaims(CapacityTestCase):
    def test_refused_claims_charge_nothing(self) -> None:
        self.set("n1", gpu=Inventory(20, min_unit=5, max_unit=1000, step_size=10))
        self.add_provider("empty")
        for provider, amount, rule in (
            ("n1", 4, "min_unit is 5"),
            ("n1", 6, "step_size is 10"),
            ("n1", 1010, "max_unit is 1000"),
            ("n1", 30, "capacity"),
            ("empty", 5, "no inventory"),
        ):
            error = self.assertRaises(exceptions.OverCapacity, self.claim, amount, provider)
            (over,) = error.overs
            self.assertEqual((provider, "gpu", amount), (over.provider, over.resource, over.requested))
            self.assertIn(rule, str(error))
        self.assertRaises(exceptions.ProviderNotFound, self.claim, 5, "n9")
        self.assertRaises(exceptions.InvalidName, self.claim, 5, "")
        for amount in (5, 10, 5):
            self.claim(amount)
        self.assertEqual(((0, 20), 20), (self.figures(), self.used()))
        self.assertRaises(exceptions.OverCapacity, self.claim, 5)

    def test_all_or_nothing_over_resources_and_claims(self) -> None:
        """The quota is reported first. Also if the provider is in a pod."""
        claims = [Claim(name, {"gpu": amount}, provider="n1") for name, amount in (("a", 1), ("b", 3), ("c", 5))]
        for pod in (None, "east"):
            if pod is not None:
                self.engine.pods.add(ADMIN, pod)
                self.capacity.set_provider(ADMIN, "n1", pod=pod)
            self.limits.own[None, "gpu"] = 8
            self.assertRaises(exceptions.OverQuota, self.quotas.reserve_many, self.context, claims)
            for provider in ("n1", ANY):
                self.assertRaises(exceptions.OverQuota, self.claim, 9, provider)
            self.limits.own[None, "gpu"] = 100
            error = self.assertRaises(exceptions.OverCapacity, self.quotas.reserve_many, self.context, claims)
            self.assertEqual([1, 3, 5], [over.requested for over in error.overs])
            fpga = {"gpu": 8, "fpga": 5}
            self.assertRaises(exceptions.OverCapacity, self.quotas.reserve, self.context, fpga, provider="n1")
            self.assertEqual(((0, 0), 0), (self.figures(), self.used()), pod)
        claims = [*claims[:2], Claim("c", {"gpu": 4, "fpga": 4}, provider="n1"), Claim("d", {"gpu": 9})]
        self.quotas.reserve_many(self.context, claims)
        self.assertEqual(((0, 17), 8, 4), (self.figures(), self.used(), self.used(resource="fpga")))

    def test_a_user_does_not_see_the_use_of_others(self) -> None:
        self.engine.reserve(base.Context("other"), {"gpu": 7}, provider="n1")
        error = self.assertRaises(exceptions.OverCapacity, self.claim, 2)
        self.assertEqual((None, None), (error.overs[0].capacity, error.overs[0].used))
        self.assertNotIn("7", str(error))
        reserve = self.quotas.reserve
        error = self.assertRaises(exceptions.OverCapacity, reserve, ADMIN, {"gpu": 2}, project_id="p1", provider="n1")
        self.assertEqual((8, 7), (error.overs[0].capacity, error.overs[0].used))
        self.assertEqual([], [row for row in self.engine.get_reservations(self.context) if row.project_id != "p1"])
        self.assertRaises(exceptions.NotAuthorized, self.engine.get_reservations, self.context, "other")

    def test_a_repeat(self) -> None:
        self.add_provider("n2", gpu=8)
        first = self.claim(8, ANY, "c")
        taken = str(self.provider_of("c"))
        (other,) = [one for one in self.capacity.list_providers(ADMIN) if one.name != taken]
        self.claim(8, other.uuid)  # from here on nothing fits
        for provider in (ANY, taken, None):
            self.assertEqual(first, self.claim(8, provider, "c"))
        self.claim(1, None, "quota only")
        for provider in (ANY, "n1"):
            self.assertRaises(exceptions.ReservationConflict, self.claim, 1, provider, "quota only")
        self.make_overdue(*first)  # the only capacity is that of the consumer's own overdue reservation
        second = self.claim(8, ANY, "c")
        self.assertEqual(["expired", "reserved"], self.states(*first, *second))

    def test_adopt(self) -> None:
        """C2: it may exceed the capacity and ignores the units."""
        self.set("n1", gpu=Inventory(8, min_unit=4))
        self.add_provider("empty")
        adopt = self.quotas.adopt
        log = self.useFixture(FakeLogger())
        adopt(ADMIN, [Claim("a", {"gpu": 3}, provider="n1"), Claim("b", {"gpu": 7}, provider="n1")], "p1")
        self.assertIn("Adopted claims exceed the capacity of provider n1: 10 of gpu in use, capacity 8.", log.output)
        adopt(ADMIN, [Claim("a", {"gpu": 3}, provider="n1")], "p1")
        self.assertEqual(((10, 0), 10), (self.figures(), self.used()))
        for provider, error in ((ANY, exceptions.InvalidClaim), ("empty", exceptions.OverCapacity)):
            self.assertRaises(error, adopt, ADMIN, [Claim("c", {"gpu": 1}, provider=provider)], "p1")
        self.quotas.release(ADMIN, project_id="p1", consumer="b")
        self.assertEqual(3, self.used())

    def test_a_lost_inventory(self) -> None:
        """The audit reports a deleted inventory; heal cannot restore its amounts."""
        self.claim(3)
        negative = "UPDATE inventories SET used = -1"
        self.assertRaises((sa.exc.IntegrityError, sa.exc.OperationalError), self.execute, negative)
        self.execute("DELETE FROM inventories WHERE resource = 'gpu'")
        self.assertEqual([CapacityDrift("n1", "gpu", None, 3)], self.engine.audit(ADMIN))
        self.assertEqual([], self.engine.heal(ADMIN))

    def test_a_release_is_never_refused(self) -> None:
        """I6, also where the counter has drifted or the inventory is gone."""
        uuids = [self.claim(2)[0] for _ in range(3)]
        self.execute("UPDATE inventories SET used = 3, free = 5 WHERE resource = 'gpu'")
        for uuid_ in uuids[:2]:
            self.engine.release(self.context, [uuid_])
        self.assertEqual(0, self.used())
        self.execute("DELETE FROM inventories")
        self.quotas.release(self.context, uuids[2:])

    def statements(self, call: Callable[[], object]) -> list[str]:
        with clouds.captured() as statements:
            call()
        return [text for text, _ in statements if "PREPARE" not in text]

    def test_without_a_provider_no_statement_is_added(self) -> None:
        """Neither a reserve nor what settles it touches the tables of capacity."""
        self.engine.reserve(self.context, {"gpu": 1})

        def attach() -> None:
            self.engine.commit(self.context, self.engine.reserve(self.context, {"gpu": 1}, consumer="c"))
            self.engine.release(self.context, consumer="c")
            self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1, "fpga": 1}))
            self.engine.expire(ADMIN)

        texts = self.statements(attach)
        self.assertGreater(len(texts), 3)
        self.assertEqual([], [text for text in texts if "inventor" in text or "resource_providers" in text])

    def test_a_claim_is_one_statement(self) -> None:
        """On a server: a claim with a given provider, and its commit. ANY needs a query before it."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has no round trips")
        self.set("n1", gpu=Inventory(80), fpga=Inventory(40))
        for chosen, deltas, provider, expected in (
            (selection.BestFit(), {"gpu": 1}, "n1", 2),
            (selection.BestFit(), {"gpu": 1}, ANY, 3),
            (PluggedSelection(), {"gpu": 1}, ANY, 3),
            (selection.BestFit(), {"gpu": 1, "fpga": 1}, ANY, 3),
        ):
            engine = self.make_engine(selection=chosen)
            reserve = functools.partial(engine.reserve, self.context, deltas, provider=provider)
            for _ in range(2):
                texts = self.statements(lambda: engine.commit(self.context, reserve()))  # noqa: B023
            self.assertEqual(expected, len(texts), texts)
        self.assert_invariants()

    def test_ids_are_read_again_after_a_removal(self) -> None:
        """A provider that was removed, and added again, has other ids."""
        other = self.make_engine()
        self.engine.rollback(self.context, self.claim(1))
        other.capacity.remove_provider(ADMIN, "n1")
        self.assertRaises(exceptions.ProviderNotFound, self.claim, 1)
        self.add_provider("n2", gpu=8)
        self.add_provider("n1", gpu=8)
        self.claim(2)
        other.capacity.remove_inventory(ADMIN, "n2", "gpu")
        self.assertRaises(exceptions.OverCapacity, self.claim, 1, "n2")
        self.assert_invariants()
