# SPDX-License-Identifier: Apache-2.0
"""What a policy is."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence

from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.types import UNLIMITED, Constraint


class EnforcementModel(abc.ABC):
    """Decides over limits; pure. Loaded by stevedore from the namespace ``cyborg_quota.policies``."""

    bounds_subtree: bool = True
    """Whether a limit bounds what lies below its project too."""

    @abc.abstractmethod
    def problems(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> list[str]:
        """What ``book`` breaks at these projects, as sentences without a full stop; none where it is allowed.

        Only these are looked at: what another policy allowed elsewhere does not stop a change here. When the limit of
        one project is set, ``book`` has that project, its ancestors, siblings and descendants, and no others.
        """

    @abc.abstractmethod
    def constraints(self, path: Sequence[str], limits: Mapping[tuple[str, str], int]) -> list[Constraint]:
        """What must hold for a charge to ``path[0]``. ``limits`` by (project_id, resource); unlimited ones may miss."""


def shown(limit: int | None) -> str:
    """A limit for a sentence."""
    if limit is None:
        return "no limit"
    return "unlimited" if limit == UNLIMITED else str(limit)


def along(path: Sequence[str], limits: Mapping[tuple[str, str], int]) -> list[Constraint]:
    """At the project and at every ancestor: all that lies below it, itself included, stays within its limit."""
    return [
        Constraint(project_id, resource, limit, "subtree")
        for (project_id, resource), limit in sorted(limits.items())
        if project_id in path and limit != UNLIMITED
    ]
