# SPDX-License-Identifier: Apache-2.0
"""Filters and weighers, which select the pod of a new binding. Pure: no I/O.

A pod that is not available is never a candidate. A candidate must pass every filter; of those left, the one with the
highest sum of weights is selected. Filters are loaded by stevedore from the namespace ``cyborg_quota.pod_filters``
([pods] filters), weighers from ``cyborg_quota.pod_weighers`` ([pods] weighers).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from cyborg_quota.types.capacity import Candidate, ResourceUse


@dataclasses.dataclass(frozen=True, slots=True)
class PodRequest:
    """What a project needs. ``affinity``: tags that some pod has. ``amounts`` None: of unknown resources."""

    zone: str | None
    affinity: Mapping[str, str]
    amounts: Mapping[str, int] | None

    @property
    def key(self) -> Hashable:
        """Equal for equal requests."""
        amounts = None if self.amounts is None else frozenset(self.amounts.items())
        return self.zone, frozenset(self.affinity.items()), amounts


def is_full(usage: Mapping[str, ResourceUse] | None, threshold: int, request: PodRequest) -> bool:
    """Whether the last measurement of a pod reaches the threshold, for a requested resource (for any, if none is).

    A requested resource that is not in the measurement does not exist in the pod, which then counts as full. So does a
    measured pod that has nothing at all.
    """
    if usage is None:
        return False
    uses = _uses(usage, request)
    return not uses or any([is_at_threshold(threshold, use) for use in uses])


def _uses(usage: Mapping[str, ResourceUse], request: PodRequest) -> list[ResourceUse]:
    """The use of each requested resource; or, without, of each that the pod has or uses."""
    if request.amounts is None:
        return [use for use in usage.values() if use.capacity or use.used]
    return [usage.get(resource, ResourceUse(0, 0)) for resource in request.amounts]


def is_at_threshold(threshold: int, use: ResourceUse) -> bool:
    """Whether the use of a resource reaches the threshold of the pod, in percent."""
    return use.used * 100 >= threshold * use.capacity


class PodFilter(abc.ABC):
    """Decides whether a pod may serve a request."""

    @abc.abstractmethod
    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        """Whether the pod may serve the request."""


class AllPods(PodFilter):
    """Passes every pod."""

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:  # noqa: ARG002
        return True


class AvailabilityZone(PodFilter):
    """Passes the pods in the requested zone; all, if the request names none."""

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        return request.zone is None or candidate.pod.availability_zone == request.zone


class ResourceAffinity(PodFilter):
    """Passes the pods that have all requested tags. A request without tags passes only pods without tags."""

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        tags = candidate.pod.resource_affinity
        if not request.affinity:
            return not tags
        return all(tags.get(key) == value for key, value in request.affinity.items())


class Capacity(PodFilter):
    """Passes the pods whose last measurement is below their threshold, and those that were never measured."""

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        return not is_full(candidate.usage, candidate.pod.threshold, request)


class PodWeigher(abc.ABC):
    """Gives each pod a weight. The weights of one weigher are scaled to the range from 0 to 1."""

    @abc.abstractmethod
    def weigh(self, candidate: Candidate, request: PodRequest) -> float:
        """The weight of the pod. Higher is better."""


class CreationTime(PodWeigher):
    """Prefers the pod that was added first."""

    def weigh(self, candidate: Candidate, request: PodRequest) -> float:  # noqa: ARG002
        return -float(candidate.id)


class IdleCapacity(PodWeigher):
    """Prefers the pod with the largest free share of what is requested; a pod never measured is all free."""

    def weigh(self, candidate: Candidate, request: PodRequest) -> float:
        if candidate.usage is None:
            return 1.0
        uses = _uses(candidate.usage, request)
        return min((1 - use.used / use.capacity if use.capacity else 0.0 for use in uses), default=0.0)


class Weight(PodWeigher):
    """Prefers the pod with the highest configured weight."""

    def weigh(self, candidate: Candidate, request: PodRequest) -> float:  # noqa: ARG002
        return float(candidate.pod.weight)


@dataclasses.dataclass(frozen=True)
class PodSelection:
    """The configured filters, and the weighers with their multipliers."""

    filters: Sequence[PodFilter] = (AvailabilityZone(), ResourceAffinity(), Capacity())
    weighers: Sequence[tuple[PodWeigher, float]] = ((Weight(), 1000.0), (CreationTime(), 1.0))

    def zone(self, named: str | None) -> str | None:
        """The zone of the bindings for a request that names this one: None, if the filters compare no zones."""
        return named if any(isinstance(pod_filter, AvailabilityZone) for pod_filter in self.filters) else None

    def passes(self, candidate: Candidate, request: PodRequest) -> bool:
        """Whether the pod is available and passes every filter."""
        return candidate.pod.state == "available" and all(
            pod_filter.passes(candidate, request) for pod_filter in self.filters
        )

    def ranked(self, candidates: Sequence[Candidate], request: PodRequest) -> list[Candidate]:
        """The pods that may serve the request, the best first. Of equal pods, the first one added."""
        passed = [candidate for candidate in candidates if self.passes(candidate, request)]
        scores = dict.fromkeys((candidate.id for candidate in passed), 0.0)
        for weigher, multiplier in self.weighers:
            weights = {candidate.id: weigher.weigh(candidate, request) for candidate in passed}
            lowest, highest = min(weights.values(), default=0.0), max(weights.values(), default=0.0)
            for pod_id, weight in weights.items() if highest > lowest else ():
                scores[pod_id] += multiplier * ((weight - lowest) / (highest - lowest))
        return sorted(passed, key=lambda candidate: (-scores[candidate.id], candidate.id))
