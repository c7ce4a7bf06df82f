# SPDX-License-Identifier: Apache-2.0
"""Processes that claim at a node and at the shared pool that serves it, in one claim, until one of them is full."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from cyborg_quota import ANY
from tests import base
from tests.base import ADMIN
from tests.race import naive
from tests.race.test_provider_races import CAPACITY, claim_until_full, context_of
from tests.race.workers import PATIENT, PROCESSES, race

BOTH = {"gpu": "n1", "fpga": "pool"}


class TestSharedPool(base.LedgerTestCase):
    """Two nodes have gpu, and the pool has fpga, of which each claim takes as many."""

    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        for name in ("n1", "n2"):
            self.add_provider(name, gpu=CAPACITY)
        self.add_provider("pool", can_host=False, fpga=CAPACITY + CAPACITY // 2)
        self.capacity.set_served(ADMIN, "pool", add=["n1", "n2"])
        for provider in (BOTH, ANY):  # forked processes find the statements compiled
            self.engine.release(context_of(0), self.claim(0, provider, 1))
        self.engine.close()

    def claim(self, number: int, provider: Any, amount: int) -> list[str]:
        """Claim for another project in each process."""
        return self.engine.reserve(
            context_of(number),
            {"gpu": amount, "fpga": amount},
            consumer=str(uuid.uuid4()),
            group="fill",
            provider=provider,
        )

    def fill(self, number: int, provider: Any) -> int:
        return claim_until_full(number, functools.partial(self.claim, number, provider))

    def used(self) -> dict[str, int]:
        return {record.provider: record.used for record in self.capacity.list_inventories(ADMIN)}

    def test_named_providers_and_any(self) -> None:
        """No claim is refused while a node and the pool have room: with ANY, the pool is filled to the last one."""
        for provider, most in ((BOTH, CAPACITY), (ANY, CAPACITY + CAPACITY // 2)):
            claimed = race(*(functools.partial(self.fill, number, provider) for number in range(PROCESSES)))
            self.assertEqual(most, sum(claimed), claimed)
            used = self.used()
            self.assertEqual((most, most), (used["pool"], used["n1"] + used["n2"]))
            self.assertEqual(provider == BOTH, used["n1"] == CAPACITY and not used["n2"])
            self.assert_invariants()
            for number in range(PROCESSES):
                self.engine.release(context_of(number), group="fill")
            self.engine.close()

    def test_while_the_association_ends(self) -> None:
        """Claims are granted or refused as a whole, and each is at one node and the pool."""

        def change() -> None:
            for _ in range(10):
                self.capacity.set_served(ADMIN, "pool", remove=["n1"])
                self.capacity.set_served(ADMIN, "pool", add=["n1"])

        race(change, *(functools.partial(self.fill, number, ANY) for number in range(3)))
        self.assertEqual([], self.engine.audit(ADMIN))
        used = self.used()
        self.assertEqual(used["pool"], used["n1"] + used["n2"])
        self.assert_invariants()

    def test_naive_is_detected(self) -> None:
        """It reads that one is free in the pool, which is claimed before it writes."""
        self.claim(0, BOTH, CAPACITY)
        self.claim(0, {"gpu": "n2", "fpga": "pool"}, CAPACITY // 2 - 1)
        claim = functools.partial(self.engine.reserve, context_of(1), {"fpga": 1}, provider="pool")
        naive.change(self.sql, naive.CLAIM, claim, provider="pool", amount=1)
        self.assertEqual(CAPACITY + CAPACITY // 2 + 1, self.used()["pool"])
