# SPDX-License-Identifier: Apache-2.0
"""A filter and a weigher for pods: fill one pod after the other, and only pods that have the requested amounts free."""

from __future__ import annotations

from cyborg_quota.pods.selection import PodFilter, PodRequest, PodWeigher
from cyborg_quota.types.capacity import Candidate


class AmountsFree(PodFilter):
    """Passes the pods whose last measurement has all requested amounts free, and those that were never measured."""

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        if candidate.usage is None or request.amounts is None:
            return True
        free = {resource: use.capacity - use.used for resource, use in candidate.usage.items()}
        return all(free.get(resource, 0) >= amount for resource, amount in request.amounts.items())


class Packed(PodWeigher):
    """Prefers the pod with the smallest free share, by the last measurement."""

    def weigh(self, candidate: Candidate, request: PodRequest) -> float:  # noqa: ARG002
        uses = [use for use in (candidate.usage or {}).values() if use.capacity]
        return max((use.used / use.capacity for use in uses), default=0.0)
