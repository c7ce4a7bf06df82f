# SPDX-License-Identifier: Apache-2.0
"""A claim with ANY beside locks, lost answers and refusals. (test_capacity.py: what ANY chooses.)"""

from __future__ import annotations

import threading
from typing import Any

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.ledger.capacity_claims import CapacityClaimer
from tests import base, fixtures, hooks

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
WAIT_SECONDS = 60.0


class TestAnywhere(base.LedgerTestCase):
    """n1 with 8 gpu is the best provider, and n2 with 9 is the next one."""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.capacity = self.engine.capacity
        for name, total in (("n1", 8), ("n2", 9)):
            self.capacity.add_provider(ADMIN, name)
            self.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(total)})
        self.engine.rollback(self.context, self.claim(1))

    def claim(self, amount: int, consumer: str | None = None) -> list[str]:
        return self.engine.reserve(self.context, {"gpu": amount}, consumer=consumer, provider=ANY)

    def lock_first(self, holder: sa.Connection) -> None:
        """Lock the inventory of n1."""
        n1 = "(SELECT id FROM resource_providers WHERE name = 'n1')"
        holder.exec_driver_sql(f"UPDATE inventories SET used = used WHERE provider_id = {n1}")

    def used(self) -> list[int]:
        return [record.used for record in self.capacity.list_inventories(ADMIN)]

    def test_a_claim_that_fits_only_at_a_locked_provider_waits(self) -> None:
        """It is not refused: a refusal means that no provider could have taken it."""
        self.capacity.remove_provider(ADMIN, "n2")
        is_placed = threading.Event()
        original = CapacityClaimer.place

        def place(claimer: CapacityClaimer, pending: Any) -> Any:
            placement = original(claimer, pending)
            is_placed.set()
            return placement

        self.useFixture(MonkeyPatch("cyborg_quota.ledger.capacity_claims.CapacityClaimer.place", place))
        granted: list[list[str]] = []
        caller = threading.Thread(target=lambda: granted.append(self.claim(8)))
        with hooks.row_locks(self.sql).begin() as holder:
            self.lock_first(holder)
            caller.start()
            self.assertTrue(is_placed.wait(WAIT_SECONDS))
        caller.join(WAIT_SECONDS)
        self.assertEqual((1, [8]), (len(granted), self.used()))
        self.assert_invariants()

    def test_a_lost_answer(self) -> None:
        """The claim was committed, and is found again, with its provider."""
        for consumer in (None, "c"):
            lost = self.useFixture(hooks.LostCommits(self.engine, self.backend))
            uuids = self.claim(8, consumer)
            self.assertEqual(1, lost.lost)
            self.assertEqual([8, 0], self.used())
            self.assert_invariants()
            self.engine.rollback(self.context, uuids)
            self.assertEqual([0, 0], self.used())

    def test_a_repeated_call(self) -> None:
        uuids = self.claim(2, "c")
        self.assertEqual(uuids, self.claim(2, "c"))
        self.assertRaises(exceptions.ReservationConflict, self.claim, 3, "c")
        self.assertEqual([2, 0], self.used())

    def test_a_refusal_changes_nothing(self) -> None:
        """Quota, capacity and units, by the reserve's own errors."""
        self.limits.limits["p1", "gpu"] = 9
        self.assertRaises(exceptions.OverQuota, self.claim, 10)
        self.limits.limits["p1", "gpu"] = 100
        self.assertRaises(exceptions.OverCapacity, self.claim, 10)
        units = Inventory(9, min_unit=4, step_size=4)
        for name in ("n1", "n2"):
            self.capacity.set_inventories(ADMIN, name, {"gpu": units})
        self.assertRaises(exceptions.OverCapacity, self.claim, 5)
        self.assertEqual(([0, 0], (0, 0)), (self.used(), self.figures()))
        self.claim(4)
        self.assert_invariants()
