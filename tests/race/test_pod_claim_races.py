# SPDX-License-Identifier: Apache-2.0
"""Processes that claim in the selected pod of the same projects at the same time, until all pods are full."""

from __future__ import annotations

import functools
import itertools

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
        self.engine.release(base.Context("warm"), claim_one(self.engine, "warm", 1))

    def used(self) -> dict[str, int]:
        return {record.provider: record.used for record in self.engine.capacity.list_inventories(ADMIN)}

    def bindings(self, project_id: str) -> list[tuple[str | None, str]]:
        """The pods of all bindings, also of ended ones, and why they were made."""
        return [(one.pod, one.reason) for _, one in self.pods.list_bindings(ADMIN, project_id, history=True)]

    def test_all_pods_are_filled(self) -> None:
        tenants = ("tenant0", "tenant1")
        for project_id in tenants:
            # Both have a binding: on a busy machine, the processes of one may begin when all pods are full.
            claim_one(self.engine, project_id, 1)
        self.engine.close()
        claimed = race(*(functools.partial(fill, self.engine, number) for number in range(PROCESSES)))
        self.assertEqual(4 * TOTAL - len(tenants), sum(claimed), claimed)
        self.assertEqual({TOTAL}, set(self.used().values()))
        for project_id in tenants:
            self.assertEqual(1, len(self.pods.list_bindings(ADMIN, project_id)))
            # (Which pods is left to chance: a binding moves for a claim of 5, and back for one of 1 that still fits.)
            pods, reasons = zip(*self.bindings(project_id), strict=True)
            self.assertTrue(all(pod != next_pod for pod, next_pod in itertools.pairwise(pods)), pods)
            self.assertEqual(("first", {"claim"}), (reasons[0], {"claim", *reasons[1:]}), reasons)
        self.assert_invariants()

    def test_all_select_before_any_claims(self) -> None:
        """The processes claim 1 each: one makes the first binding, one moves it, and the last unit is taken once."""
        claimer = self.engine._driver.subjects["capacity"]
        first, moved = [("p1", "first")], [("p1", "first"), ("p2", "claim")]
        for filled, project_id, granted, bindings, providers in (
            ((), "tenant1", PROCESSES, first, ("p1", "p1-1")),
            ((TOTAL, TOTAL - PROCESSES), "tenant1", PROCESSES, moved, ("p2", "p2-1")),
            ((TOTAL, TOTAL - PROCESSES - 1), "tenant2", 1, [("p2", "first")], ("p2", "p2-1")),
        ):
            for amount in filled:
                claim_one(self.engine, "tenant1", amount)
            before = self.used()
            self.engine.close()
            with hooks.Meanwhile(claimer, "prepare", once(PROCESSES), after=True):
                claimed = race(*[functools.partial(self.claim_or_not, project_id)] * PROCESSES)
            self.assertEqual(granted, sum(claimed))
            self.assertEqual(granted, sum(self.used()[name] - before[name] for name in providers))
            self.assertEqual(bindings, self.bindings(project_id))
            self.assert_invariants()
        self.assertEqual({TOTAL}, set(self.used().values()))

    def claim_or_not(self, project_id: str) -> int:
        try:
            return len(claim_one(self.engine, project_id, 1))
        except exceptions.OverCapacity:
            return 0
