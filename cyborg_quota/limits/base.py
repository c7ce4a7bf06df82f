# SPDX-License-Identifier: Apache-2.0
"""The interface of limit drivers."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from oslo_config import cfg

from cyborg_quota import exceptions, plugins
from cyborg_quota.types import UNLIMITED, Constraint, ResourceKey

if TYPE_CHECKING:
    from cyborg_quota.db.database import Database
    from cyborg_quota.db.path_state import PathState


class PathLimits(NamedTuple):
    """The limits of a project and its ancestors.

    ``missing``: by resource, the project nearest to the leaf that has no limit, where that means a refusal.
    """

    constraints: Sequence[Constraint]
    missing: Mapping[str, str]


class LimitDriver(abc.ABC):
    """Determines the constraints of a charge before its transaction begins. The transaction enforces them.

    Therefore no race can exceed a limit. Only the value of a limit can be stale, for a time that the driver documents.
    Loaded by stevedore from the namespace ``cyborg_quota.limits``; must be thread-safe.
    """

    set_where: ClassVar[str] = "where that driver reads them"
    """Where the limits of this driver are set; the end of the message of LimitsReadOnly."""

    bounds_subtree: bool = False
    """Whether the limit of a project includes the usage of its descendants; for display and notices."""

    tree_source: ClassVar[str | None] = None
    """What keeps the project tree instead of the commands of cyborg_quota (see ``parent_of``), in lower case."""

    missing_limit: int = UNLIMITED
    """The limit that applies where ``get_limits`` returns none: UNLIMITED, or 0 if a reserve is then refused."""

    @property
    def limit_if_missing(self) -> int | None:
        """What is shown where no limit applies: UNLIMITED, or None if a reserve is then refused."""
        return UNLIMITED if self.missing_limit == UNLIMITED else None

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> LimitDriver:
        """Create the driver from ``conf``, without I/O. Raises ConfigurationError."""

    def use(self, database: Database) -> None:  # noqa: B027 - most drivers do not need it
        """Called once, before all other methods, with the ledger's database, for drivers that store limits there."""

    @abc.abstractmethod
    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        """The constraints of a charge of ``resources`` to a project.

        ``path`` is the project and its ancestors, leaf first.
        Each constraint must be of a project on it. If the tree changes before the charge, this method is called again
        with the new path.
        """

    @abc.abstractmethod
    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        """The limit of each (project_id, resource), for display. A missing key is ``missing_limit``."""

    def get_limits_on_path(self, state: PathState, resources: Collection[str]) -> Mapping[str, int]:
        """The limit of ``state.project_ids[0]`` for each resource, for display. A missing key is ``missing_limit``.

        A driver that stores its limits in the ledger's database must use ``state``, so that the limits and the counters
        are of the same point in time.
        """
        project_id = state.project_ids[0]
        return {resource: limit for (_, resource), limit in self.get_limits([project_id], resources).items()}

    def get_path_limits(self, state: PathState, resources: Collection[str]) -> PathLimits:
        """What ``get_constraints`` returns for ``state.project_ids``, and which resources lack a limit.

        A driver whose limits are in the ledger's database takes them from ``state``.
        """
        path = state.project_ids
        try:
            return PathLimits(self.get_constraints(path, resources), {})
        except exceptions.LimitNotSet:
            constraints: list[Constraint] = []
            missing: dict[str, str] = {}
        for resource in resources:
            try:
                constraints += self.get_constraints(path, [resource])
            except exceptions.LimitNotSet:
                missing[resource] = path[0]
        return PathLimits(constraints, missing)

    def get_limits_of_paths(self, states: Sequence[PathState], resources: Collection[str]) -> list[PathLimits]:
        """``get_path_limits`` of each state, for a list of many projects."""
        return [self.get_path_limits(state, resources) for state in states]

    def get_total_constraints(self, resources: Collection[str]) -> list[Constraint]:
        """The total limits over all projects of these resources, with scope ``total``. Called if there are any."""
        return []

    def get_pod_constraints(self, path: Sequence[str], keys: Collection[ResourceKey]) -> list[Constraint]:
        """The limits of the projects on ``path`` for these resources in pods. Called for a claim in a pod."""
        return []

    def get_pod_limits(self, state: PathState) -> Sequence[Constraint]:
        """All limits per pod of the projects of ``state``; what ``get_pod_constraints`` returns for their keys."""
        return []

    def get_limits_in_pod(
        self, project_ids: Collection[str], resources: Collection[str], pod: str
    ) -> Mapping[tuple[str, str], int]:
        """The limit in this pod of each (project_id, resource), for display. A missing key is UNLIMITED."""
        return {}

    def get_limits_on_paths(
        self, states: Sequence[PathState], resources: Collection[str]
    ) -> Mapping[tuple[str, str], int]:
        """The limit of ``project_ids[0]`` of each state, by project and resource. A missing key is missing_limit."""
        return self.get_limits({state.project_ids[0] for state in states}, resources)

    def parent_of(self, project_id: str) -> str | None:
        """The parent of the project according to the source of this driver; None if it does not define one."""
        return None

    def defaults(self) -> Mapping[str, int] | None:
        """The default limit of each resource, for display. None: the driver needs a project."""
        return None


def driver_class(conf: cfg.ConfigOpts) -> type[LimitDriver]:
    """The class of the limit driver that ``[limits] driver`` names. Raises ConfigurationError."""
    found: type[LimitDriver] = plugins.load("cyborg_quota.limits", "[limits] driver", conf.limits.driver)
    return found
