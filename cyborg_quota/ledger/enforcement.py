# SPDX-License-Identifier: Apache-2.0
"""Compares a request with the constraints: the one computation of what is left. Pure: the caller reads the counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota.types import MAX_AMOUNT, UNLIMITED, Constraint, Counters, Over, ResourceKey, UsageKey

TOO_MUCH: Final = 2**63
"""An amount that every limit refuses."""


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
        key, scope, limit = constraint.key, constraint.scope, constraint.limit
        amount, is_own = request.get(key.resource_key, 0), scope in ("project", "counter")
        if limit == UNLIMITED or not amount or (is_own and key.project_id != project_id):
            continue
        now = counters.get(key, Counters())
        if (now.used + now.reserved if is_own else now.subtree) + amount > limit:
            violations.append(Over.of(constraint, amount, now, None if is_own else now.subtree))
    return sorted(violations, key=lambda over: (over, over.key))


def widths(project_id: str, keys: Iterable[ResourceKey]) -> list[Constraint]:
    """The width of the counters of a project, which bounds what is charged to it as a limit does."""
    return [Constraint.of(UsageKey(project_id, *key), MAX_AMOUNT, "counter") for key in keys]


def find_refusals(
    project_id: str,
    constraints: Iterable[Constraint],
    counters: Mapping[UsageKey, Counters],
    request: Mapping[ResourceKey, int],
    missing: Mapping[str, str],
) -> list[Over]:
    """All that would refuse ``request``: also a limit that is not set, and the width of a counter; sorted.

    ``missing``: the project without a limit, by resource.
    """
    bounds = [*constraints, *widths(project_id, (key for key in request if key.is_whole))]
    found = find_violations(project_id, bounds, counters, request)
    found = [over for over in found if over.resource not in missing]
    for resource, owner in missing.items():
        if amount := request.get(ResourceKey(resource), 0):
            now = counters.get(UsageKey(owner, resource), Counters())
            found.append(Over(owner, resource, "project", None, amount, now.used, now.reserved))
    return sorted(found)


def binding(violations: Iterable[Over], path: Sequence[str]) -> Over:
    """The violation that determines what fits into the project ``path[0]``: that of the constraint with the least room.

    Where several leave the same, it is the one nearest to the project; that of the whole resource first; a limit,
    then the width of a counter.
    """
    distance = {project_id: index for index, project_id in enumerate(path)}

    def order(over: Over) -> tuple[int, bool, bool, int, str, UsageKey]:
        nearness = distance.get(over.project_id, len(path))
        return room(over), not over.key.is_whole, over.scope == "counter", nearness, over.scope, over.key

    return min(violations, key=order)


def redact(violations: Iterable[Over], path: Sequence[str]) -> list[Over]:
    """What the users of the project ``path[0]`` may see of these violations, which have all counters (I8).

    Of each resource only the violation that determines what fits: otherwise, the amount from which on another one
    appears reveals what its project holds. It is the one that the headroom names. Of another project, it has no
    counters; of ``path[0]``, it has no total of the subtree, which shows the usage of other projects.
    """
    by_resource: dict[str, list[Over]] = {}
    for over in violations:
        by_resource.setdefault(over.resource, []).append(over)
    return sorted(
        dataclasses.replace(over, subtree=None)
        if over.project_id == path[0]
        else dataclasses.replace(over, used=None, reserved=None, subtree=None)
        for over in (binding(some, path) for some in by_resource.values())
    )


def room(over: Over) -> int:
    """The largest amount that the violated constraint would permit."""
    held = (over.used or 0) + (over.reserved or 0) if over.subtree is None else over.subtree
    return max(0, (over.limit or 0) - held)
