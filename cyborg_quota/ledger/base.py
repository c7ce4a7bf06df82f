# SPDX-License-Identifier: Apache-2.0
"""What a quota driver is. The engine has validated everything and decided the project before it calls one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg

from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import Claim, Drift, Notice, Over, Reservation, Selection, State, Usage, UsageRecord

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.ledger.limit_changes import LimitKeeper


class QuotaDriver(abc.ABC):
    """Keeps usage and reservations. Loaded by stevedore from the namespace ``cyborg_quota.drivers``.

    Lives are in microseconds. ``sees_all``: the caller may be shown an ancestor's usage. The errors each method
    raises are those of the QuotaEngine's method of the same name.
    """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: cfg.ConfigOpts, limits: LimitDriver) -> QuotaDriver:
        """A driver as ``conf`` says, without I/O. Raises ConfigurationError."""

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
        """Charge the claims, all or none. Returns the reservations' UUIDs, claim by claim, in the deltas' order."""

    @abc.abstractmethod
    def adopt(self, project_id: str, claims: Sequence[Claim], group: str | None) -> list[str]:
        """Charge as committed, whatever the limits."""

    @abc.abstractmethod
    def commit(self, selection: Selection) -> None:
        """What was reserved is attached."""

    @abc.abstractmethod
    def rollback(self, selection: Selection) -> None:
        """What was reserved is given up."""

    @abc.abstractmethod
    def release(self, selection: Selection) -> None:
        """What was reserved or attached is free again."""

    @abc.abstractmethod
    def extend(self, selection: Selection, ttl_microseconds: int) -> None:
        """What is reserved lives so much longer, counted from now."""

    @abc.abstractmethod
    def check(self, project_id: str, request: Mapping[str, int], *, sees_all: bool) -> list[Over]:
        """What would block ``request`` now. Writes nothing."""

    @abc.abstractmethod
    def get_usages(
        self, project_id: str, resources: Collection[str], *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        """The project's standing for each of ``resources`` and for all else it ever held."""

    @abc.abstractmethod
    def list_usages(self, project_id: str | None, *, allow_unknown_limits: bool = False) -> list[UsageRecord]:
        """Every usage row, or one project's; sorted."""

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
    ) -> list[Reservation]:
        """Reservations that match everything given, oldest first; only those made later than the one ``after``."""

    def set_source(self, uuids: Sequence[str], source: str) -> int:
        """Record the source of those of these live reservations that have none. Returns how many there were."""
        raise NotImplementedError

    @abc.abstractmethod
    def expire(self, progress: Callable[[int], None] | None) -> int:
        """End what is overdue. Returns how many; ``progress`` is told after every batch."""

    @abc.abstractmethod
    def purge(self, age_microseconds: int, progress: Callable[[int], None] | None) -> int:
        """Delete what ended longer ago, and fold committed rows of no consumer and no group. Returns how many rows."""

    @abc.abstractmethod
    def notices(self) -> list[Notice]:
        """The crossings of thresholds that nobody has told yet; each is returned to one caller alone."""

    @abc.abstractmethod
    def audit(self) -> list[Drift]:
        """The counters that differ from the reservations."""

    @abc.abstractmethod
    def heal(self, progress: Callable[[int], None] | None) -> list[Drift]:
        """Repair them; returns what was repaired, with the figures before and after. ``progress``: rows looked at."""

    @abc.abstractmethod
    def count_ignored_edges(self) -> dict[str, int]:
        """By origin, how many edges of the project tree the limit driver ignores (see LimitDriver.origin)."""

    @abc.abstractmethod
    def clear_origin(
        self, origin: str, *, keep: bool, dry_run: bool, progress: Callable[[int], None] | None
    ) -> list[tuple[str, str]]:
        """Make the edges of ``origin`` the operator's own (``keep``), or make their projects roots.

        Returns these edges: (project_id, parent_id). ``dry_run``: writes nothing.
        """

    @property
    def location(self) -> str:
        """Where usage and reservations are kept, without credentials; for a log line."""
        return type(self).__name__

    def ping(self) -> bool:
        """Whether what keeps them can be reached now. Tried once, for a few seconds at most; raises nothing."""
        return True

    @property
    @abc.abstractmethod
    def keeper(self) -> LimitKeeper:
        """What changes limits and the tree. Raises LimitsReadOnly where the limit driver keeps none."""

    @property
    @abc.abstractmethod
    def limits(self) -> LimitDriver:
        """Where limits come from."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back connections. The next call opens new ones."""
