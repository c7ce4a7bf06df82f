# SPDX-License-Identifier: Apache-2.0
"""CERN's rules (nested quota models, 2017): no overbooking, so that a limit that is shown is a limit that is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import base
from cyborg_quota.types import UNLIMITED, Constraint


class StrictHierarchy(base.EnforcementModel):
    """The limits of the children never sum up to more than the parent's, from whichever side it is changed.

    An unlimited child below a finite parent would be overbooked, and is refused. Usage is not looked at: a limit may
    be set below it, and then nothing new can be created.
    """

    def problems(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> list[str]:
        parents = set(projects) | {parent for one in projects if (parent := tree.parents.get(one)) is not None}
        return [
            problem
            for parent in sorted(parents)
            for resource in sorted(resources)
            for problem in self._of_family(tree, parent, resource)
        ]

    def _of_family(self, tree: LimitTree, parent: str, resource: str) -> list[str]:
        children = tree.children_of.get(parent, ())
        most = tree.limit(parent, resource)
        if not children or most is None or most == UNLIMITED:
            return []
        limits = {child: tree.limit(child, resource) for child in children}
        problems = [
            f"{child} cannot be unlimited in {resource} below {parent}, whose limit is {most}"
            for child, limit in limits.items()
            if limit == UNLIMITED
        ]
        total = sum(limit for limit in limits.values() if limit is not None and limit != UNLIMITED)
        if total > most:
            problems.append(
                f"the limits in {resource} of the children of {parent} would sum up to {total}, and its own is {most}"
            )
        return problems

    def constraints(self, path: Sequence[str], limits: Mapping[tuple[str, str], int]) -> list[Constraint]:
        return base.along(path, limits)
