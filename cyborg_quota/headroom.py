# SPDX-License-Identifier: Apache-2.0
"""The headroom of a project: the largest amount that a reserve made now would be granted. Pure: the caller reads.

A reserve of one resource makes one reservation, so that each condition is an upper bound of its amount. Where
several bounds are equal, the one that the error of a larger reserve would name is reported: limits first, nearest to
the project first; then the width of the counter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from cyborg_quota import units
from cyborg_quota.capacity_types import FreeInventories
from cyborg_quota.types import MAX_AMOUNT, UNLIMITED, Constraint, Counters, Headroom, ResourceKey, UsageKey


def compute(
    path: Sequence[str],
    resource: str,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
) -> Headroom:
    """What fits into ``path[0]``. ``path``: the project and its ancestors, leaf first; ``constraints``: of a charge.

    A key that ``counters`` lacks is zero.
    """
    project_id = path[0]
    own = counters.get(UsageKey(project_id, resource), Counters())
    bounds = _limits(path, ResourceKey(resource), constraints, counters)
    width = MAX_AMOUNT - own.used - own.reserved
    if bounds or width < MAX_AMOUNT:  # else, every amount fits: MAX_AMOUNT is the largest of a reserve
        bounds.append(Headroom(max(0, width), project_id, "counter", MAX_AMOUNT))
    return min(bounds, key=_fits, default=Headroom(None))


def by_resource(constraints: Iterable[Constraint]) -> dict[ResourceKey, list[Constraint]]:
    """The constraints of each resource, for callers of ``compute`` and ``in_pod`` with many resources."""
    found: dict[ResourceKey, list[Constraint]] = {}
    for one in constraints:
        found.setdefault(one.key.resource_key, []).append(one)
    return found


def _limits(
    path: Sequence[str],
    key: ResourceKey,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
) -> list[Headroom]:
    """The bound of each constraint, nearest to the leaf first."""
    distance: dict[str | None, int] = {project_id: index for index, project_id in enumerate(path)}
    bounds = []
    for constraint in constraints:
        project_id, scope, limit = constraint.project_id, constraint.scope, constraint.limit
        if (constraint.resource, constraint.pod) != key or limit == UNLIMITED:
            continue
        if scope == "project" and project_id != path[0]:
            continue
        now = counters.get(constraint.key, Counters())
        held = now.used + now.reserved if scope == "project" else now.subtree
        owner = None if scope == "total" else project_id
        bounds.append(Headroom(max(0, limit - held), owner, scope, limit))
    return sorted(bounds, key=lambda bound: (distance.get(bound.bound_by, len(path)), bound.scope))


def in_pod(
    quota: Headroom,
    path: Sequence[str],
    key: ResourceKey,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
) -> Headroom:
    """What fits into the pod of ``key``: ``quota`` (what fits into all pods), or what the limits of the pod permit."""
    least = min(_limits(path, key, constraints, counters), key=_fits, default=quota)
    if least.fits is None or (quota.fits is not None and quota.fits <= least.fits):
        return quota
    return dataclasses.replace(least, pod=key.pod)


def no_limit_set(project_id: str) -> Headroom:
    """Nothing fits, because this project of the path has no limit (a reserve raises LimitNotSet)."""
    return Headroom(0, project_id, "project", None)


def at_providers(
    quotas: Iterable[tuple[Headroom, Sequence[FreeInventories]]], quota: Headroom, provider: str
) -> Headroom:
    """The largest amount that one provider of any pod permits: ``at_provider`` of each pod.

    ``quotas``: what fits into each pod, and the inventories there; ``quota``: what fits into all.
    """
    by_pod = [at_provider(one, inventories, provider) for one, inventories in quotas]
    best = max(by_pod, key=_fits, default=at_provider(quota, (), provider))
    return dataclasses.replace(best, free_total=sum(one.free_total or 0 for one in by_pod))


def at_provider(quota: Headroom, inventories: Iterable[FreeInventories], provider: str) -> Headroom:
    """The largest amount that ``quota`` and the inventories of one provider permit together.

    ``inventories``: those of the resource at ``provider``; if it is ANY, those of all providers that can host.
    """
    at_most = MAX_AMOUNT if quota.fits is None else quota.fits
    fits = total = 0
    for one in inventories:
        permitted = units.largest_permitted(
            min(at_most, one.free), min_unit=one.min_unit, max_unit=one.max_unit, step_size=one.step_size
        )
        fits = max(fits, permitted)
        total += max(0, one.free) * one.number
    if fits == quota.fits:
        return dataclasses.replace(quota, free_total=total)
    return Headroom(fits, provider, "provider", None, total)


@dataclasses.dataclass(frozen=True, slots=True)
class Bundles:
    """How many bundles fit, and the resource whose quota bounds their number, with its headroom at the same moment.

    ``resource`` and ``headroom`` are None if the capacity of the providers bounds the number.
    """

    number: int
    resource: str | None
    headroom: Headroom | None = dataclasses.field(default=None, compare=False)


def how_many(bundle: Mapping[str, int], headrooms: Mapping[str, Headroom]) -> Bundles:
    """The largest n such that a reserve of n times ``bundle`` ({resource: amount}, at least 1 each) would be granted.

    Where nothing limits a resource, n times its amount is at most MAX_AMOUNT, the largest amount of a reserve. Other
    reserves may take the amounts before the caller does.
    """
    counts = {}
    for resource, amount in sorted(bundle.items()):
        fits = headrooms[resource].fits
        counts[resource] = (MAX_AMOUNT if fits is None else fits) // amount
    resource = min(counts, key=counts.__getitem__)
    return Bundles(counts[resource], resource, headrooms[resource])


def _fits(bound: Headroom) -> int:
    assert bound.fits is not None
    return bound.fits
