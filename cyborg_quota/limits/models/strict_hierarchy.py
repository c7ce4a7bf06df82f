# SPDX-License-Identifier: Apache-2.0
"""The enforcement model ``strict_hierarchy``: no overbooking, so that each project can use all of its limit.

Source: CERN, nested quota models, 2017.
"""

from __future__ import annotations

from collections.abc import Collection

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, ResourceKey


class StrictHierarchy(base.EnforcementModel):
    """The sum of the limits of the children must not exceed the limit of their parent, whichever limit is changed.

    An unlimited child of a limited parent would be overbooking, and is refused. Usage is not checked: a limit may be
    set below the present usage; then nothing more can be reserved.
    """

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[str]:
        parents = set(projects) | {
            parent for project_id in projects if (parent := tree.parents.get(project_id)) is not None
        }
        return [
            problem
            for parent in sorted(parents)
            for key in sorted(keys)
            for problem in self._problems_of_children(tree, parent, key)
        ]

    def _problems_of_children(self, tree: LimitTree, parent: str, key: ResourceKey) -> list[str]:
        children = tree.children_of.get(parent, ())
        parent_limit = tree.limit(parent, *key)
        if not children or parent_limit is None or parent_limit == UNLIMITED:
            return []
        limits = {child: tree.limit(child, *key) for child in children}
        problems = [
            f"{child} cannot be unlimited in {key}: the limit of its parent {parent} is {parent_limit}"
            for child, limit in limits.items()
            if limit == UNLIMITED
        ]
        total = sum(limit for limit in limits.values() if limit is not None and limit != UNLIMITED)
        if total > parent_limit:
            problems.append(
                f"the limits in {key} of the children of {parent} would sum up to {total}; the limit of "
                f"{parent} is {parent_limit}"
            )
        return problems
