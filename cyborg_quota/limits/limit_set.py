# SPDX-License-Identifier: Apache-2.0
"""All limits of a configuration, in memory: a limit tree, and the enforcement model that applies it. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.limits.models.base import EnforcementModel
from cyborg_quota.limits.models.flat import Flat
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import TOTAL, UNLIMITED, Constraint, LimitOverride, UsageKey


@dataclasses.dataclass(frozen=True, slots=True)
class LimitSet:
    """Gives the constraints of a charge, as the limit driver ``database`` does.

    ``missing_is_unlimited``: whether a resource for which no limit is set is unlimited ([limits] missing).
    ``overrides``, in the order in which they were made, apply only to the result of ``at`` and to ``steps``.
    ``totals``: the total limits over all projects, by resource.
    """

    tree: LimitTree
    model: EnforcementModel
    missing_is_unlimited: bool
    overrides: Sequence[LimitOverride] = ()
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_every_project(cls, limits: Mapping[str, int]) -> LimitSet:
        """The same limits for each project, without a tree: the limit drivers ``config`` and ``noop``."""
        tree = LimitTree(dict(limits), {}, {}, InitialLimits(child=None, root=None))
        return cls(tree, Flat(), missing_is_unlimited=True)

    def at(self, moment: datetime.datetime) -> LimitSet:
        """The limits that apply at ``moment`` (naive UTC), as a set without overrides."""
        return dataclasses.replace(self, tree=Timeline(self.tree, self.overrides).at(moment), overrides=())

    def boundaries(self, begin: datetime.datetime) -> list[datetime.datetime]:
        """``begin``, and every later moment at which an override begins or ends; sorted."""
        return Timeline(self.tree, self.overrides, begin).boundaries()

    def limit(self, project_id: str, resource: str) -> int | None:
        """The limit of a project, or of all (TOTAL). None: none is set, so that every request is refused."""
        if project_id == TOTAL:
            return self.totals.get(resource, UNLIMITED)
        limit = self.tree.limit(project_id, resource)
        return UNLIMITED if limit is None and self.missing_is_unlimited else limit

    def constraints(self, project_id: str, resource: str) -> tuple[list[str], list[Constraint]]:
        """The project with its ancestors, leaf first, then TOTAL; and the constraints of a charge.

        If no limit is set for one of them, the charge is refused: a constraint of 0 represents that.
        """
        path = self.tree.path(project_id)
        total = [Constraint(TOTAL, resource, self.totals[resource], "total")] if resource in self.totals else []
        limits = {UsageKey(name, resource): self.limit(name, resource) for name in path}
        known = {key: limit for key, limit in limits.items() if limit is not None}
        missing = [Constraint(key.project_id, resource, 0, "subtree") for key, limit in limits.items() if limit is None]
        return [*path, TOTAL], [*(missing or self.model.constraints(path, known)), *total]
