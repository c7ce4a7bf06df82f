# SPDX-License-Identifier: Apache-2.0
"""Processes that fill the limits per pod of a project and of its child, while claims end in every way."""

from __future__ import annotations

import functools
import random

from cyborg_quota import ANY, exceptions
from tests import base
from tests.base import ADMIN
from tests.race.test_limit_races import LimitRaceTestCase
from tests.race.test_races import reserve_until_refused
from tests.race.workers import PROCESSES, race

LIMITS = {"p1": 23, "p2": 17}


class TestPodLimits(LimitRaceTestCase):
    def setUp(self) -> None:
        """Add the projects, and two pods with much more capacity than the limits permit."""
        super().setUp()
        self.import_tree({"parent": None, "child": "parent"}, {"child": -1}, gpu=-1)
        for pod, limit in LIMITS.items():
            self.pods.add(ADMIN, pod)
            self.admin.set_limits(ADMIN, {"gpu": limit}, "parent", pod=pod)
        for name, pod in (("n1", "p1"), ("n2", "p2"), ("n3", "p1")):
            self.add_provider(name, pod=pod, gpu=1000)

    def churn(self, number: int) -> int:
        """Claim 1 to 3 in a pod or in any, and end most claims in some way. Returns how many were refused."""
        chance = random.Random(number)
        refused = 0
        held: list[tuple[base.Context, list[str]]] = []
        for _ in range(16):
            context = base.Context(chance.choice(["parent", "child"]))
            provider = chance.choice(["n1", "n2", "n3", ANY])
            try:
                held.append((context, self.engine.reserve(context, {"gpu": chance.randint(1, 3)}, provider=provider)))
            except exceptions.OverQuota:
                refused += 1
                if held:
                    end = chance.choice([self.engine.release, self.engine.release, self.engine.rollback])
                    end(*held.pop(chance.randrange(len(held))))
        return refused

    def fill(self, number: int) -> int:
        """Claim 1 for the parent or its child, in each pod, until the parent's limit refuses it. Returns the sum."""
        context = base.Context(("parent", "child")[number % 2])
        return sum(reserve_until_refused(self.engine, context, provider) for provider in ("n1", "n2"))

    def held(self) -> dict[str, int]:
        query = "SELECT pod, subtree FROM quota_usages WHERE project_id = 'parent' AND resource = 'gpu' AND pod != ''"
        return {row.pod: row.subtree for row in self.fetch(query)}

    def test_the_limit_is_reached_and_never_exceeded(self) -> None:
        self.start()
        refused = race(*(functools.partial(self.churn, number) for number in range(1, PROCESSES + 1)))
        self.assertGreater(sum(refused), 0)
        self.assert_invariants()
        held = self.held()
        for pod, limit in LIMITS.items():
            self.assertLessEqual(held[pod], limit)
        self.start()
        claimed = race(*(functools.partial(self.fill, number) for number in range(PROCESSES)))
        self.assertEqual(LIMITS, self.held(), "exactly what is permitted")
        self.assertEqual(sum(LIMITS.values()), sum(held.values()) + sum(claimed))
        self.assert_invariants()
