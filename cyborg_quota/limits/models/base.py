# SPDX-License-Identifier: Apache-2.0
"""The interface of enforcement models."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import UNLIMITED, Constraint, ResourceKey, UsageKey


class EnforcementModel(abc.ABC):
    """Decides which limits may be set, and their scope. Pure. Entry points: ``cyborg_quota.policies``."""

    bounds_subtree: bool = True
    """Whether the limit of a project includes the usage of its descendants."""

    @abc.abstractmethod
    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[str]:
        """The violations of the model in ``tree`` at these projects, as sentences without a full stop.

        ``keys``: of these limits.

        A violation that involves several projects is listed at each of them. Other projects are not checked: limits
        that another model permitted there must not prevent a change here. When the limit of one project is set,
        ``tree`` contains only that project, its ancestors, siblings and descendants.
        """

    def constraints(self, path: Sequence[str], limits: Mapping[UsageKey, int]) -> list[Constraint]:
        """The constraints of a charge to ``path[0]``. A limit that is missing is unlimited.

        By default, each limit of a project on the path has one of scope ``subtree``, unless it is unlimited.
        """
        return [
            Constraint.of(key, limit, "subtree")
            for key, limit in sorted(limits.items())
            if key.project_id in path and limit != UNLIMITED
        ]


def format_limit(limit: int | None) -> str:
    """Format a limit for a message."""
    if limit is None:
        return "no limit"
    return "unlimited" if limit == UNLIMITED else str(limit)
