# SPDX-License-Identifier: Apache-2.0
"""The interface of quota drivers. The engine validates all arguments and resolves the project before each call."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg

from cyborg_quota.capacity_types import CapacityDrift, CapacityNotice, ResourceReport
from cyborg_quota.headroom import Bundles
from cyborg_quota.limit_types import Holding
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.metric_types import LedgerMetrics
from cyborg_quota.types import (
    Author,
    Claim,
    Drift,
    Headroom,
    Notice,
    Over,
    Page,
    RecordedChange,
    RecordedChanges,
    Reservation,
    Selection,
    State,
    Usage,
    UsageRecord,
)

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.ledger.history import History
    from cyborg_quota.ledger.limit_changes import LimitKeeper
    from cyborg_quota.ledger.pods import PodManager
    from cyborg_quota.ledger.providers import ProviderManager
    from cyborg_quota.ledger.total_limits import TotalLimits


class QuotaDriver(abc.ABC):
    """Stores usage and reservations. Loaded by stevedore from the namespace ``cyborg_quota.drivers``.

    Lifetimes are in microseconds. ``sees_all``: the caller is allowed to see the usage of the project's ancestors. Each
    method raises the errors of the QuotaEngine method of the same name.
    """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: cfg.ConfigOpts, limits: LimitDriver) -> QuotaDriver:
        """Create a driver from ``conf``, without I/O. Raises ConfigurationError."""

    @abc.abstractmethod
    def reserve(
        self,
        project_id: str,
        claims: Sequence[Claim],
        group: str | None,
        ttl_microseconds: int,
        *,
        sees_all: bool,
    ) -> list[str]:
        """Charge all claims or none. Returns the UUIDs of the reservations, by claim, in the order of its deltas."""

    @abc.abstractmethod
    def adopt(self, project_id: str, claims: Sequence[Claim], group: str | None) -> list[str]:
        """Charge the claims as committed, without checking limits."""

    @abc.abstractmethod
    def commit(self, selection: Selection, known_as: str | None = None) -> None:
        """Commit the selected reservations: their devices are attached. ``known_as``: the consumer that gets them."""

    @abc.abstractmethod
    def rollback(self, selection: Selection) -> None:
        """Roll back the selected reservations: they are no longer needed."""

    @abc.abstractmethod
    def release(self, selection: Selection) -> None:
        """Release the selected reservations, whether reserved or committed."""

    @abc.abstractmethod
    def extend(self, selection: Selection, ttl_microseconds: int) -> None:
        """Set the expiry of the selected reservations to ``ttl_microseconds`` from now."""

    def resize(
        self,
        project_id: str,
        consumer: str,
        amounts: Mapping[str, int],
        expected: Mapping[str, int],
        *,
        sees_all: bool,
    ) -> None:
        """Set the amounts that the consumer holds, if it holds those ``expected``."""
        raise NotImplementedError

    def transfer(self, sender: str, receiver: str, consumer: str) -> None:
        """Transfer what the consumer holds from the project ``sender`` to ``receiver``."""
        raise NotImplementedError

    @abc.abstractmethod
    def check(
        self, project_id: str, request: Mapping[str, int], *, sees_all: bool, pod: str | None = None
    ) -> list[Over]:
        """Return all that would refuse ``request`` now. Writes nothing."""

    @abc.abstractmethod
    def get_usages(
        self, project_id: str, resources: Collection[str], *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        """The project's usage of each of ``resources``, and of all other resources that have a usage row."""

    def headroom(
        self, project_id: str, resources: Collection[str], provider: str | None = None, pod: str | None = None
    ) -> dict[str, Headroom]:
        """The headroom of each of ``resources`` in one project; with ``provider`` or ``pod``, also what fits there."""
        raise NotImplementedError

    def count_bundles(
        self, project_id: str, bundle: Mapping[str, int], provider: str | None, pod: str | None = None
    ) -> Bundles:
        """How many times ``bundle`` ({resource: amount}, at least 1 each) fits; with ``provider``, each time there.

        ``pod``: within this pod.
        """
        raise NotImplementedError

    def get_detail(self, project_id: str, resources: Collection[str], pod: str | None = None) -> list[UsageRecord]:
        """The usage and the headroom of the project at one moment, for ``resources`` and all others that it holds.

        ``pod``: within this pod.
        """
        raise NotImplementedError

    def list_detail(
        self, wanted: Mapping[str, Collection[str]], resources: Collection[str], pod: str | None = None
    ) -> Iterator[UsageRecord]:
        """The usage and the headroom of these resources of each project, both of the same moment.

        ``wanted``: resources by project; each project has usage rows. A resource that is not among ``resources`` cannot
        be reserved. ``pod``: within this pod.
        """
        raise NotImplementedError

    def read_metrics(self, project_ids: Collection[str] | None, resources: Collection[str]) -> LedgerMetrics:
        """The metrics of the ledger. ``project_ids``: the projects to read; None: all."""
        raise NotImplementedError

    def observe_retries(self, listener: Callable[[str], None]) -> None:  # noqa: ARG002
        """Call ``listener(reason)`` before each retry of a transaction. A driver without retries does nothing."""
        return

    def get_parent(self, project_id: str) -> str | None:
        """The stored parent of the project, if the limit driver considers that edge."""
        raise NotImplementedError

    def list_children(self, project_id: str, after: str, count: int) -> list[str]:
        """The first ``count`` children with an id greater than ``after``, sorted."""
        raise NotImplementedError

    @abc.abstractmethod
    def list_usages(
        self, project_id: str | None, page: Page, *, allow_unknown_limits: bool = False, pod: str | None = None
    ) -> list[UsageRecord]:
        """A page of the usage of all projects, or of one; as the storage sorts them. Raises MarkerNotFound."""

    @abc.abstractmethod
    def list_reservations(
        self,
        *,
        project_id: str | None,
        state: State | None,
        uuids: Collection[str] | None,
        consumer: str | None,
        group: str | None,
        limit: int | None,
        after: str | None,
        resource: str | None = None,
    ) -> list[Reservation]:
        """Reservations that match all given filters, oldest first. ``after``: the UUID after which the list starts."""

    @abc.abstractmethod
    def list_by_consumer(
        self,
        *,
        project_id: str | None,
        consumers: Collection[str] | None,
        limit: int | None,
        after: tuple[str, str] | None,
    ) -> list[Reservation]:
        """The live reservations of consumers, by consumer and UUID, after this consumer and UUID."""

    def set_source(self, uuids: Sequence[str], source: str, replaced: str | None) -> int:
        """Set the source of the live reservations among ``uuids`` whose source is ``replaced`` (None: that have none).

        Returns the number of rows set.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def expire(self, progress: Callable[[int], None] | None) -> int:
        """Expire overdue reservations. Returns their number. ``progress`` is called with the size of each batch."""

    @abc.abstractmethod
    def purge(self, age_microseconds: int, progress: Callable[[int], None] | None) -> int:
        """Delete reservations that ended before this age; merge older committed rows without consumer and group.

        Returns the number of rows removed.
        """

    @abc.abstractmethod
    def notices(self) -> list[Notice]:
        """The threshold crossings that are not yet reported. Each is returned to one caller only."""

    @abc.abstractmethod
    def capacity_notices(self) -> list[CapacityNotice]:
        """The inventories that crossed a threshold since the last call on any host."""

    @abc.abstractmethod
    def audit(self) -> list[Drift | CapacityDrift]:
        """The counters of usage rows and of inventories that differ from the sums of the reservations."""

    @abc.abstractmethod
    def heal(self, progress: Callable[[int], None] | None) -> list[Drift | CapacityDrift]:
        """Repair the counters that audit reports. Returns the counters before and after each repair.

        ``progress`` is called with the number of rows examined.
        """

    @abc.abstractmethod
    def list_projects(self, limit: int | None, after: str | None) -> list[tuple[str, str | None]]:
        """(project_id, parent_id) of at most ``limit`` projects after ``after``. Raises MarkerNotFound."""

    @abc.abstractmethod
    def import_tree(
        self, wanted: Mapping[str, str | None], author: Author | None, progress: Callable[[int], None] | None
    ) -> list[RecordedChange]:
        """Give each of these projects its parent (None: make it a root), in batches. Returns the changes.

        ``author`` None: write nothing.
        """

    @abc.abstractmethod
    def is_known_project(self, project_id: str) -> bool:
        """Whether the ledger has the project: in the tree, or with usage or a limit."""

    @abc.abstractmethod
    def list_holders(self, after: str, count: int) -> list[str]:
        """The first ``count`` projects with an id greater than ``after`` that have usage or a limit, sorted."""

    @abc.abstractmethod
    def list_holdings(self, project_ids: Collection[str]) -> list[Holding]:
        """The usage and the limits of these projects."""

    @property
    def location(self) -> str:
        """The address of the storage, without credentials; for log lines."""
        return type(self).__name__

    def ping(self) -> bool:
        """Whether the storage can be reached now. One attempt of a few seconds; raises nothing."""
        return True

    @property
    @abc.abstractmethod
    def keeper(self) -> LimitKeeper:
        """Changes limits and the project tree. Raises LimitsReadOnly if the limit driver does not store limits."""

    @property
    def total_limits(self) -> TotalLimits:
        """Changes total limits over all projects. Raises LimitsReadOnly if the limit driver does not store limits."""
        raise NotImplementedError

    def announce_changes(self, listener: Callable[[RecordedChanges], None] | None) -> None:  # noqa: B027
        """Call ``listener`` after the commit of each transaction that makes changes. (Only ``history`` needs it.)"""

    @property
    def history(self) -> History:
        """The history of limits, the project tree, capacity and pods, under every limit driver."""
        raise NotImplementedError

    @property
    def providers(self) -> ProviderManager:
        """Changes and lists providers and inventories."""
        raise NotImplementedError

    def report_capacity(self, resources: Collection[str]) -> list[ResourceReport]:
        """What exists and what is promised of each resource."""
        raise NotImplementedError

    @property
    def pods(self) -> PodManager:
        """Changes, measures and lists pods, and binds projects to them."""
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def limits(self) -> LimitDriver:
        """The limit driver."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close all connections. The next call opens new ones."""
