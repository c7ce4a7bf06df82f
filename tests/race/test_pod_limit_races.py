# SPDX-License-Identifier: Apache-2.0
"""Processes that fill the limits per pod of a project and of its child, while claims end in every way."""

from __future__ import annotations

import functools
import random
import uuid

from cyborg_quota import ANY, Inventory, QuotaEngine, exceptions
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import StrictHierarchy
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures
from tests.base import ADMIN
from tests.race.test_races import reserve_until_refused
from tests.race.workers import PATIENT, PROCESSES, race

LIMITS = {"p1": 23, "p2": 17}


def fill(engine: QuotaEngine, number: int) -> int:
    """Claim 1 for the parent or its child, in each pod, until the limit of the parent refuses it. Returns the sum."""
    context = base.Context(("parent", "child")[number % 2])
    return sum(reserve_until_refused(engine, context, provider) for provider in ("n1", "n2"))


def add_pods(engine: QuotaEngine) -> None:
    """Add the projects, and two pods with much more capacity than the limits permit."""
    engine.limits.set_limits(ADMIN, {"gpu": -1})
    for project_id, parent_id in (("parent", None), ("child", "parent")):
        engine.limits.add_project(ADMIN, project_id, parent_id)
    engine.limits.set_limits(ADMIN, {"gpu": -1}, "child")
    for name, pod in (("n1", "p1"), ("n2", "p2"), ("n3", "p1")):
        if pod == name.replace("n", "p"):
            engine.pods.add(ADMIN, pod)
        engine.capacity.add_provider(ADMIN, name, pod=pod)
        engine.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(1000)})


def set_limits(engine: QuotaEngine) -> None:
    for pod, limit in LIMITS.items():
        engine.limits.set_limits(ADMIN, {"gpu": limit}, "parent", pod=pod)


class TestPodLimits(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        add_pods(self.engine)
        self.engine.close()

    def make_engine(self, **changes: object) -> QuotaEngine:
        limits = DatabaseLimitDriver(StrictHierarchy(), InitialLimits())
        return fixtures.make_engine(self.url, limits, **{**PATIENT, **changes})  # type: ignore[arg-type]

    def churn(self, number: int, provider: str | None) -> int:
        """Claim 1 to 3 in a pod or in any, and end most claims in some way. Returns how many were refused."""
        chance = random.Random(number)
        refused = 0
        held: list[tuple[base.Context, str]] = []
        for turn in range(16):
            if number == 0 and turn == 5:
                set_limits(self.engine)
            context = base.Context(chance.choice(["parent", "child"]))
            consumer = str(uuid.uuid4())
            try:
                self.engine.reserve(
                    context,
                    {"gpu": chance.randint(1, 3)},
                    consumer=consumer,
                    provider=provider or chance.choice(["n1", "n2", "n3", ANY]),
                )
            except exceptions.OverQuota:
                refused += 1
                if held:
                    context, consumer = held.pop(chance.randrange(len(held)))
                    chance.choice([self.engine.release, self.engine.release, self.engine.rollback])(
                        context, consumer=consumer
                    )
                continue
            held.append((context, consumer))
        return refused

    def in_pod(self, project_id: str, pod: str) -> int:
        query = "SELECT subtree FROM quota_usages WHERE project_id = :p AND resource = 'gpu' AND pod = :pod"
        return int(self.fetch(query, p=project_id, pod=pod)[0].subtree)

    def test_the_limit_is_reached_and_never_exceeded(self) -> None:
        set_limits(self.engine)
        self.engine.close()
        refused = race(*(functools.partial(self.churn, number, None) for number in range(1, PROCESSES + 1)))
        self.assertGreater(sum(refused), 0)
        self.assert_invariants()
        for pod, limit in LIMITS.items():
            self.assertLessEqual(self.in_pod("parent", pod), limit)
        held = sum(self.in_pod("parent", pod) for pod in LIMITS)
        self.engine.close()
        claimed = race(*(functools.partial(fill, self.engine, number) for number in range(PROCESSES)))
        self.assertEqual(LIMITS, {pod: self.in_pod("parent", pod) for pod in LIMITS}, "exactly what is permitted")
        self.assertEqual(sum(LIMITS.values()), held + sum(claimed))
        self.assert_invariants()

    def test_a_limit_that_is_set_during_the_race(self) -> None:
        """Each process has counted in the pod from its first claim; the limit is what is held, or less, in the end."""
        race(*(functools.partial(self.churn, number, "n1") for number in range(PROCESSES)))
        self.assert_invariants()
        held = self.in_pod("parent", "p1")
        for _ in range(2):
            fits = self.engine.headroom(ADMIN, "child", provider="n1")["gpu"].fits
            self.assertEqual(max(0, LIMITS["p1"] - held), fits)
            if fits:
                self.engine.reserve(base.Context("child"), {"gpu": fits}, provider="n1")
                held += fits
        self.assertRaises(exceptions.OverQuota, self.engine.reserve, base.Context("child"), {"gpu": 1}, provider="n1")
