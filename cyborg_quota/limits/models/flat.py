# SPDX-License-Identifier: Apache-2.0
"""The enforcement model ``flat``: each project is limited alone, whatever its position in the tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, Constraint


class Flat(base.EnforcementModel):
    """Any limit may be set. It limits the usage of the project without its descendants."""

    bounds_subtree = False

    def problems(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> list[str]:
        return []

    def constraints(self, path: Sequence[str], limits: Mapping[tuple[str, str], int]) -> list[Constraint]:
        return [
            Constraint(project_id, resource, limit)
            for (project_id, resource), limit in sorted(limits.items())
            if project_id == path[0] and limit != UNLIMITED
        ]
