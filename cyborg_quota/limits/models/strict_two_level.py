# SPDX-License-Identifier: Apache-2.0
"""Keystone's strict_two_level: each child is compared with the parent, never their sum; overbooking is allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, Constraint

_LEVELS = 2


class StrictTwoLevel(base.EnforcementModel):
    """Two levels; no child's limit is larger than its parent's. What all hold together stays within the parent's."""

    def problems(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> list[str]:
        problems = []
        pairs = set()
        for project_id in sorted(projects):
            if len(tree.path(project_id)) - 1 + tree.height(project_id) > _LEVELS:
                problems.append(f"{project_id} cannot lie there, for the policy strict_two_level has two levels")
            parent_id = tree.parents.get(project_id)
            if parent_id is not None:
                pairs.add((parent_id, project_id))
            pairs |= {(project_id, child) for child in tree.children_of.get(project_id, ())}
        for parent, child in sorted(pairs):
            for resource in sorted(resources):
                most, limit = tree.limit(parent, resource), tree.limit(child, resource)
                if most is None or most == UNLIMITED or limit is None:
                    continue
                if limit == UNLIMITED or limit > most:
                    problems.append(
                        f"the limit of {child} in {resource} would be {base.shown(limit)}, and that of its parent "
                        f"{parent} is {most}"
                    )
        return problems

    def constraints(self, path: Sequence[str], limits: Mapping[tuple[str, str], int]) -> list[Constraint]:
        return base.along(path, limits)
