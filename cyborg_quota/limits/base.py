# SPDX-License-Identifier: Apache-2.0
"""What a limit driver is."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from oslo_config import cfg

from cyborg_quota.types import Constraint

if TYPE_CHECKING:
    from cyborg_quota.db.database import Database
    from cyborg_quota.db.path_state import PathState


class LimitDriver(abc.ABC):
    """Answers, before a transaction begins, what must hold inside it.

    A race can therefore never overspend; only a limit's value can be stale, for as long as the driver documents.
    Loaded by stevedore from the namespace ``cyborg_quota.limits``; shared by threads.
    """

    set_where: ClassVar[str] = "where that driver reads them"
    """Where its limits are set, for a sentence that says that here they are not."""

    bounds_subtree: bool = False
    """Whether a project's limit is held against all that lies below it too, for display and notices."""

    origin: ClassVar[str | None] = None
    """Marks the edges of the project tree that ``parent_of`` determines (one of types.ORIGINS).

    An edge that another source than this one marked is ignored: the projects above it do not limit those below it.
    """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> LimitDriver:
        """A driver as ``conf`` says, without I/O. Raises ConfigurationError."""

    def use(self, database: Database) -> None:  # noqa: B027 - most have no use for it
        """The ledger's database, for a driver that keeps its limits there. Called once, before anything else."""

    @abc.abstractmethod
    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        """What a charge of ``resources`` to a project must keep to.

        ``path`` is the project and its ancestors, leaf first, up to the first edge that is ignored (see ``origin``);
        every constraint names one project of it. If the
        tree changes before the charge, the driver is asked again with the new path.
        """

    @abc.abstractmethod
    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        """The limit of each (project_id, resource), for display. What is left out is unlimited."""

    def get_limits_on_path(self, state: PathState, resources: Collection[str]) -> Mapping[str, int]:
        """The limit of ``state.project_ids[0]`` for each resource, for display. What is left out is unlimited.

        A driver whose limits are in the ledger's database takes them from ``state``, so that they and the counters
        are from one point in time.
        """
        project_id = state.project_ids[0]
        return {resource: limit for (_, resource), limit in self.get_limits([project_id], resources).items()}

    def parent_of(self, project_id: str) -> str | None:
        """Where this driver's source puts the project: the id of its parent, or None where it does not say."""
        return None

    def defaults(self) -> Mapping[str, int] | None:
        """What holds for every project, by resource, for display. None: only asked for a project can it say."""
        return None
