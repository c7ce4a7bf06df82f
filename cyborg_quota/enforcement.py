# SPDX-License-Identifier: Apache-2.0
"""Compares a request with the constraints. Pure: the caller reads the counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from cyborg_quota.types import MAX_AMOUNT, UNLIMITED, Constraint, Counters, Over, ResourceKey, Scope, UsageKey

Key = TypeVar("Key", str, ResourceKey)


def find_violations(
    project_id: str,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
    request: Mapping[ResourceKey, int],
) -> list[Over]:
    """The constraints that ``request``, charged to ``project_id``, would violate; sorted.

    The usage of a descendant does not count against a constraint of scope ``project``.
    """
    violations = []
    for constraint in constraints:
        key = constraint.key
        amount = request.get(key.resource_key, 0)
        if constraint.limit == UNLIMITED or not amount:
            continue
        if constraint.scope == "project" and constraint.project_id != project_id:
            continue
        now = counters.get(key, Counters())
        held = now.used + now.reserved if constraint.scope == "project" else now.subtree
        if held + amount > constraint.limit:
            violations.append(
                Over(
                    project_id=constraint.project_id,
                    resource=constraint.resource,
                    scope=constraint.scope,
                    limit=constraint.limit,
                    requested=amount,
                    used=now.used,
                    reserved=now.reserved,
                    subtree=None if constraint.scope == "project" else now.subtree,
                    pod=constraint.pod or None,
                )
            )
    return sorted(violations, key=lambda over: (over, over.pod or ""))


def room(
    project_id: str, constraints: Iterable[Constraint], counters: Mapping[UsageKey, Counters]
) -> dict[ResourceKey, int]:
    """The amount that these constraints permit to ``project_id``, by resource; negative where usage exceeds a limit.

    A resource that is missing is not limited.
    """
    left: dict[ResourceKey, int] = {}
    for one in constraints:
        if one.limit == UNLIMITED or (one.scope == "project" and one.project_id != project_id):
            continue
        now = counters.get(one.key, Counters())
        free = one.limit - (now.used + now.reserved if one.scope == "project" else now.subtree)
        key = one.key.resource_key
        left[key] = min(free, left.get(key, free))
    return left


def overflowing(counters: Mapping[Key, Counters], request: Mapping[Key, int]) -> list[Key]:
    """The resources whose counter would overflow. ``counters`` are those of the charged project, by resource."""
    return sorted(
        resource
        for resource, amount in request.items()
        if (now := counters.get(resource, Counters())).used + now.reserved + amount > MAX_AMOUNT
    )


def limits_by_scope(constraints: Iterable[Constraint]) -> dict[tuple[UsageKey, Scope], int]:
    """The lowest limit by usage row and scope. A key that is missing is unlimited."""
    lowest: dict[tuple[UsageKey, Scope], int] = {}
    for constraint in constraints:
        if constraint.limit != UNLIMITED:
            key = (constraint.key, constraint.scope)
            lowest[key] = min(constraint.limit, lowest.get(key, constraint.limit))
    return lowest


def find_bounds(
    project_id: str,
    counters: Mapping[UsageKey, Counters],
    request: Mapping[str, int],
    *,
    missing: Mapping[str, str],
) -> list[Over]:
    """The bounds beside the constraints that would refuse ``request``: no limit, or the width of a counter.

    ``missing``: the project without a limit, by resource. ``request``: over all pods.
    """
    bounds = []
    for resource, amount in request.items():
        own = counters.get(UsageKey(project_id, resource), Counters())
        if resource in missing:
            now = counters.get(UsageKey(missing[resource], resource), Counters())
            bounds.append(Over(missing[resource], resource, "project", None, amount, now.used, now.reserved))
            continue
        if overflowing({resource: own}, {resource: amount}):
            bounds.append(Over(project_id, resource, "counter", MAX_AMOUNT, amount, own.used, own.reserved))
    return bounds


def redact(violations: Iterable[Over], path: Sequence[str]) -> list[Over]:
    """What the users of the project ``path[0]`` may see of these violations, which have all counters (I8).

    Of each resource only the violation that determines what fits: otherwise, the amount from which on another one
    appears reveals what its project holds. It is the one that the headroom names. Of another project, it has no
    counters; of ``path[0]``, it has no total of the subtree, which shows the usage of other projects.
    """
    distance = {project_id: index for index, project_id in enumerate(path)}

    def order(over: Over) -> tuple[int, bool, bool, int, str, str]:
        nearness = distance.get(over.project_id, len(path))
        # (Of equal bounds, limits come first, as in headroom.py.)
        return _room(over), over.pod is not None, over.scope == "counter", nearness, over.scope, over.pod or ""

    binding: dict[str, Over] = {}
    for over in sorted(violations, key=order):
        binding.setdefault(over.resource, over)
    return sorted(
        dataclasses.replace(over, subtree=None)
        if over.project_id == path[0]
        else dataclasses.replace(over, used=None, reserved=None, subtree=None)
        for over in binding.values()
    )


def _room(over: Over) -> int:
    """The largest amount that the violated constraint would permit."""
    held = (over.used or 0) + (over.reserved or 0) if over.subtree is None else over.subtree
    return max(0, (over.limit or 0) - held)


def hide_pods(violations: Iterable[Over]) -> list[Over]:
    """The violations without the names of pods."""
    return [over if over.pod is None else dataclasses.replace(over, pod="") for over in violations]
