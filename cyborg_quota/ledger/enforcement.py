# SPDX-License-Identifier: Apache-2.0
"""Compares a request with the constraints, and computes what is left (the headroom). Pure: the caller reads counters.

The headroom of a project is the largest amount that a reserve made now would be granted. A reserve of one resource
makes one reservation, so that each condition is an upper bound of its amount. Where several bounds are equal, the one
that the error of a larger reserve would name is reported: limits first, nearest to the project first; then the width of
the counter.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from cyborg_quota import units
from cyborg_quota.types import (
    HIDDEN_LIMITS,
    MAX_AMOUNT,
    MAX_COUNTED,
    TOTAL,
    UNLIMITED,
    Constraint,
    Counters,
    Headroom,
    Over,
    ResourceKey,
    UsageKey,
    grouped,
)
from cyborg_quota.types.capacity import FreeInventories

TOO_MUCH: Final = 2**63
"""An amount that every limit refuses."""


def find_violations(
    project_id: str,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
    request: Mapping[ResourceKey, int],
    path: Sequence[str] = (),
    *,
    freed: Mapping[UsageKey, int] = types.MappingProxyType({}),
) -> list[Over]:
    """The constraints that ``request``, charged to ``project_id``, would violate; sorted.

    The usage of a descendant does not count against a constraint of scope ``project``. ``path``: the project and its
    ancestors, whose minimums may cover the request. ``freed``: by how much a transfer lowers each row at its sender.
    """
    violations = []
    for constraint in constraints:
        key, scope = constraint.key, constraint.scope
        amount, is_own = request.get(key.resource_key, 0), scope in ("project", "counter")
        if constraint.limit == UNLIMITED or not amount or (is_own and key.project_id != project_id):
            continue
        counts_minimums = scope in ("subtree", "total")
        kept = _kept(path, counters, key, freed) if counts_minimums else 0
        now = counters.get(key, Counters())
        usage = now.used + now.reserved if is_own else now.counted if counts_minimums else now.subtree
        if amount > max(0, constraint.limit - usage) + kept:
            violations.append(Over.of(constraint, amount, now, project_id, kept))
    return sorted(violations, key=lambda over: (over, over.key))


def _kept(
    path: Sequence[str], counters: Mapping[UsageKey, Counters], key: UsageKey, freed: Mapping[UsageKey, int]
) -> int:
    """How much ``path[0]`` can be charged before the row of ``key`` grows.

    That is what a transfer frees in this row, and what the minimums of the rows below it absorb.
    """
    below = path[: path.index(key.project_id)] if key.project_id in path else path
    keys = [key._replace(project_id=project_id) for project_id in below]
    below_it = (counters.get(row_key, Counters()).kept(freed.get(row_key, 0)) for row_key in keys)
    return freed.get(key, 0) + sum(below_it)


def widths(
    path: Sequence[str], keys: Collection[ResourceKey], counters: Mapping[UsageKey, Counters]
) -> list[Constraint]:
    """What bounds a charge to ``path[0]`` besides limits: the width of its counter, and those of the sums on its path.

    A row whose sum is at least MAX_AMOUNT below its maximum cannot refuse a charge, and is left out.
    """
    sums = [
        Constraint.of(UsageKey(name, *key), MAX_COUNTED, "total" if name == TOTAL else "subtree")
        for name in (*path, TOTAL)
        for key in keys
    ]
    near = (width for width in sums if counters.get(width.key, Counters()).counted > MAX_COUNTED - MAX_AMOUNT)
    return [*near, *(Constraint.of(UsageKey(path[0], *key), MAX_AMOUNT, "counter") for key in keys)]


def find_refusals(
    path: Sequence[str],
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
    request: Mapping[ResourceKey, int],
    missing: Mapping[str, str],
) -> list[Over]:
    """All that would refuse ``request``: also a limit that is not set, and the width of a counter or sum; sorted.

    ``path``: the project to charge, and its ancestors. ``missing``: the project without a limit, by resource.
    """
    project_id = path[0]
    bounds = [*constraints, *widths(path, [key for key in request if key.is_whole], counters)]
    overs = find_violations(project_id, bounds, counters, request, path)
    overs = [over for over in overs if over.resource not in missing]
    for resource, owner in missing.items():
        if amount := request.get(ResourceKey(resource), 0):
            now = counters.get(UsageKey(owner, resource), Counters())
            overs.append(Over(owner, resource, "project", None, amount, now.used, now.reserved))
    return sorted(overs)


def binding(violations: Iterable[Over], path: Sequence[str]) -> Over:
    """The violation that determines what fits into the project ``path[0]``: that of the constraint with the least room.

    Where several leave the same, it is the one nearest to the project; that of the whole resource first; a limit,
    then the width of a counter.
    """
    distance = {project_id: index for index, project_id in enumerate(path)}
    return min(
        violations,
        key=lambda over: (
            over.room,
            not over.key.is_whole,
            over.scope == "counter",
            distance.get(over.project_id, len(path)),
            over.scope,
            over.key,
        ),
    )


def redact(violations: Iterable[Over], path: Sequence[str]) -> list[Over]:
    """What the users of the project ``path[0]`` may see of these violations, which have all counters (I8).

    For each resource, they see one violation: the one that determines what fits, which the headroom names too. Another
    one would reveal what its project holds, by the smallest amount at which it appears. See Over.seen_by.
    """
    by_resource = grouped(violations, lambda over: over.resource).values()
    return sorted(binding(overs, path).seen_by(path[0]) for overs in by_resource)


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
    request = {key: TOO_MUCH for counted in keys.values() for key in counted}
    refusals = find_refusals(path, constraints, counters, request, missing)
    overs = grouped(refusals, lambda over: over.key.resource_key)
    fits = dict.fromkeys(keys, Headroom(None))
    for resource, counted in keys.items():
        resource_overs = [over for key in counted for over in overs.get(key, ())]
        # Without limits and usage, every amount fits: MAX_AMOUNT is the largest of a reserve.
        if any(over.scope != "counter" or over.used or over.reserved for over in resource_overs):
            over = binding(resource_overs, path)
            owner = None if over.scope == "total" else over.project_id
            limit = None if over.scope in HIDDEN_LIMITS else over.limit
            fits[resource] = Headroom(over.room, owner, over.scope, limit, pod=over.pod)
    return fits


def at_provider(quota: Headroom, inventories: Iterable[FreeInventories], provider: str) -> Headroom:
    """The largest amount that ``quota`` and the inventories of one provider permit together.

    ``inventories``: those of the resource at ``provider``; if it is ANY, those of all providers that can host.
    """
    at_most = MAX_AMOUNT if quota.fits is None else quota.fits
    fits = total = 0
    for inventory in inventories:
        permitted = units.largest_permitted(
            min(at_most, inventory.free),
            min_unit=inventory.min_unit,
            max_unit=inventory.max_unit,
            step_size=inventory.step_size,
        )
        fits = max(fits, permitted)
        total += max(0, inventory.free) * inventory.number
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
