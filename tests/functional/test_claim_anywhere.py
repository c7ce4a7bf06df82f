# SPDX-License-Identifier: Apache-2.0
"""A claim with ANY beside the lock of another session. (test_capacity_any.py: what ANY chooses.)"""

from __future__ import annotations

import threading
from typing import Any

import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, Inventory
from cyborg_quota.ledger.capacity_claims import CapacityClaimer
from tests import base, fixtures, hooks

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
WAIT_SECONDS = 60.0


class TestAnywhere(base.LedgerTestCase):
    """The only provider, n1, has 8 gpu."""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.capacity = self.engine.capacity
        self.capacity.add_provider(ADMIN, "n1")
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(8)})
        self.engine.rollback(self.context, self.claim(1))

    def claim(self, amount: int) -> list[str]:
        return self.engine.reserve(self.context, {"gpu": amount}, provider=ANY)

    def used(self) -> list[int]:
        return [record.used for record in self.capacity.list_inventories(ADMIN)]

    def test_a_claim_that_fits_only_at_a_locked_provider_waits(self) -> None:
        """It is not refused: a refusal means that no provider could have taken it."""
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
            holder.exec_driver_sql("UPDATE inventories SET used = used")
            caller.start()
            self.assertTrue(is_placed.wait(WAIT_SECONDS))
        caller.join(WAIT_SECONDS)
        self.assertEqual((1, [8]), (len(granted), self.used()))
        self.assert_invariants()
