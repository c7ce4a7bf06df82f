# SPDX-License-Identifier: Apache-2.0
"""Which constraints a request would pass. Pure: the figures come from the caller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cyborg_quota.types import MAX_AMOUNT, UNLIMITED, Claim, Constraint, Counters, Over, Scope


def requested(claims: Iterable[Claim]) -> dict[str, int]:
    """What must fit, per resource: the sum of the positive deltas. A negative one frees nothing before its commit."""
    total: dict[str, int] = {}
    for claim in claims:
        for resource, delta in claim.deltas.items():
            if delta > 0:
                total[resource] = total.get(resource, 0) + delta
    return total


def find_violations(
    project_id: str,
    constraints: Iterable[Constraint],
    figures: Mapping[tuple[str, str], Counters],
    request: Mapping[str, int],
) -> list[Over]:
    """The constraints that ``project_id`` would pass with ``request``, sorted.

    ``figures`` is keyed by (project_id, resource). A constraint of scope ``project`` on an ancestor is not touched
    by what a descendant holds.
    """
    violations = []
    for constraint in constraints:
        amount = request.get(constraint.resource, 0)
        if constraint.limit == UNLIMITED or amount <= 0:
            continue
        if constraint.scope == "project" and constraint.project_id != project_id:
            continue
        now = figures.get((constraint.project_id, constraint.resource), Counters())
        held = now.subtree if constraint.scope == "subtree" else now.used + now.reserved
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
                    subtree=now.subtree if constraint.scope == "subtree" else None,
                )
            )
    return sorted(violations)


def overflowing(figures: Mapping[str, Counters], request: Mapping[str, int]) -> list[str]:
    """The resources whose counter could not hold the sum; ``figures`` is the charged project's, by resource."""
    return sorted(
        resource
        for resource, amount in request.items()
        if (now := figures.get(resource, Counters())).used + now.reserved + amount > MAX_AMOUNT
    )


def limits_by_scope(constraints: Iterable[Constraint]) -> dict[tuple[str, str, Scope], int]:
    """The tightest limit by (project_id, resource, scope); what is missing is unlimited."""
    tightest: dict[tuple[str, str, Scope], int] = {}
    for constraint in constraints:
        if constraint.limit != UNLIMITED:
            key = (constraint.project_id, constraint.resource, constraint.scope)
            tightest[key] = min(constraint.limit, tightest.get(key, constraint.limit))
    return tightest


def redact(violations: Iterable[Over], project_id: str) -> list[Over]:
    """The same refusals as somebody of ``project_id`` may see them.

    Of an ancestor its limit, but not its usage; of the own subtree not the total, which tells what others hold.
    """
    return [
        dataclasses.replace(over, subtree=None)
        if over.project_id == project_id
        else dataclasses.replace(over, used=None, reserved=None, subtree=None)
        for over in violations
    ]
