# SPDX-License-Identifier: Apache-2.0
"""The enforcement model ``strict_two_level``, as in Keystone: no limit of a child exceeds that of its parent.

The sum of the limits of the children may exceed it (overbooking).
"""

from __future__ import annotations

from collections.abc import Collection

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, ResourceKey

_LEVELS = 2


class StrictTwoLevel(base.EnforcementModel):
    """At most two levels. The usage of a parent and its children together is limited by the limit of the parent."""

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[str]:
        problems = []
        pairs = set()
        for project_id in sorted(projects):
            if len(tree.path(project_id)) - 1 + tree.height(project_id) > _LEVELS:
                problems.append(f"{project_id} cannot be there: the enforcement model strict_two_level has two levels")
            parent_id = tree.parents.get(project_id)
            if parent_id is not None:
                pairs.add((parent_id, project_id))
            pairs |= {(project_id, child) for child in tree.children_of.get(project_id, ())}
        for parent, child in sorted(pairs):
            for key in sorted(keys):
                parent_limit, limit = tree.limit(parent, *key), tree.limit(child, *key)
                if parent_limit is None or parent_limit == UNLIMITED or limit is None:
                    continue
                if limit == UNLIMITED or limit > parent_limit:
                    problems.append(
                        f"the limit of {child} in {key} would be {base.format_limit(limit)}; the limit "
                        f"of its parent {parent} is {parent_limit}"
                    )
        return problems
