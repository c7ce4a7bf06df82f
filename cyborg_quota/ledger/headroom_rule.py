# SPDX-License-Identifier: Apache-2.0
"""The headroom of a project: the largest amount that a reserve made now would be granted. Pure: the caller reads.

A reserve of one resource makes one reservation, so that each condition is an upper bound of its amount. Where
several bounds are equal, the one that the error of a larger reserve would name is reported: limits first, nearest to
the project first; then the width of the counter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from cyborg_quota import units
from cyborg_quota.ledger import enforcement
from cyborg_quota.types import MAX_AMOUNT, Constraint, Counters, Headroom, Over, ResourceKey, UsageKey
from cyborg_quota.types.capacity import FreeInventories

K = TypeVar("K", str, ResourceKey)


def compute(
    path: Sequence[str],
    keys: Mapping[K, Collection[ResourceKey]],
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
    *,
    missing: Mapping[str, str],
) -> dict[K, Headroom]:
    """What fits into ``path[0]``, by resource (or by counter): what the bound of too large a request leaves.

    ``path``: the project and its ancestors, leaf first; ``keys``: the counters in which each resource is counted;
    ``constraints``: of a charge. A key that ``counters`` lacks is zero. ``missing``: the project without a limit, by
    resource; nothing fits then (a reserve raises LimitNotSet).
    """
    request = {key: enforcement.TOO_MUCH for some in keys.values() for key in some}
    overs: dict[ResourceKey, list[Over]] = {}
    for over in enforcement.find_refusals(path[0], constraints, counters, request, missing):
        overs.setdefault(over.key.resource_key, []).append(over)
    fits = dict.fromkeys(keys, Headroom(None))
    for resource, counted in keys.items():
        found = [over for key in counted for over in overs.get(key, ())]
        # Without limits and usage, every amount fits: MAX_AMOUNT is the largest of a reserve.
        if any(over.scope != "counter" or over.used or over.reserved for over in found):
            over = enforcement.binding(found, path)
            fits[resource] = Headroom.bounded_by(over, enforcement.room(over))
    return fits


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


def how_many(bundle: Mapping[ResourceKey, int], headrooms: Mapping[ResourceKey, Headroom]) -> Bundles:
    """The largest n such that a reserve of n times ``bundle`` would be granted.

    ``bundle`` is what one adds to each counter (at least 1), and ``headrooms`` what is left there. Where nothing limits
    a resource, n times its amount is at most MAX_AMOUNT, the largest amount of a reserve. Other reserves may take the
    amounts before the caller does.
    """
    counts = {}
    for key, amount in sorted(bundle.items()):
        fits = headrooms[key].fits
        counts[key] = (MAX_AMOUNT if fits is None else fits) // amount
    key = min(counts, key=counts.__getitem__)
    return Bundles(counts[key], key.resource, headrooms[key])
