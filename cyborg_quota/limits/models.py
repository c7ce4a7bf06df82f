# SPDX-License-Identifier: Apache-2.0
"""Enforcement models: which limits may be set in a project tree, and which usage they limit. Loaded by stevedore."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import UNLIMITED, Constraint, ResourceKey, Scope, UsageKey
from cyborg_quota.types.limits import Violation

_LEVELS: Final = 2
"""The number of levels of strict_two_level."""

_UNLIMITED: Final = "{child} cannot be unlimited in {key}: the limit of its parent {parent} is {limit}"
_SUM: Final = (
    "the limits in {key} of the children of {parent} would sum up to {total}; the limit of {parent} is {limit}"
)
_EXCEEDED: Final = "the limit of {child} in {key} would be {given}; the limit of its parent {parent} is {limit}"
_TOO_DEEP: Final = "{parent} cannot be there: the enforcement model strict_two_level has two levels"


class EnforcementModel(abc.ABC):
    """Decides which limits may be set, and their scope. Pure. Entry points: ``cyborg_quota.policies``."""

    bounds_subtree: bool = True
    """Whether the limit of a project includes the usage of its descendants."""

    @abc.abstractmethod
    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        """The violations of the model in ``tree`` at these projects. ``keys``: of these limits.

        A violation that involves several projects is listed at each of them. Other projects are not checked: limits
        that another model permitted there must not prevent a change here. When the limit of one project is set,
        ``tree`` contains only that project, its ancestors, siblings and descendants.
        """

    def constraints(self, path: Sequence[str], limits: Mapping[UsageKey, int]) -> list[Constraint]:
        """The constraints of a charge to ``path[0]``. A limit that is missing is unlimited.

        Each limit of a project on the path has one of scope ``subtree``, unless it is unlimited; if the model does not
        bound subtrees, only that of ``path[0]``, of scope ``project``.
        """
        bounded = path if self.bounds_subtree else path[:1]
        scope: Scope = "subtree" if self.bounds_subtree else "project"
        return [
            Constraint.of(key, limit, scope)
            for key, limit in sorted(limits.items())
            if key.project_id in bounded and limit != UNLIMITED
        ]


class Flat(EnforcementModel):
    """Each project is limited alone, whatever its position in the tree: without the usage of its descendants."""

    bounds_subtree = False

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        return []


class StrictHierarchy(EnforcementModel):
    """No overbooking of the limits of children (source: CERN, nested quota models, 2017).

    The sum of the limits of the children must not exceed the limit of their parent, whichever limit is changed. What
    the parent itself holds is not in the sum: a parent with the limit 10 that holds 5 leaves 5 to its children.

    An unlimited child of a limited parent would be overbooking, and is refused. Usage is not checked: a limit may be
    set below the present usage; then nothing more can be reserved.
    """

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        parents = set(projects) | {
            parent for project_id in projects if (parent := tree.parents.get(project_id)) is not None
        }
        problems = []
        for parent, key in itertools.product(sorted(parents), sorted(keys)):
            children, parent_limit = tree.children_of.get(parent, ()), tree.limit(parent, *key)
            if not children or parent_limit is None or parent_limit == UNLIMITED:
                continue
            limits = {child: tree.limit(child, *key) for child in children}
            figures = {"key": key, "limit": parent_limit}
            problems += [
                Violation(_UNLIMITED, parent, child, figures) for child in children if limits[child] == UNLIMITED
            ]
            total = sum(limit for limit in limits.values() if limit is not None and limit != UNLIMITED)
            if total > parent_limit:
                problems.append(Violation(_SUM, parent, None, {**figures, "total": total}))
        return problems


class StrictTwoLevel(EnforcementModel):
    """As in Keystone: at most two levels, and no limit of a child exceeds that of its parent; their sum may exceed it.

    The usage of a parent and its children together is limited by the limit of the parent.
    """

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        problems = []
        pairs = set()
        for project_id in sorted(projects):
            if len(tree.path(project_id)) - 1 + tree.height(project_id) > _LEVELS:
                problems.append(Violation(_TOO_DEEP, project_id))
            parent_id = tree.parents.get(project_id)
            if parent_id is not None:
                pairs.add((parent_id, project_id))
            pairs |= {(project_id, child) for child in tree.children_of.get(project_id, ())}
        for (parent, child), key in itertools.product(sorted(pairs), sorted(keys)):
            parent_limit, limit = tree.limit(parent, *key), tree.limit(child, *key)
            if parent_limit is None or parent_limit == UNLIMITED or limit is None:
                continue
            if limit == UNLIMITED or limit > parent_limit:
                figures = {"key": key, "limit": parent_limit, "given": "unlimited" if limit == UNLIMITED else limit}
                problems.append(Violation(_EXCEEDED, parent, child, figures))
        return problems
