# SPDX-License-Identifier: Apache-2.0
"""Filters and weighers of pods: pure rules."""

from __future__ import annotations

from collections.abc import Mapping

from oslotest import base

from cyborg_quota.pods.selection import (
    CreationTime,
    IdleCapacity,
    PodRequest,
    PodSelection,
    PodWeigher,
    Weight,
)
from cyborg_quota.types.capacity import Candidate, Pod, ResourceUse

HALF = ResourceUse(10, 5)
EMPTY = ResourceUse(10, 0)


def candidate(pod_id: int, weight: int = 0, **usage: ResourceUse) -> Candidate:
    """A measured pod."""
    return Candidate(pod_id, Pod(f"p{pod_id}", weight=weight), usage)


def request(amounts: Mapping[str, int] | None = None) -> PodRequest:
    """A request without zone and tags."""
    return PodRequest(None, {}, amounts)


class TestIdleCapacity(base.BaseTestCase):
    def test_the_smallest_free_share_of_what_is_requested(self) -> None:
        """A pod that was never measured is all free; a measured one without the resource has nothing free."""
        pod = candidate(1, gpu=HALF, fpga=EMPTY, nic=ResourceUse(10, 9))
        half = candidate(1, gpu=HALF, fpga=ResourceUse(0, 0))
        for one, amounts, weight in (
            (pod, {"gpu": 1}, 0.5),
            (pod, {"fpga": 1}, 1.0),
            (pod, {"gpu": 1, "fpga": 1}, 0.5),
            (pod, None, 0.1),  # of all resources
            (Candidate(1, Pod("p1"), None), {"gpu": 1}, 1.0),
            (candidate(1), None, 0.0),
            (candidate(1), {"gpu": 1}, 0.0),
            (half, None, 0.5),
            (half, {"gpu": 1, "fpga": 1}, 0.0),
        ):
            self.assertAlmostEqual(weight, IdleCapacity().weigh(one, request(amounts)))


class _Square(PodWeigher):
    """A weigher with a much larger range than the others."""

    def weigh(self, candidate: Candidate, request: PodRequest) -> float:
        return 1e6 * candidate.id**2


class TestSum(base.BaseTestCase):
    def ranked(self, *weighers: tuple[PodWeigher, float], weights: tuple[int, ...] = (0, 0, 0)) -> list[int]:
        pods = [candidate(number, weight, gpu=EMPTY) for number, weight in enumerate(weights, 1)]
        return [one.id for one in PodSelection(filters=(), weighers=weighers).ranked(pods, request())]

    def test_the_weights_of_a_weigher_are_scaled(self) -> None:
        """So the multipliers alone say which weigher decides, whatever the ranges of the weights are."""
        self.assertEqual([1, 2, 3], self.ranked((_Square(), 1.0), (CreationTime(), 2.0)))
        self.assertEqual([3, 2, 1], self.ranked((_Square(), 2.0), (CreationTime(), 1.0)))

    def test_the_defaults(self) -> None:
        """The weight decides; two weights that differ by less than 1/1000 of the range count as equal."""
        defaults = PodSelection().weighers
        self.assertEqual([2, 3, 1], self.ranked(*defaults, weights=(0, 2, 1)))
        self.assertEqual([3, 1, 2], self.ranked(*defaults, weights=(0, 1, 10_000)))
        self.assertEqual([1, 2, 3], self.ranked((Weight(), 5.0)), "equal sums")
