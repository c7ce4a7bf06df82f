# SPDX-License-Identifier: Apache-2.0
"""The enforcement model ``flat``: each project is limited alone, whatever its position in the tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, Constraint, ResourceKey, UsageKey


class Flat(base.EnforcementModel):
    """Any limit may be set. It limits the usage of the project without its descendants."""

    bounds_subtree = False

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[str]:
        return []

    def constraints(self, path: Sequence[str], limits: Mapping[UsageKey, int]) -> list[Constraint]:
        return [
            Constraint.of(key, limit)
            for key, limit in sorted(limits.items())
            if key.project_id == path[0] and limit != UNLIMITED
        ]
