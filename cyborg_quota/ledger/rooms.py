# SPDX-License-Identifier: Apache-2.0
"""What is left for a project: what its limits leave, which each enforcer then narrows (Enforcer.narrow)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger import headroom_rule as headroom
from cyborg_quota.ledger import transitions
from cyborg_quota.ledger.headroom_rule import Bundles, K
from cyborg_quota.ledger.limit_source import PathLimits
from cyborg_quota.ledger.transitions import CountersOf
from cyborg_quota.types import UNLIMITED, Constraint, Counters, Headroom, ResourceKey, Usage, UsageKey, UsageRecord
from cyborg_quota.types.capacity import FreeInventories


class Rooms:
    """What is left of some resources.

    ``fits``: the headrooms, by resource. ``bundles``: how many bundles fit. ``provider`` and ``pod``: where the caller
    asks; None: nowhere in particular. ``is_open`` False: no claim is taken there.
    """

    def __init__(
        self,
        state: PathState,
        limits: PathLimits,
        resources: Collection[str],
        counters_of: CountersOf,
        *,
        provider: str | None = None,
        pod: str | None = None,
        bundle: Mapping[str, int] | None = None,
    ) -> None:
        self.state = state
        self.project_id = state.project_ids[0]
        self.limits = limits
        self.resources = resources
        self.provider = provider
        self.pod = pod
        self.bundle = bundle
        self.is_open = True
        self._counters_of = counters_of
        self._constraints: dict[ResourceKey, list[Constraint]] = {}  # (a project may have limits in many pods)
        for one in limits.constraints:
            self._constraints.setdefault(one.key.resource_key, []).append(one)
        self.fits = self.in_pod(pod)
        self.bundles = Bundles(0, None) if bundle is None else self._how_many(bundle, pod)

    def in_pod(self, pod: str | None) -> dict[str, Headroom]:
        """What the limits leave in one pod, by resource; None: in no pod."""
        return self._left({resource: tuple(self._counters_of(resource, pod)) for resource in self.resources})

    def _left(self, keys: Mapping[K, Collection[ResourceKey]]) -> dict[K, Headroom]:
        counted = {key for some in keys.values() for key in some}
        constraints = [one for key in counted for one in self._constraints.get(key, ())]
        path, counters = self.state.project_ids, self.state.counters
        return headroom.compute(path, keys, constraints, counters, missing=self.limits.missing)

    def _how_many(self, bundle: Mapping[str, int], pod: str | None) -> Bundles:
        """How many bundles the limits leave in one pod: resources may share a counter."""
        amounts = transitions.by_counter(bundle, self._counters_of, pod)
        return headroom.how_many(amounts, self._left({key: (key,) for key in amounts}))

    def narrow_fits(self, provider: str, free: Mapping[str, Mapping[str | None, Sequence[FreeInventories]]]) -> None:
        """Consider also what is free, by resource and pod. ``provider``: its name, or ANY."""
        quotas = {one: self.in_pod(one) for by_pod in free.values() for one in by_pod}
        for resource, quota in self.in_pod(self.pod).items():
            by_pod = [
                headroom.at_provider(quotas[one][resource], some, provider)
                for one, some in free.get(resource, {}).items()
            ]
            nothing = headroom.at_provider(quota, (), provider)
            best = max(by_pod, key=lambda one: one.fits or 0, default=nothing)
            self.fits[resource] = dataclasses.replace(best, free_total=sum(one.free_total or 0 for one in by_pod))

    def narrow_bundles(self, at_providers: Mapping[str | None, int]) -> None:
        """Consider also how many bundles fit at providers, by pod."""
        bundle = self.bundle or {}
        number = sum(min(most, self._how_many(bundle, one).number) for one, most in at_providers.items())
        by_limits = self._how_many(bundle, self.pod)  # (not ``self.bundles``: the read may be a repetition)
        self.bundles = by_limits if by_limits.number <= number else Bundles(number, None)

    @property
    def own_limits(self) -> dict[UsageKey, int]:
        return {one.key: one.limit for one in self.limits.constraints}

    def records(self, resources: Collection[str], limits: Mapping[UsageKey, int]) -> list[UsageRecord]:
        """The usage there, the limits of the project, and what fits. A resource without headroom cannot be reserved."""
        records = []
        for resource in sorted(resources):
            key = UsageKey(self.project_id, resource, self.pod or "")
            now = self.state.counters.get(key, Counters())
            usage = Usage(limits.get(key, UNLIMITED), now.used, now.reserved)
            records.append(UsageRecord(*key[:2], usage, self.fits.get(resource, Headroom(0)), self.pod))
        return records
