# SPDX-License-Identifier: Apache-2.0
"""The rule of the headroom: the smallest bound, and which of equal ones is reported; how many bundles fit."""

from __future__ import annotations

from oslotest import base

from cyborg_quota.ledger.enforcement import Bundles, compute, how_many
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


def number_of(bundle: dict[str, int], headrooms: dict[str, Headroom]) -> Bundles:
    return how_many(
        {ResourceKey(name): amount for name, amount in bundle.items()},
        {ResourceKey(name): one for name, one in headrooms.items()},
    )


class TestBundles(base.BaseTestCase):
    def test_how_many(self) -> None:
        headrooms = {"gpu": Headroom(5, "p"), "fpga": Headroom(2, "p"), "tpu": Headroom(None)}
        for bundle, expected in (
            ({"gpu": 2, "fpga": 1}, Bundles(2, "fpga")),
            ({"gpu": 3, "fpga": 1, "tpu": 7}, Bundles(1, "gpu")),
            ({"gpu": 6}, Bundles(0, "gpu")),
        ):
            self.assertEqual(expected, number_of(bundle, headrooms))
        self.assertEqual(headrooms["fpga"], number_of({"gpu": 2, "fpga": 1}, headrooms).headroom)
        # Without a limit, one reserve takes at most MAX_AMOUNT of a resource: 2**31 - 1.
        headrooms["gpu"] = Headroom(None)
        self.assertEqual(Bundles(MAX_AMOUNT, "tpu"), number_of({"tpu": 1}, headrooms))
        self.assertEqual(Bundles(2**30 - 1, "gpu"), number_of({"gpu": 2, "tpu": 1}, headrooms))
