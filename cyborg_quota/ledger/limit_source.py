# SPDX-License-Identifier: Apache-2.0
"""The interface of limit drivers."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.types import UNLIMITED, ActiveOverride, Constraint, UsageKey

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState


class PathLimits(NamedTuple):
    """What limits a charge of some resources to a project.

    ``missing``: by resource, the project nearest to the leaf that has no limit, where that means a refusal. ``error``
    is then that of a charge.
    """

    constraints: Sequence[Constraint]
    missing: Mapping[str, str] = MappingProxyType({})
    error: exceptions.QuotaError | None = None

    @property
    def by_key(self) -> dict[UsageKey, int]:
        """The limits of the constraints, by usage row."""
        return {constraint.key: constraint.limit for constraint in self.constraints}


class LimitDriver(abc.ABC):
    """Determines the constraints of a charge before its transaction begins. The transaction enforces them.

    Therefore no race can exceed a limit. Only the value of a limit can be stale, for a time that the driver documents.
    Loaded by stevedore from the namespace ``cyborg_quota.limits``; must be thread-safe.

    ``states``: each is of one project (``project_ids[0]``) with its ancestors, and has the limits that are stored in
    the ledger's database, as they are at one moment. Other drivers need only ``project_ids``.
    """

    set_where: ClassVar[str] = "where that driver reads them"
    """Where the limits of this driver are set; the end of the message of LimitsReadOnly."""

    bounds_subtree: bool = False
    """Whether the limit of a project includes the usage of its descendants; for display and notices."""

    is_pure: ClassVar[bool] = False
    """Whether ``bounds`` depends on the states alone, so that its result can be kept with them."""

    tree_source: ClassVar[str | None] = None
    """What keeps the project tree instead of the commands of cyborg_quota (see ``path_of``), in lower case."""

    limit_if_missing: int | None = UNLIMITED
    """What is shown where no limit applies: UNLIMITED, or None if a reserve is then refused."""

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> LimitDriver:
        """Create the driver from ``conf``, without I/O. Raises ConfigurationError."""

    @abc.abstractmethod
    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[PathLimits]:
        """For each state, what limits a charge of these resources.

        Each constraint must be of a project of the state, or of TOTAL. Those of other keys are ignored if
        the charge does not change what they count. If the tree changes before the charge, this method is called again
        with the new path.
        """

    def totals(self, state: PathState) -> list[Constraint]:
        """The total limits, which ``bounds`` has for each state too. ``state`` needs no path."""
        return []

    def limits(self, states: Sequence[PathState], resources: Collection[str]) -> dict[UsageKey, int]:
        """The limit of the project of each state for each resource, for display. It has a value for all of them.

        The value is 0 if a reserve is refused because there is no limit.
        """
        by_key: dict[UsageKey, int] = {}
        for state, limits in zip(states, self.bounds(states, resources), strict=True):
            leaf = state.project_ids[0]
            for resource in resources:
                by_key[UsageKey(leaf, resource)] = 0 if limits.missing.get(resource) == leaf else UNLIMITED
            by_key |= {
                constraint.key: constraint.limit
                for constraint in limits.constraints
                if constraint.key in by_key and constraint.project_id == leaf
            }
        return by_key

    def set_for(self, state: PathState) -> Mapping[str, ActiveOverride | None]:
        """The resources for which a limit of the state's project is set: the override that applies now, or None."""
        return {}

    def path_of(self, project_id: str) -> Sequence[str] | None:
        """The project and its ancestors, leaf first, according to ``tree_source``; None if it does not define them."""
        return None

    def defaults(self) -> Mapping[str, int] | None:
        """The default limit of each resource, for display. None: the driver needs a project."""
        return None
