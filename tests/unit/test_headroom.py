# SPDX-License-Identifier: Apache-2.0
"""The rule of the headroom: the smallest bound, and which of equal ones is reported."""

from __future__ import annotations

from oslotest import base

from cyborg_quota.ledger.enforcement import compute
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Constraint, Counters, Headroom, ResourceKey, UsageKey

GPU = {"gpu": [ResourceKey("gpu")]}


class TestRule(base.BaseTestCase):
    def test_a_project_with_the_id_none(self) -> None:
        """Its id is not that of the total limit, which has no project and is the farthest bound."""
        constraints = [Constraint("top", "gpu", 5, "subtree"), Constraint(TOTAL, "gpu", 5, "total")]
        found = compute(("leaf", "None", "top"), GPU, constraints, {}, missing={})
        self.assertEqual({"gpu": Headroom(5, "top", "subtree", 5)}, found)

    def test_a_limit_takes_precedence_over_the_width(self) -> None:
        """As in the error of a reserve."""
        full = {UsageKey("leaf", "gpu"): Counters(MAX_AMOUNT, 0, MAX_AMOUNT)}
        for limits, scope in (([Constraint("leaf", "gpu", MAX_AMOUNT)], "project"), ([], "counter")):
            self.assertEqual(scope, compute(("leaf", "mid", "top"), GPU, limits, full, missing={})["gpu"].scope)
