# SPDX-License-Identifier: Apache-2.0
"""What is used elsewhere: claims get only what is left, and every change of an inventory keeps it."""

from __future__ import annotations

import functools

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.capacity.imports.changes import CapacityImporter, WantedProvider
from tests import base, fixtures
from tests.base import ADMIN


class UsedElsewhereTest(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n1", gpu=8)

    def figures_of(self, provider: str = "n1") -> tuple[int, int, int]:
        (record,) = self.capacity.list_inventories(ADMIN, provider)
        return record.used, record.used_elsewhere, record.free

    def claim(self, amount: int, provider: str = "n1", consumer: str | None = None, group: str | None = None) -> None:
        self.quotas.reserve(self.context, {"gpu": amount}, consumer=consumer, group=group, provider=provider)

    def test_claims_get_what_is_left(self) -> None:
        self.claim(2, consumer="a")
        self.capacity.set_inventories(ADMIN, "n1", {}, used_elsewhere={"gpu": 5, "fpga": 3})
        self.assertEqual((2, 5, 1), self.figures_of())
        for provider in ("n1", ANY):
            self.assertRaises(exceptions.OverCapacity, self.claim, 2, provider)
        admins = functools.partial(self.assertRaises, exceptions.OverCapacity)
        error = admins(self.quotas.reserve, ADMIN, {"gpu": 2}, project_id="p1", provider="n1")
        self.assertIn("capacity 8, used 2, used elsewhere 5", str(error))
        error = admins(self.quotas.resize, ADMIN, {"gpu": 6}, "p1", consumer="a")
        self.assertEqual([(2, 5)], [(over.used, over.used_elsewhere) for over in error.overs])
        self.assertIn("used 2, used elsewhere 5: the growth by 4 exceeds the capacity", str(error))
        self.claim(1, ANY)
        self.quotas.release(self.context, consumer="a")
        self.assertEqual((1, 5, 2), self.figures_of())
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(5)})
        self.assertEqual((1, 5, -1), self.figures_of())
        self.assertRaises(exceptions.OverCapacity, self.claim, 1)

    def test_drift(self) -> None:
        """A counter below the claim that ends becomes 0, and only the rest of the capacity free."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 2}, provider="n1")
        self.capacity.set_inventories(ADMIN, "n1", {}, used_elsewhere={"gpu": 5})
        self.assertEqual([], self.engine.audit(ADMIN))
        self.execute("UPDATE inventories SET used = 3, free = 5")
        self.assertEqual(1, len(self.engine.audit(ADMIN)))
        self.engine.heal(ADMIN)
        self.assertEqual((2, 5, 1), self.figures_of())
        self.execute("UPDATE inventories SET used = 1, free = 2")
        self.engine.rollback(self.context, [uuid])
        self.assertEqual(((0, 5, 3), []), (self.figures_of(), self.engine.audit(ADMIN)))
        # A claim that fits by the counters is refused by the column: the refusal says what repairs it.
        self.execute("UPDATE inventories SET free = 0")
        error = self.assertRaises(exceptions.OverCapacity, self.engine.reserve, self.context, {"gpu": 1}, provider="n1")
        self.assertIn("run `heal`", str(error))
        self.engine.heal(ADMIN)
        self.claim(1)

    def test_wrong_amounts(self) -> None:
        change, invalid = self.capacity.set_inventories, exceptions.InvalidRequest
        for amount in (-1, True, "1", 2**70, 10**5000):
            self.assertRaises(invalid, change, ADMIN, "n1", {}, used_elsewhere={"gpu": amount})
        for wrong in (None, 5, "gpu"):
            self.assertRaises(invalid, change, ADMIN, "n1", {}, used_elsewhere=wrong)
            self.assertRaises(invalid, self.capacity.require_pods, ADMIN, wrong)
        self.assertRaises(exceptions.ProviderNotFound, change, ADMIN, "n9", {}, used_elsewhere={"gpu": 1})

    def test_consumers_that_are_ours(self) -> None:
        """The source's consumer is a consumer or a group here; only what it uses beyond its claim is elsewhere."""
        self.claim(2, consumer="arq1", group="server1")
        self.claim(1, consumer="server2")
        used = {"server1": 3, "server2": 1, "other": 1, "late": 1, "early": 1, "shrunk": 2}
        self.claim(1, consumer="arq3", group="early")
        self.claim(2, consumer="shrunk")

        def read() -> list[WantedProvider]:
            self.quotas.release(self.context, consumer="arq3")  # the source was read before that
            self.quotas.resize(self.context, {"gpu": 1}, consumer="shrunk")
            return [
                WantedProvider("n1", used={"gpu": used}, covers=frozenset({"gpu"}), inventories={"gpu": Inventory(8)})
            ]

        settle = functools.partial(self.claim, 1, consumer="arq4", group="late")  # Nova allocates before it binds
        importer = CapacityImporter(self.capacity, ADMIN, ["gpu"], settle)
        self.assertEqual([("n1", 0, 2)], [(one.provider, one.before, one.after) for one in importer.run(read)])
        self.assertEqual((5, 2, 1), self.figures_of())
        self.assert_invariants()
