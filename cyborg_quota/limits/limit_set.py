# SPDX-License-Identifier: Apache-2.0
"""All limits of a configuration, in memory: a limit tree, and the enforcement model that applies it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.limits.models.base import EnforcementModel
from cyborg_quota.limits.models.flat import Flat
from cyborg_quota.types import UNLIMITED, Constraint


@dataclasses.dataclass(frozen=True, slots=True)
class LimitSet:
    """Gives the constraints of a charge, as the limit driver ``database`` does.

    ``missing_is_unlimited``: whether a resource for which no limit is set is unlimited ([limits] missing).
    """

    tree: LimitTree
    model: EnforcementModel
    missing_is_unlimited: bool

    @classmethod
    def of_every_project(cls, limits: Mapping[str, int]) -> LimitSet:
        """The same limits for each project, without a tree: the limit drivers ``config`` and ``noop``."""
        tree = LimitTree(dict(limits), {}, {}, InitialLimits(child=None, root=None))
        return cls(tree, Flat(), missing_is_unlimited=True)

    def limit(self, project_id: str, resource: str) -> int | None:
        """The limit of a project. None: none is set, so that every request is refused."""
        limit = self.tree.limit(project_id, resource)
        return UNLIMITED if limit is None and self.missing_is_unlimited else limit

    def constraints(self, project_id: str, resource: str) -> tuple[list[str], list[Constraint]]:
        """The project with its ancestors, leaf first, and the constraints of a charge.

        If no limit is set for one of them, the charge is refused: a constraint of 0 represents that.
        """
        path = self.tree.path(project_id)
        limits = {(name, resource): self.limit(name, resource) for name in path}
        known = {key: limit for key, limit in limits.items() if limit is not None}
        missing = [Constraint(*key, 0, "subtree") for key, limit in limits.items() if limit is None]
        return path, missing or self.model.constraints(path, known)
