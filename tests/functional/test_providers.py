# SPDX-License-Identifier: Apache-2.0
"""Providers and their inventories."""

from __future__ import annotations

import decimal
import functools
import uuid

from fixtures import FakeLogger

from cyborg_quota import ANY, Inventory, exceptions
from tests import fixtures, history_replay
from tests.functional import test_capacity
from tests.functional.test_capacity import ADMIN


class TestProviders(test_capacity.CapacityTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_add_list_show_remove(self) -> None:
        name = "N1 \u00e9"
        given = str(uuid.uuid4())
        self.assertRaises(exceptions.PodNotFound, self.capacity.add_provider, ADMIN, name, pod="east")
        self.engine.pods.add(ADMIN, "east")
        added = self.capacity.add_provider(ADMIN, name, uuid=given.upper(), parent="n1", pod="east", can_host=False)
        self.assertEqual((given, name, 0, "n1", "east", False), (
            added.uuid, added.name, added.generation, added.parent, added.pod, added.can_host,
        ))  # fmt: skip
        self.assertEqual([added, added], [self.capacity.show_provider(ADMIN, key) for key in (given, name)])
        self.assertEqual([name, "n1"], sorted(one.name for one in self.capacity.list_providers(ADMIN)))
        error = self.assertRaises(exceptions.ProviderInUse, self.capacity.remove_provider, ADMIN, "n1")
        self.assertIsNone(error.resource)
        for key in (given, "n1"):
            self.capacity.remove_provider(ADMIN, key)
        self.assertEqual(([], []), (self.capacity.list_providers(ADMIN), self.capacity.list_inventories(ADMIN)))

    def test_a_provider_with_claims_stays_in_its_pod(self) -> None:
        for pod in ("east", "west"):
            self.engine.pods.add(ADMIN, pod)
        self.assertEqual("east", self.capacity.set_provider(ADMIN, "n1", pod="east").pod)
        (uuid,) = self.claim()
        self.assertRaises(exceptions.PodNotFound, self.capacity.set_provider, ADMIN, "n1", pod="north")
        error = self.assertRaises(exceptions.ProviderInUse, self.capacity.set_provider, ADMIN, "n1", pod="west")
        self.assertIn("Provider 'n1' cannot be moved to another pod: it has claims; see `", str(error))
        self.assertEqual("east", self.capacity.set_provider(ADMIN, "n1", pod="east").pod)
        self.quotas.rollback(self.context, [uuid])
        self.assertIsNone(self.capacity.set_provider(ADMIN, "n1", pod=None).pod)

    def test_a_provider_becomes_a_shared_pool(self) -> None:
        self.claim()
        generation = self.capacity.show_provider(ADMIN, "n1").generation
        pool = self.capacity.set_provider(ADMIN, "n1", can_host=False, reason="leased")
        self.assertEqual((False, generation + 1), (pool.can_host, pool.generation))
        self.assertRaises(exceptions.OverCapacity, self.quotas.reserve, self.context, {"gpu": 1}, provider=ANY)
        self.claim()
        self.assertEqual("leased", self.engine.limits.history(ADMIN, provider="n1", limit=1)[0].reason)
        self.assertTrue(self.capacity.set_provider(ADMIN, "n1", can_host=True).can_host)
        self.quotas.reserve(self.context, {"gpu": 1}, provider=ANY)
        self.assertRaises(exceptions.ProviderNotFound, self.capacity.set_provider, ADMIN, "n9", can_host=True)
        self.assertEqual([], history_replay.differences(self.engine))

    def test_equal_names_and_uuids_are_refused(self) -> None:
        add = functools.partial(self.capacity.add_provider, ADMIN)
        shown, child = self.capacity.show_provider(ADMIN, "n1"), add("child", parent="n1")
        self.assertEqual(child, add("child", uuid=child.uuid, parent=shown.uuid), "the same values: a repeat")
        for error, name, named in (
            (exceptions.ProviderExists, "n1", {}),
            (exceptions.ProviderExists, "n2", {"uuid": shown.uuid}),
            (exceptions.ProviderExists, shown.uuid, {}),
            (exceptions.ProviderExists, "child", {"uuid": child.uuid}),
            *((exceptions.InvalidName, name, {}) for name in ("any", "ANY", " x", "")),
            (exceptions.InvalidName, "n2", {"uuid": "x"}),
            (exceptions.ProviderNotFound, "n2", {"parent": "n9"}),
        ):
            self.assertRaises(error, functools.partial(add, name, **named))
        add("N1")  # names are compared by bytes
        self.assertEqual({"n1", "child", "N1"}, {one.name for one in self.capacity.list_providers(ADMIN)})


class TestInventories(test_capacity.CapacityTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_stale_writer_changes_nothing(self) -> None:
        (fpga, gpu) = self.capacity.list_inventories(ADMIN, "n1")
        self.claim(2)
        self.assertEqual(gpu.generation, self.capacity.list_inventories(ADMIN)[0].generation, "a claim changed it")
        stale = {"generation": gpu.generation}
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(9)}, **stale)
        wanted = {"gpu": Inventory(5), "fpga": Inventory(5)}
        set_stale = functools.partial(self.capacity.set_inventories, ADMIN, "n1", wanted, **stale)
        error = self.assertRaises(exceptions.ProviderConflict, set_stale)
        self.assertEqual((gpu.generation, gpu.generation + 1), (error.expected, error.generation))
        self.assertEqual([fpga.total, 9], [record.total for record in self.capacity.list_inventories(ADMIN, "n1")])

    def test_values_are_stored_exactly(self) -> None:
        values = {"total": 10, "reserved": 3, "min_unit": 2, "max_unit": 6, "step_size": 2}
        wanted = Inventory(**values, allocation_ratio=decimal.Decimal("1.1001"))
        (record,) = self.capacity.set_inventories(ADMIN, "n1", {"gpu.A100": wanted})
        values |= {"capacity": 7, "used": 0, "free": 7}
        self.assertEqual(values, {name: getattr(record, name) for name in values})
        self.assertEqual("1.1001", str(record.allocation_ratio))

    def test_bad_input_writes_nothing(self) -> None:
        before, one = self.capacity.list_inventories(ADMIN), {"gpu": Inventory(1)}
        for name, changes, generation, error in (
            ("n1", {**one, "nope": Inventory(1)}, None, exceptions.UnknownResource),
            ("n1", {**one, "fpga": Inventory(-1)}, None, exceptions.InvalidInventory),
            ("n1", {"gpu": 5}, None, exceptions.InvalidInventory),
            ("n1", {}, None, exceptions.InvalidRequest),
            ("n9", one, None, exceptions.ProviderNotFound),
            *(("n1", one, wrong, exceptions.InvalidRequest) for wrong in (-1, True, "1", 2**31)),
        ):
            self.assertRaises(error, self.capacity.set_inventories, ADMIN, name, changes, generation=generation)
        self.assertEqual(before, self.capacity.list_inventories(ADMIN))

    def test_lowered_below_the_use(self) -> None:
        """C4: allowed; claims are refused until the use is below the capacity again."""
        uuids = [self.claim(2)[0] for _ in range(3)]
        log = self.useFixture(FakeLogger())
        self.set("n1", gpu=Inventory(4))
        self.assertIn("Provider n1 has 6 of gpu in use, more than its new capacity 4", log.output)
        self.assertEqual(-2, self.capacity.list_inventories(ADMIN, "n1")[1].free)
        for _ in range(2):
            self.assertRaises(exceptions.OverCapacity, self.claim, 1)
            self.quotas.rollback(self.context, [uuids.pop()])
        self.claim(2)

    def test_what_has_claims_is_not_removed(self) -> None:
        """C5."""
        uuids = self.claim(3)
        for call in (
            lambda: self.capacity.remove_provider(ADMIN, "n1"),
            lambda: self.capacity.remove_inventory(ADMIN, "n1", "gpu"),
        ):
            error = self.assertRaises(exceptions.ProviderInUse, call)
            self.assertEqual(("n1", "gpu"), (error.provider, error.resource))
        self.assertEqual(2, len(self.capacity.list_inventories(ADMIN, "n1")))
        self.capacity.remove_inventory(ADMIN, "n1", "fpga")
        self.quotas.release(self.context, uuids)
        self.capacity.remove_inventory(ADMIN, "n1", "gpu")
        self.capacity.remove_inventory(ADMIN, "n1", "gpu")  # a repeat
        self.capacity.remove_provider(ADMIN, "n1")
        (row,) = self.engine.get_reservations(self.context)
        self.assertIsNone(row.provider)
