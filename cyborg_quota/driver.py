# SPDX-License-Identifier: Apache-2.0
"""DbQuotaDriver: builds the parts of the ledger, which store usage and reservations in a database, and holds them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota.capacity.api import Capacity
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.db import pods as pod_names
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.db.resources import StoredResources
from cyborg_quota.db.settings import DatabaseSettings, database_settings
from cyborg_quota.hours.api import Hours
from cyborg_quota.hours.enforcer import BudgetEnforcer
from cyborg_quota.ledger.counters import Healer
from cyborg_quota.ledger.enforcers import Enforce, Enforcer, Enforcers, OsloLimitHook, Parts
from cyborg_quota.ledger.headroom import HeadroomReader
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.ledger.project_limits import ProjectEnforcer
from cyborg_quota.ledger.reservations import Reservations
from cyborg_quota.ledger.reserve import Reserver
from cyborg_quota.ledger.resize import Amender
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.ledger.thresholds import ThresholdNotifier
from cyborg_quota.limits.api import Limits
from cyborg_quota.metrics import reading as metrics
from cyborg_quota.pods.api import Pods
from cyborg_quota.pods.claims import PodEnforcer
from cyborg_quota.tree.changes import Tree
from cyborg_quota.types import MICROSECONDS

SUBJECTS: Final[dict[str, tuple[Any, Any]]] = {
    "capacity": (CapacityEnforcer, Capacity),
    "pods": (PodEnforcer, Pods),
    "hours": (BudgetEnforcer, Hours),
}
"""The subjects that the ledger works without: the enforcer and the interface of each, by the attribute of the engine. A
subject may use those before it, and locks before them. Each line, with its imports, can be left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """The settings of DbQuotaDriver. Times are in seconds, batch sizes in rows."""

    database: DatabaseSettings
    expire_grace_seconds: float = 0.0
    batch_rows: int = 2000
    thresholds: tuple[int, ...] = (80, 95)
    least_notified_limit: int = 2
    """A project that holds 1 of 1 causes no notice."""
    least_notified_capacity: int = 32
    """A node whose few accelerators are all in use is usual."""
    subjects: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How each of SUBJECTS selects, by its name. A missing one has its defaults."""
    hook: Enforce | None = None
    """What OsloLimitHook asks about each reserve; None: nothing."""


def driver_settings(conf: cfg.ConfigOpts) -> DriverSettings:
    """The settings of DbQuotaDriver, from [quota], [notices] and [database]."""
    return DriverSettings(
        database=database_settings(conf),
        expire_grace_seconds=conf.quota.expire_grace,
        thresholds=tuple(conf.notices.thresholds),
        subjects={name: enforcer.selection_of(conf) for name, (enforcer, _) in SUBJECTS.items()},
    )


class DbQuotaDriver:
    """The parts of a ledger in SQLite, MariaDB/MySQL or PostgreSQL. The constructor does no I/O.

    QuotaEngine and the interfaces of the subjects check all arguments, and then call the parts: each is one attribute,
    and its class documents the calls. doc/source/contributor/quota-drivers.rst lists what they call, for a driver of
    one's own ([quota] driver). Lifetimes are in microseconds.
    """

    def __init__(self, settings: DriverSettings, limits: LimitDriver) -> None:
        database = self.database = Database(settings.database, verify=schema.check)
        self._untimed = database.untimed  # for full scans (audit, list)
        self._paths = PathCache(database)
        grace = int(settings.expire_grace_seconds * MICROSECONDS)
        self.limit_driver: Final = limits
        self.history: Final = History()
        self.subjects: Final[dict[str, Enforcer]] = {}
        parts = Parts(
            database, self.history, limits, settings.thresholds, settings.least_notified_capacity, self.subjects
        )
        for name, (enforcer, _) in SUBJECTS.items():
            self.subjects[name] = enforcer(parts, settings.subjects.get(name))
        tree = Tree(database, self._paths, self.history)
        projects = ProjectEnforcer(database, self._paths, limits, tree.follow)
        hooks = [OsloLimitHook(settings.hook)] if settings.hook is not None else []
        self.enforcers: Final = Enforcers([projects, *hooks, *reversed(self.subjects.values())])
        self._paths.read_bounds = self.enforcers.bounds
        # Reservations: from the reserve to the purge.
        self.settler: Final = Settler(database, self._paths, self.enforcers.counters_of, grace)
        self.reserver: Final = Reserver(database, self.settler, projects, self.enforcers)
        self.amender: Final = Amender(database, self._paths, self.settler, projects, self.enforcers)
        self.resources: Final = StoredResources(database)
        self.healer: Final = Healer(database, self._paths)
        self.reservations: Final = Reservations(database, self.settler, settings.batch_rows)
        # Projects and what they have.
        self.headroom: Final = HeadroomReader(database, limits, self.enforcers)
        self.read_metrics: Final = functools.partial(metrics.read, self._untimed, self.headroom, self.enforcers, grace)
        self.thresholds: Final = ThresholdNotifier(database, limits, settings.thresholds, settings.least_notified_limit)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, limits: LimitDriver) -> DbQuotaDriver:
        """Create a driver from ``conf``, without I/O. Raises ConfigurationError."""
        return cls(driver_settings(conf), limits)

    def limits(self, *common: Any, **options: Any) -> Limits:
        """The interface of limits, the project tree and the history, with what all subjects have in common."""
        database = self.database.with_limits(allow_idle_in_transaction=True)
        tree = Tree(database, self._paths, self.history)
        return Limits(database, self._untimed, tree, self.history, self, *common, **options)

    def interfaces(self, *common: Any) -> dict[str, Any]:
        """The interfaces of SUBJECTS by name, with what all interfaces have in common: see Subject."""
        return {name: interface(self.subjects[name], self, *common) for name, (_, interface) in SUBJECTS.items()}

    def require_pod(self, name: str) -> None:
        """Raise PodNotFound if this pod does not exist."""
        self.database.read_synced(lambda connection: pod_names.require(connection, [name]))
