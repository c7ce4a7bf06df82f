# SPDX-License-Identifier: Apache-2.0
"""Checks limits at every moment at which an override begins or ends, now or in the future. Pure.

Between two such moments nothing changes, so no other moment needs a check.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models.base import EnforcementModel
from cyborg_quota.types import LimitOverride


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
        limits = dict(self.tree.project_limits)
        for one in self.overrides:
            if one.starts_at <= moment < one.until:
                limits[one.project_id, one.resource] = one.limit
        return dataclasses.replace(self.tree, project_limits=limits)

    def only(self, resources: Collection[str]) -> Timeline:
        """The same, with the overrides of these resources only."""
        return dataclasses.replace(self, overrides=[one for one in self.overrides if one.resource in resources])

    @property
    def resources(self) -> list[str]:
        """Every resource for which a limit or an override is set, sorted."""
        return sorted({*self.tree.resources, *(one.resource for one in self.overrides)})

    @property
    def names(self) -> list[str]:
        """The resources, and the scoped names of the limits per pod."""
        return sorted({*self.resources, *(name for _, name in self.tree.project_limits)})

    def boundaries(self) -> list[datetime.datetime]:
        """Now, and every later moment at which an override begins or ends; sorted."""
        if self.now is None:
            return []
        moments = {self.now}
        for one in self.overrides:
            moments.update(moment for moment in (one.starts_at, one.until) if moment > self.now)
        return sorted(moments)


def problems(
    model: EnforcementModel, timeline: Timeline, projects: Collection[str], resources: Collection[str]
) -> list[str]:
    """The violations at these projects: of the limits without overrides, and at each boundary. Each is listed once.

    At a boundary, only those projects are checked to which a project with an active override is related: the others
    have the limits that are checked without overrides.
    """
    found = model.problems(timeline.tree, projects, resources)
    seen = set(found)
    relevant = timeline.only(resources)
    for moment in relevant.boundaries() if relevant.overrides else ():
        active = {one.project_id for one in relevant.overrides if one.starts_at <= moment < one.until}
        related = _related(timeline.tree, active).intersection(projects)
        for problem in model.problems(relevant.at(moment), sorted(related), resources) if related else ():
            if problem not in seen:
                seen.add(problem)
                found.append(problem if moment == timeline.now else f"{problem} (from {shown(moment)})")
    return found


def _related(tree: LimitTree, active: Iterable[str]) -> set[str]:
    """These projects with their ancestors, descendants and siblings: their limits may depend on each other."""
    related: set[str] = set()
    for project_id in active:
        path = tree.path(project_id)
        related.update(path, tree.children_of.get(path[1], ()) if len(path) > 1 else ())
        level = [project_id]
        while level:
            level = [child for parent in level for child in tree.children_of.get(parent, ())]
            related.update(level)
    return related


def shown(moment: datetime.datetime) -> str:
    """A time (naive UTC) in a message: 2026-12-01T08:00Z, with seconds only if there are some."""
    precision = "auto" if moment.second or moment.microsecond else "minutes"
    return f"{moment.isoformat(timespec=precision)}Z"
