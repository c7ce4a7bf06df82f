# SPDX-License-Identifier: Apache-2.0
"""Processes that claim in the selected pod of the same projects at the same time, until all pods are full."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from cyborg_quota import ANY, SELECT, Inventory, QuotaEngine, exceptions
from tests import base, hooks
from tests.base import ADMIN
from tests.race.test_provider_races import claim_until_full
from tests.race.workers import PATIENT, PROCESSES, once, race

TOTAL = 30
"""What each of two providers of each of two pods has."""


def add_pods(engine: QuotaEngine) -> None:
    """Add two pods with two providers each."""
    for pod in ("p1", "p2"):
        engine.pods.add(ADMIN, pod)
        for name in (pod, f"{pod}-1"):
            engine.capacity.add_provider(ADMIN, name, pod=pod)
            engine.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(TOTAL)})


def claim_one(engine: QuotaEngine, project_id: str, amount: int) -> list[str]:
    return engine.reserve(base.Context(project_id), {"gpu": amount}, provider=ANY, pod=SELECT)


def fill(engine: QuotaEngine, number: int) -> int:
    """Claim 1 to 5 for one of two tenants until not even 1 fits anywhere. Returns the sum."""
    return claim_until_full(number, functools.partial(claim_one, engine, f"tenant{number % 2}"))


class TestClaims(base.LedgerTestCase):
    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        add_pods(self.engine)
        # Forked processes find the statements compiled and the modules imported.
        self.engine.release(base.Context("warm"), self.claim("warm", 1))
        self.engine.close()

    def claim(self, project_id: str, amount: int) -> list[str]:
        return claim_one(self.engine, project_id, amount)

    def used(self) -> dict[str, int]:
        return {record.provider: record.used for record in self.engine.capacity.list_inventories(ADMIN)}

    def bindings(self, project_id: str, *, history: bool = False) -> list[tuple[str | None, str]]:
        found = self.pods.list_bindings(ADMIN, project_id, history=history)
        return [(binding.pod, binding.reason) for _, binding in found]

    def test_all_pods_are_filled(self) -> None:
        tenants = ("tenant0", "tenant1")
        for project_id in tenants:
            # Both have a binding: on a busy machine, the processes of one may begin when all pods are full.
            self.claim(project_id, 1)
        self.engine.close()
        claimed = race(*(functools.partial(fill, self.engine, number) for number in range(PROCESSES)))
        self.assertEqual(4 * TOTAL - len(tenants), sum(claimed), claimed)
        self.assertEqual({TOTAL}, set(self.used().values()))
        for project_id in tenants:
            self.assertEqual(1, len(self.bindings(project_id)))
            # (Which pods is left to chance: a binding moves for a claim of 5, and back for one of 1 that still fits.)
            pods, reasons = zip(*self.bindings(project_id, history=True), strict=True)
            self.assertTrue(all(pod != next_pod for pod, next_pod in itertools.pairwise(pods)), pods)
            self.assertEqual(("first", {"claim"}), (reasons[0], {"claim", *reasons[1:]}), reasons)
        self.assert_invariants()

    def claim_together(self, project_id: str) -> list[Any]:
        """The processes claim 1 each, and all of them have selected the pod before any of them writes."""
        claimer = self.engine._driver.subjects["capacity"]
        self.useFixture(hooks.Meanwhile(claimer, "prepare", once(PROCESSES), after=True))
        self.engine.close()
        return race(*[functools.partial(self.claim, project_id, 1)] * PROCESSES)

    def test_one_first_binding(self) -> None:
        self.claim_together("tenant1")
        self.assertEqual([("p1", "first")], self.bindings("tenant1", history=True))
        self.assertEqual(PROCESSES, sum(self.used()[name] for name in ("p1", "p1-1")))
        self.assert_invariants()

    def test_one_move(self) -> None:
        for _ in range(2):
            self.claim("tenant1", TOTAL)
        self.claim_together("tenant1")
        self.assertEqual([("p1", "first"), ("p2", "claim")], self.bindings("tenant1", history=True))
        self.assertEqual(PROCESSES, sum(self.used()[name] for name in ("p2", "p2-1")))
        self.assert_invariants()

    def test_the_last_one_is_taken_once(self) -> None:
        """All select the last free unit: one gets it, and the others are refused."""
        for amount in (TOTAL, TOTAL, TOTAL, TOTAL - 1):
            self.claim("tenant1", amount)
        claim = self.claim

        def claim_or_not(project_id: str, amount: int) -> list[str]:
            try:
                return claim(project_id, amount)
            except exceptions.OverCapacity:
                return []

        self.patch(self, "claim", claim_or_not)
        self.assertEqual(1, sum(map(len, self.claim_together("tenant2"))))
        self.assertEqual({TOTAL}, set(self.used().values()))
        self.assertEqual([("p2", "first")], self.bindings("tenant2", history=True))
        self.assert_invariants()
