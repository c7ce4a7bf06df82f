# SPDX-License-Identifier: Apache-2.0
"""Limits over time: at every moment at which an override begins or ends, now or in the future. Pure.

Between two such moments nothing changes, so no other moment needs a check.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence

from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree, walk
from cyborg_quota.limits.models import EnforcementModel, Flat
from cyborg_quota.types import TOTAL, UNLIMITED, Constraint, LimitOverride, ResourceKey, UsageKey, grouped
from cyborg_quota.types.limits import Violation, shown


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """Limits now and in the future. ``tree`` has the limits without overrides.

    ``overrides`` are those that have not ended, in the order in which they were made: the last one applies. ``now`` is
    the time of the database, naive UTC; None if there are no overrides.
    """

    tree: LimitTree
    overrides: Sequence[LimitOverride] = ()
    now: datetime.datetime | None = None

    def at(self, moment: datetime.datetime) -> LimitTree:
        """The limits that apply at ``moment``."""
        [(_, tree)] = self.sweep({moment: self.overrides})
        return tree

    def of(self, key: UsageKey) -> Timeline:
        """This timeline with only the overrides and the own limit of this key."""
        own = {key: self.tree.project_limits[key]} if key in self.tree.project_limits else {}
        return dataclasses.replace(
            self,
            tree=dataclasses.replace(self.tree, project_limits=own),
            overrides=[override for override in self.overrides if (override.project_id, override.resource) == key[:2]],
        )

    @property
    def keys(self) -> list[ResourceKey]:
        """The keys for which a limit or an override is set, sorted."""
        limited = {*self.tree.defaults, *(override.resource for override in self.overrides)}
        return sorted({*map(ResourceKey, limited), *(key.resource_key for key in self.tree.project_limits)})

    def by_boundary(self) -> dict[datetime.datetime, list[LimitOverride]]:
        """The overrides that begin or end, by the moment; and those that apply now."""
        changed: dict[datetime.datetime, list[LimitOverride]] = {}
        if self.now is None:
            return changed
        for override in self.overrides:
            for moment in {max(override.starts_at, self.now), override.until}:
                if moment >= self.now:
                    changed.setdefault(moment, []).append(override)
        return changed

    def sweep(
        self, changed: Mapping[datetime.datetime, Sequence[LimitOverride]]
    ) -> Iterator[tuple[datetime.datetime, LimitTree]]:
        """The limits that apply at each of these boundaries, in order: one tree, changed where an override is.

        So each boundary costs what changes there.
        """
        by_key = grouped(self.overrides, lambda override: UsageKey(override.project_id, override.resource))
        before, applying = self.tree.project_limits, dict(self.tree.project_limits)
        tree = dataclasses.replace(self.tree, project_limits=applying)
        for moment in sorted(changed):
            for key in {UsageKey(override.project_id, override.resource) for override in changed[moment]}:
                limits = [override.limit for override in by_key[key] if override.starts_at <= moment < override.until]
                limit = limits[-1] if limits else before.get(key)
                applying.pop(key, None)
                applying.update({} if limit is None else {key: limit})
            yield moment, tree


@dataclasses.dataclass(frozen=True, slots=True)
class LimitSet:
    """Gives the constraints of a charge, as the limit driver ``database`` does.

    ``missing_is_unlimited``: whether a resource for which no limit is set is unlimited ([limits] missing).
    ``overrides`` are not applied.
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


def problems(
    model: EnforcementModel, timeline: Timeline, projects: Collection[str], keys: Collection[ResourceKey]
) -> list[Violation]:
    """The violations at these projects: of the limits without overrides, and at each boundary. Each is listed once.

    At a boundary, only what begins or ends there is checked: other violations are found without overrides, or at an
    earlier boundary. The model lists a violation at each project that it involves. Therefore it is asked about the
    project of such an override; or, if that is not one of ``projects``, about those that are related to it.
    """
    violations = model.problems(timeline.tree, projects, keys)
    seen = set(map(str, violations))
    checked = set(projects)
    family = _related(timeline.tree, checked)
    overrides = [
        override
        for override in timeline.overrides
        if override.project_id in family and ResourceKey(override.resource) in keys
    ]
    relevant = dataclasses.replace(timeline, overrides=overrides)
    changed = relevant.by_boundary()
    for moment, limits in relevant.sweep(changed):
        owners = {override.project_id for override in changed[moment]}
        affected = owners & checked
        if others := owners - checked:
            affected |= _related(timeline.tree, others) & checked
        for problem in model.problems(limits, sorted(affected), keys):
            if str(problem) not in seen:
                seen.add(str(problem))
                when = "" if moment == timeline.now else f" (from {shown(moment)})"
                violations.append(dataclasses.replace(problem, when=when))
    return [
        dataclasses.replace(violation, above=timeline.tree.parents.get(violation.parent or ""))
        for violation in violations
    ]


def _related(tree: LimitTree, projects: Collection[str]) -> set[str]:
    """These projects with their ancestors, descendants and siblings: their limits may depend on each other."""
    related: set[str] = set()
    for path in map(tree.path, projects):
        related.update(path, *(tree.children_of.get(parent_id, ()) for parent_id in path[1:2]))
    related.update(project_id for _, project_id in walk(projects, tree.children_of))
    return related
