# SPDX-License-Identifier: Apache-2.0
"""The specification "Resource Providers - Base Models": compute nodes, and a shared storage pool.

The figures are those of the document: a node with two quad-core processors, whose 8 cores are overcommitted by 16 and
claimed by up to 8; and a pool whose disk space is claimed in 5 GB or in steps of 10 GB, up to 1 TB.
"""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Mapping
from typing import Any

import cyborg_quota
from cyborg_quota import ANY, Claim, Inventory, QuotaEngine, Reservation, attachment, exceptions
from cyborg_quota.capacity.claims import CapacityEnforcer
from tests import base, fixtures, hooks, on_sqlite
from tests.base import ADMIN

CPU = Inventory(8, max_unit=8, allocation_ratio=decimal.Decimal(16))
DISK = Inventory(2000, min_unit=5, max_unit=1000, step_size=10)
BOTH = {"VCPU": "node-1", "DISK_GB": "pool-1"}
SERVER = {"VCPU": 4, "DISK_GB": 100}


class ProviderTestCase(base.LedgerTestCase):
    """Two nodes with cores, and a shared pool with disk space."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("node-1", "node-2"):
            self.add_provider(name)
            self.capacity.set_inventories(ADMIN, name, {"VCPU": CPU})
        self.add_provider("pool-1", can_host=False)
        self.capacity.set_inventories(ADMIN, "pool-1", {"DISK_GB": DISK})

    def make_engine(self, **changes: Any) -> QuotaEngine:
        return super().make_engine(resources=("VCPU", "DISK_GB", "IPV4"), **changes)

    def claim(self, consumer: str | None, provider: Any, deltas: Mapping[str, int] = SERVER, **more: Any) -> list[str]:
        context = more.pop("context", self.context)
        return self.quotas.reserve(context, deltas, None, "p1", consumer=consumer, provider=provider, **more)

    def rows(self, consumer: str) -> list[Reservation]:
        """What a consumer holds."""
        return [row for row in self.engine.get_reservations(self.context, consumer=consumer) if row.ended_at is None]

    def places(self, consumer: str) -> dict[str, str | None]:
        """The provider of each resource that a consumer holds."""
        return {row.resource: row.provider for row in self.rows(consumer)}

    def used(self) -> dict[tuple[str, str], int]:
        return {(one.provider, one.resource): one.used for one in self.capacity.list_inventories(ADMIN) if one.used}

    def refused(self, deltas: Mapping[str, int] = SERVER, provider: Any = ANY, **more: Any) -> exceptions.OverCapacity:
        return self.assertRaises(exceptions.OverCapacity, self.claim, None, provider, deltas, **more)

    def assert_exact(self, bundle: Mapping[str, int]) -> int:
        """H1 for bundles: that many are granted in one call, and one more is refused. Returns their number."""
        number = self.how_many(bundle)
        claims = [Claim(f"b{one}", bundle, provider=ANY) for one in range(number + 1)]
        self.assertRaises(exceptions.OverCapacity, self.engine.reserve_many, self.context, claims)
        if number:
            uuids = self.engine.reserve_many(self.context, claims[:number])
            self.assertEqual(0, self.how_many(bundle))
            self.engine.release(self.context, uuids)
        return number

    def how_many(self, bundle: Mapping[str, int] = SERVER) -> int:
        return self.engine.how_many(ADMIN, bundle, "p1", provider=ANY).number


class TestDocument(ProviderTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_its_names_and_figures(self) -> None:
        self.claim("server", BOTH)
        for name, found in (
            ("ResourceProvider", self.capacity.list_providers(ADMIN)),
            ("InventoryItem", self.capacity.list_inventories(ADMIN)),
            ("AllocationItem", self.capacity.list_allocations(ADMIN)),
        ):
            self.assertIn(name, cyborg_quota.__all__)
            self.assertIsInstance(found[0], getattr(cyborg_quota, name))
        self.claim("cores", "node-1", {"VCPU": 8})
        self.assertEqual(128 - 4 - 8, self.engine.headroom(ADMIN, "p1", provider="node-1")["VCPU"].free_total)
        for provider, deltas in (("node-1", {"VCPU": 9}), ("pool-1", {"DISK_GB": 6}), ("pool-1", {"DISK_GB": 1010})):
            self.refused(deltas, provider)


class TestSeveralProviders(ProviderTestCase):
    """A server takes its cores from a node, and its disk space from the shared pool, in one claim."""

    def test_one_claim(self) -> None:
        first = self.claim("server", BOTH)
        held = {("node-1", "VCPU"): 4, ("pool-1", "DISK_GB"): 100}
        self.assertEqual((BOTH, held), (self.places("server"), self.used()))
        self.assertEqual([first, first], [self.claim("server", provider) for provider in (BOTH, ANY)], "repeats")
        for provider in ({"VCPU": "node-2", "DISK_GB": "pool-1"}, "node-1"):
            self.assertRaises(exceptions.ReservationConflict, self.claim, "server", provider)
        self.quotas.commit(self.context, first)
        self.quotas.resize(self.context, {"VCPU": 8, "DISK_GB": 20}, consumer="server")
        self.assertEqual({("node-1", "VCPU"): 8, ("pool-1", "DISK_GB"): 20}, self.used())
        grow = {"VCPU": 8, "DISK_GB": 1010}
        self.assertRaises(exceptions.OverCapacity, self.quotas.resize, self.context, grow, consumer="server")
        self.quotas.transfer(ADMIN, "p2", "p1", consumer="server")
        self.assertEqual({("node-1", "VCPU"): 8, ("pool-1", "DISK_GB"): 20}, self.used())
        self.assertEqual([], self.engine.audit(ADMIN))
        self.quotas.release(base.Context("p2"), consumer="server")
        self.assertEqual({}, self.used())

    def test_all_or_nothing(self) -> None:
        """Each refusal names the provider and the resource; nothing is taken anywhere."""
        for deltas, resource in (({"VCPU": 9, "DISK_GB": 100}, "VCPU"), ({"VCPU": 4, "DISK_GB": 105}, "DISK_GB")):
            (over,) = self.refused(deltas, BOTH).overs
            self.assertEqual((BOTH[resource], resource), (over.provider, over.resource))
        (over,) = self.refused(SERVER, {"VCPU": "node-1", "DISK_GB": "node-2"}).overs
        self.assertEqual(("node-2", "the provider has no inventory of DISK_GB"), (over.provider, over.rule))
        self.limits.own["p1", "DISK_GB"] = 99
        self.assertRaises(exceptions.OverQuota, self.claim, None, BOTH)
        self.assertEqual({}, self.used())

    @on_sqlite
    def test_bad_input(self) -> None:
        for provider, text in (
            ({**BOTH, "IPV4": "pool-1"}, "IPV4"),
            ({"VCPU": "node-1"}, "DISK_GB"),
            ({}, "DISK_GB"),
            ({**BOTH, "VCPU": ANY}, "ANY"),
        ):
            error = self.assertRaises(exceptions.InvalidClaim, self.claim, None, provider)
            self.assertIn(text, str(error))
        self.assertRaises(exceptions.InvalidName, self.claim, None, {**BOTH, "VCPU": 1})
        error = self.assertRaises(exceptions.ProviderNotFound, self.claim, None, {**BOTH, "DISK_GB": "pool-9"})
        self.assertEqual("pool-9", error.provider)
        self.assertRaises(exceptions.InvalidClaim, self.claim, None, BOTH, pod="pod1")
        self.assertEqual([], self.engine.get_reservations(self.context))

    def test_expiry_adoption_and_healing(self) -> None:
        self.make_overdue(*self.claim("server", BOTH))
        self.assertEqual(2, self.quotas.expire(ADMIN))
        self.assertEqual({}, self.used())
        self.quotas.adopt(ADMIN, [Claim("server", SERVER, provider=BOTH)], "p1")
        self.execute("UPDATE inventories SET used = used + 1, free = free - 1")
        self.assertEqual({("node-1", 5), ("node-2", 1), ("pool-1", 101)}, self.drifts("recorded"))
        self.engine.heal(ADMIN)
        self.assertEqual({("node-1", "VCPU"): 4, ("pool-1", "DISK_GB"): 100}, self.used())

    def drifts(self, field: str) -> set[tuple[str, int]]:
        return {(one.provider, getattr(one, field)) for one in self.engine.audit(ADMIN)}

    def test_in_one_round_trip(self) -> None:
        """As a claim at one provider: the same number of statements."""
        counts = []
        for provider, deltas in (("node-1", {"VCPU": 4}), (BOTH, SERVER)):
            for _ in range(3):
                self.engine.reserve(self.context, deltas, provider=provider)
            with hooks.recorded_statements(self.engine) as sent:
                self.engine.reserve(self.context, deltas, provider=provider)
            counts.append(len(sent))
        self.assertLessEqual(counts[1] - counts[0], 3 if self.backend == "sqlite" else 0, counts)

    def test_the_view_has_the_columns_of_the_document(self) -> None:
        self.claim("server", BOTH)
        columns = "id, resource_provider_id, consumer_id, resource_class, used"
        rows = self.fetch(f"SELECT {columns} FROM allocations ORDER BY resource_class")
        names = dict(map(tuple, self.fetch("SELECT id, name FROM resource_providers")))
        self.assertEqual(
            [("pool-1", "server", "DISK_GB", 100), ("node-1", "server", "VCPU", 4)],
            [(names[row[1]], *row[2:]) for row in rows],
        )
        self.assertNotEqual(rows[0].id, rows[1].id)


class TestAssociation(ProviderTestCase):
    """A pool that serves nodes: with ANY, a claim takes from it what the node has no inventory of."""

    def setUp(self) -> None:
        super().setUp()
        self.capacity.set_served(ADMIN, "pool-1", add=["node-1", "node-2"])

    def test_any_takes_from_the_pool_what_the_node_lacks(self) -> None:
        uuids = self.claim("server", ANY)
        found = self.places("server")
        self.assertIn(found.pop("VCPU"), ("node-1", "node-2"))
        self.assertEqual({"DISK_GB": "pool-1"}, found)
        self.assertEqual(uuids, self.claim("server", ANY), "a repeat")
        # The space alone, and cores alone.
        self.claim("volume", ANY, {"DISK_GB": 5})
        self.claim("cores", ANY, {"VCPU": 8})
        self.assertEqual({"DISK_GB": "pool-1"}, self.places("volume"))
        # A node with an inventory of its own takes nothing from the pool.
        self.capacity.set_inventories(ADMIN, "node-2", {"DISK_GB": Inventory(100)})
        self.claim("own", ANY)
        self.assertEqual({"VCPU": "node-2", "DISK_GB": "node-2"}, self.places("own"))
        self.claim("other", ANY)
        self.assertEqual({"VCPU": "node-1", "DISK_GB": "pool-1"}, self.places("other"))
        self.refused({"VCPU": 4, "DISK_GB": 100, "IPV4": 1})
        self.assert_invariants()

    @on_sqlite
    def test_members_are_added_and_removed(self) -> None:
        self.assertEqual("pool-1", self.capacity.show_provider(ADMIN, "node-1").served_by)
        self.capacity.set_served(ADMIN, "pool-1", add=["node-1"], remove=["node-2"])
        for _ in range(3):
            self.claim(None, ANY)
        self.assertEqual({("node-1", "VCPU"): 12, ("pool-1", "DISK_GB"): 300}, self.used())
        self.capacity.set_served(ADMIN, "pool-1", remove=["node-1", "node-2"])
        fits = self.engine.headroom(ADMIN, "p1", provider=ANY)["DISK_GB"].fits
        self.assertEqual((0, 0), (fits, self.how_many()))
        self.refused()
        self.refused({"DISK_GB": 5})
        history = [
            entry for entry in self.engine.limits.history(ADMIN, provider="node-1") if "served_by" in str(entry.after)
        ]
        changes = [(entry.before["served_by"], entry.after["served_by"]) for entry in history if entry.before]
        self.assertEqual([("pool-1", None), (None, "pool-1")], changes)

    def test_a_claim_in_a_pod(self) -> None:
        """The pool serves nodes of its own pod."""
        self.engine.pods.add(ADMIN, "pod1")
        in_use = exceptions.ProviderInUse
        self.assertRaises(in_use, self.capacity.set_provider, ADMIN, "pool-1", pod="pod1")
        self.assertRaises(in_use, self.capacity.set_provider, ADMIN, "node-1", pod="pod1")
        self.capacity.set_served(ADMIN, "pool-1", remove=["node-1", "node-2"])
        self.capacity.set_provider(ADMIN, "node-1", pod="pod1")
        self.assertRaises(in_use, self.capacity.set_served, ADMIN, "pool-1", add=["node-1"])
        self.capacity.set_provider(ADMIN, "pool-1", pod="pod1")
        self.capacity.set_served(ADMIN, "pool-1", add=["node-1"])
        self.claim("server", ANY, pod="pod1", context=ADMIN)
        self.assertEqual(BOTH, self.places("server"))
        self.assert_invariants()

    @on_sqlite
    def test_bad_associations(self) -> None:
        capacity, in_use = self.capacity, exceptions.ProviderInUse
        set_served = capacity.set_served
        self.add_provider("pool-2", can_host=False)
        self.engine.pods.add(ADMIN, "north")
        self.add_provider("node-3", pod="north")
        for kind, text, call, provider, how in (
            (in_use, "pool-1 serves it", set_served, "pool-2", {"add": ["node-1"]}),
            (in_use, "a pool does not serve itself", set_served, "pool-2", {"add": ["pool-2"]}),
            (in_use, "it is in pod north, and the pool is in no pod", set_served, "pool-2", {"add": ["node-3"]}),
            (exceptions.InvalidRequest, "", set_served, "node-1", {"add": ["node-2"]}),
            (exceptions.ProviderNotFound, "", set_served, "pool-2", {"add": ["node-9"]}),
            (exceptions.InvalidName, "", set_served, "pool-2", {"add": "node-1"}),
            (in_use, "", capacity.set_provider, "pool-1", {"can_host": True}),
        ):
            self.assertIn(text, str(self.assertRaises(kind, call, ADMIN, provider, **how)))
        capacity.remove_provider(ADMIN, "node-3")
        for can_host in (False, True, False):
            capacity.set_provider(ADMIN, "node-1", can_host=can_host)
        capacity.remove_provider(ADMIN, "node-2")
        for deltas in (SERVER, {"DISK_GB": 5}):
            self.refused(deltas)
        self.assertRaises(exceptions.ProviderInUse, capacity.remove_provider, ADMIN, "pool-1")
        capacity.set_served(ADMIN, "pool-1", remove=["node-1"])
        capacity.remove_provider(ADMIN, "pool-1")
        self.assertEqual([None, None], [one.served_by for one in capacity.list_providers(ADMIN)])
        self.assertEqual(0, len(self.fetch("SELECT * FROM provider_associations")))

    @on_sqlite
    def test_the_refusal_of_a_node_and_its_pool(self) -> None:
        """It names the whole claim, and each text once."""
        error = self.refused({"VCPU": 9, "DISK_GB": 100})
        amounts = "DISK_GB=100, VCPU=9"
        self.assertEqual(1, str(error).count("can take"), str(error))
        self.assertIn(
            f"no single provider can take {amounts}, alone or with the shared pool that serves it", str(error)
        )
        self.assertEqual(["DISK_GB", "VCPU"], [over.resource for over in error.overs])

    def test_the_report_counts_the_pool_once(self) -> None:
        self.claim("server", ANY)
        (disk,) = [one for one in self.capacity.report(ADMIN) if one.resource == "DISK_GB"]
        self.assertEqual((1, 2000, 100, 1900), (disk.providers, disk.capacity, disk.used, disk.free))

    @on_sqlite
    def test_bundles_at_different_nodes(self) -> None:
        """A node with all, one that lacks a resource, and one that lacks two; a second pool."""
        self.add_provider("full", VCPU=8, DISK_GB=250, IPV4=1)
        self.add_provider("disks", VCPU=8, DISK_GB=1000)
        self.capacity.set_served(ADMIN, "pool-1", add=["disks"])
        bundle = {"VCPU": 2, "DISK_GB": 100, "IPV4": 1}
        self.assertEqual(1, self.assert_exact(bundle))
        for addresses in range(1, 9):
            self.capacity.set_inventories(ADMIN, "pool-1", {"IPV4": Inventory(addresses)})
            self.assertEqual(1 + addresses, self.assert_exact(bundle))
        self.capacity.set_inventories(ADMIN, "pool-1", {"IPV4": Inventory(99), "DISK_GB": Inventory(300)})
        self.assertEqual(1 + 4 + 3, self.assert_exact(bundle))
        self.add_provider("pool-2", can_host=False, DISK_GB=200)
        self.add_provider("node-3", VCPU=100, IPV4=100)
        self.capacity.set_served(ADMIN, "pool-2", add=["node-3"])
        self.assertEqual(1 + 4 + 3 + 2, self.assert_exact(bundle))
        self.assert_invariants()

    def test_an_attachment_that_lost_its_reservation(self) -> None:
        """The second attempt names the providers that the first one has chosen."""
        with attachment(self.engine, self.context, SERVER, consumer="server", provider=ANY) as uuids:
            first = self.places("server")
            self.engine.rollback(self.context, uuids)
        self.assertEqual(first, self.places("server"))
        self.assertEqual({"committed"}, {row.state for row in self.rows("server")})

    def test_what_refuses_is_avoided(self) -> None:
        """Another process takes the rest of the pool, or of the node, between the choice and the claim."""
        self.add_provider("pool-2", can_host=False, DISK_GB=100)
        self.add_provider("node-3", VCPU=4)
        self.capacity.set_served(ADMIN, "pool-2", add=["node-3"])
        self.capacity.set_inventories(ADMIN, "pool-1", {"DISK_GB": Inventory(100)})
        other = self.make_engine()
        for number, pool in enumerate(("pool-1", "pool-2")):
            take = lambda pool=pool: other.reserve(self.context, {"DISK_GB": 100}, provider=pool, consumer=pool)  # noqa: E731
            with hooks.Meanwhile(CapacityEnforcer, "prepare", take, after=True):
                self.claim(f"server{number}", ANY)
            self.assertNotEqual(pool, self.places(f"server{number}")["DISK_GB"])
            self.quotas.release(self.context, consumer=pool)
            self.quotas.release(self.context, consumer=f"server{number}")
        self.assertEqual({}, self.used())


class TestRandomPools(ProviderTestCase):
    """Headrooms and reserves agree (H1) for all small clouds of two nodes and a pool."""

    def test_small_clouds(self) -> None:
        self.capacity.set_served(ADMIN, "pool-1", add=["node-1", "node-2"])
        sizes = (None, 1, 3)
        for number, (own, first, second, shared) in enumerate(itertools.product(sizes, sizes, sizes, (1, 2, 5))):
            if self.backend != "sqlite" and number % 9:
                continue
            for name, resource, total in (
                ("node-1", "VCPU", first),
                ("node-2", "VCPU", second),
                ("node-1", "DISK_GB", own),
                ("pool-1", "DISK_GB", shared),
            ):
                if total is None:
                    self.capacity.remove_inventory(ADMIN, name, resource)
                else:
                    self.capacity.set_inventories(ADMIN, name, {resource: Inventory(total)})
            lacking = [
                count or 0 for name, count in (("node-1", first), ("node-2", second)) if own is None or name == "node-2"
            ]
            most = min(own or 0, first or 0) + min(sum(lacking), shared)
            self.assertEqual(most, self.assert_exact({"VCPU": 1, "DISK_GB": 1}))
            fits = self.engine.headroom(ADMIN, "p1", provider=ANY)["DISK_GB"].fits
            self.assertEqual(max(own or 0, shared), fits)
            self.claim("one", ANY, {"DISK_GB": fits})
            self.quotas.release(self.context, consumer="one")
            self.refused({"DISK_GB": fits + 1})
