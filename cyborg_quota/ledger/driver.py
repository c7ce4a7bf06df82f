# SPDX-License-Identifier: Apache-2.0
"""DbQuotaDriver: stores usage and reservations in a database. The order of the steps of a call is in these modules:

reserve.py (reserve, adopt), settle.py (commit, rollback, release, extend), naming.py
(commit with a name), resize.py, transfer.py, expire.py (expire), purge.py (purge),
usage.py (check, get_usages, list_usages), counters.py (repair), project_tree.py (the path from a project to its root),
limit_changes.py (limits and imports), tree_import.py (the tree of another source), thresholds.py (notices).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import CapacityDrift, CapacityNotice, ResourceReport
from cyborg_quota.db import history, holdings, maintenance, path_state, projects, reservations, schema
from cyborg_quota.db.database import Database
from cyborg_quota.headroom import Bundles
from cyborg_quota.ledger import base
from cyborg_quota.ledger.capacity_claims import CapacityClaimer
from cyborg_quota.ledger.capacity_report import CapacityReporter
from cyborg_quota.ledger.counters import Healer
from cyborg_quota.ledger.expire import Expirer
from cyborg_quota.ledger.headroom import HeadroomReader
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.limit_changes import LimitKeeper
from cyborg_quota.ledger.metrics import MetricsReader
from cyborg_quota.ledger.naming import Namer
from cyborg_quota.ledger.pods import PodManager
from cyborg_quota.ledger.project_tree import PathCache, Tree
from cyborg_quota.ledger.provider_cache import ProviderCache
from cyborg_quota.ledger.providers import ProviderManager
from cyborg_quota.ledger.purge import Purger
from cyborg_quota.ledger.reserve import Reserver, ReserveRequest
from cyborg_quota.ledger.resize import Resizer, ResizeRequest
from cyborg_quota.ledger.settings import DriverSettings, driver_settings
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.ledger.thresholds import ThresholdNotifier
from cyborg_quota.ledger.total_limits import TotalLimits
from cyborg_quota.ledger.transfer import TransferRequest, Transferrer
from cyborg_quota.ledger.tree_import import TreeImport
from cyborg_quota.ledger.usage import UsageReader
from cyborg_quota.limit_types import Holding
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.metric_types import LedgerMetrics
from cyborg_quota.types import (
    MICROSECONDS,
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

Progress = Callable[[int], None] | None
_SOURCE_ROWS: Final = 256
"""The maximum number of rows of which one transaction sets the source."""


class DbQuotaDriver(base.QuotaDriver):
    """Stores quota_usages and reservations in SQLite, MariaDB/MySQL or PostgreSQL. The constructor does no I/O."""

    def __init__(self, settings: DriverSettings, limits: LimitDriver) -> None:
        self._limits = limits
        self._settings = settings
        self._database = Database(settings.database, verify=schema.check)
        self._untimed = self._database.untimed  # for full scans (audit, list)
        limits.use(self._database)
        self._paths = PathCache(self._database)
        providers = ProviderCache()
        grace = int(settings.expire_grace_seconds * MICROSECONDS)
        self._settler = Settler(self._database, self._paths, grace)
        self._expirer = Expirer(self._database, self._settler, settings.batch_rows)
        self._purger = Purger(self._database, self._untimed, settings.batch_rows)
        self._history = History(self._untimed)
        tree = Tree(self._database, self._paths, self._history)
        capacity = CapacityClaimer(self._database, settings.selection, settings.pods, providers)
        self._reserver = Reserver(self._database, self._paths, limits, self._settler, tree, capacity=capacity)
        self._resizer = Resizer(self._database, self._settler, self._reserver, capacity)
        self._transferrer = Transferrer(self._database, self._paths, self._settler, self._reserver, capacity=capacity)
        self._namer = Namer(self._database, self._settler)
        self._usage_reader = UsageReader(self._database, self._untimed, limits)
        self._thresholds = ThresholdNotifier(
            self._database, self._untimed, limits, settings.thresholds, least_limit=settings.least_notified_limit
        )
        self._headroom = HeadroomReader(self._database, limits, capacity)
        self._metrics = MetricsReader(self._untimed, limits, self._headroom, grace)
        self._pod_selection = settings.pods
        self._healer = Healer(self._database, self._untimed, self._paths)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, limits: LimitDriver) -> DbQuotaDriver:
        return cls(driver_settings(conf), limits)

    @property
    def keeper(self) -> LimitKeeper:
        if not isinstance(self._limits, DatabaseLimitDriver):
            raise exceptions.LimitsReadOnly(self._limits.set_where)
        # Its transactions check all limits, which takes seconds in a large cloud.
        long_transactions = self._database.long_transactions
        tree = Tree(long_transactions, self._paths, self._history)
        return LimitKeeper(long_transactions, tree, self._limits, self._history, self.total_limits)

    @property
    def total_limits(self) -> TotalLimits:
        if not isinstance(self._limits, DatabaseLimitDriver):
            raise exceptions.LimitsReadOnly(self._limits.set_where)
        return TotalLimits(self._database.long_transactions, self._paths, self._history)

    def observe_retries(self, listener: Callable[[str], None]) -> None:
        for database in (self._database, self._untimed):
            database.observe_retries(listener)

    def announce_changes(self, listener: Callable[[RecordedChanges], None] | None) -> None:
        self._history.listener = listener

    @property
    def history(self) -> History:
        return self._history

    @property
    def providers(self) -> ProviderManager:
        return ProviderManager(self._database, self._untimed, self._history)

    def report_capacity(self, resources: Collection[str]) -> list[ResourceReport]:
        return CapacityReporter(self._untimed, self._limits).read(resources)

    @property
    def pods(self) -> PodManager:
        return PodManager(self._database, self._untimed, self._history, self._pod_selection)

    @property
    def limits(self) -> LimitDriver:
        return self._limits

    @property
    def location(self) -> str:
        return self._database.location

    def ping(self) -> bool:
        return self._database.ping()

    def close(self) -> None:
        self._database.close()

    def reserve(
        self,
        project_id: str,
        claims: Sequence[Claim],
        group: str | None,
        ttl_microseconds: int,
        *,
        sees_all: bool,
    ) -> list[str]:
        return self._reserver.charge(
            ReserveRequest(
                project_id=project_id,
                claims=claims,
                group=group,
                ttl_microseconds=ttl_microseconds,
                sees_all=sees_all,
            )
        )

    def adopt(self, project_id: str, claims: Sequence[Claim], group: str | None) -> list[str]:
        return self._reserver.adopt(
            ReserveRequest(project_id=project_id, claims=claims, group=group, ttl_microseconds=None, sees_all=True)
        )

    def commit(self, selection: Selection, known_as: str | None = None) -> None:
        if known_as is None:
            self._settler.settle("commit", selection)
        else:
            self._namer.commit(selection, known_as)

    def rollback(self, selection: Selection) -> None:
        self._settler.settle("rollback", selection)

    def release(self, selection: Selection) -> None:
        self._settler.settle("release", selection)

    def extend(self, selection: Selection, ttl_microseconds: int) -> None:
        self._settler.settle("extend", selection, ttl_microseconds)

    def resize(
        self,
        project_id: str,
        consumer: str,
        amounts: Mapping[str, int],
        expected: Mapping[str, int],
        *,
        sees_all: bool,
    ) -> None:
        self._resizer.resize(ResizeRequest(project_id, consumer, amounts, expected, sees_all))

    def transfer(self, sender: str, receiver: str, consumer: str) -> None:
        self._transferrer.transfer(TransferRequest(sender, receiver, consumer))

    def check(
        self, project_id: str, request: Mapping[str, int], *, sees_all: bool, pod: str | None = None
    ) -> list[Over]:
        return self._headroom.check(project_id, request, sees_all=sees_all, pod=pod)

    def get_usages(
        self, project_id: str, resources: Collection[str], *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        return self._usage_reader.get_usages(project_id, resources, allow_unknown_limits=allow_unknown_limits)

    def headroom(
        self, project_id: str, resources: Collection[str], provider: str | None = None, pod: str | None = None
    ) -> dict[str, Headroom]:
        return self._headroom.read(project_id, resources, provider, pod)

    def count_bundles(
        self, project_id: str, bundle: Mapping[str, int], provider: str | None, pod: str | None = None
    ) -> Bundles:
        return self._headroom.count_bundles(project_id, bundle, provider, pod)

    def get_detail(self, project_id: str, resources: Collection[str], pod: str | None = None) -> list[UsageRecord]:
        return self._headroom.read_detail(project_id, resources, pod)

    def list_detail(
        self, wanted: Mapping[str, Collection[str]], resources: Collection[str], pod: str | None = None
    ) -> Iterator[UsageRecord]:
        return self._headroom.read_many(wanted, resources, pod)

    def read_metrics(self, project_ids: Collection[str] | None, resources: Collection[str]) -> LedgerMetrics:
        return self._metrics.read(project_ids, resources)

    def get_parent(self, project_id: str) -> str | None:
        path = self._database.read(lambda connection: path_state.read_path(connection, project_id, []))
        return next(iter(path.project_ids[1:]), None)

    def list_children(self, project_id: str, after: str, count: int) -> list[str]:
        return self._database.read(
            lambda connection: projects.list_children(connection, project_id, after, count)
        )

    def list_usages(
        self, project_id: str | None, page: Page, *, allow_unknown_limits: bool = False, pod: str | None = None
    ) -> list[UsageRecord]:
        return self._usage_reader.list_usages(project_id, page, allow_unknown_limits=allow_unknown_limits, pod=pod)

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
        # A consumer or a group has few rows, also where a project's own user asks.
        database = self._untimed if consumer is None and group is None else self._database
        return database.read(
            lambda connection: history.list_reservations(
                connection,
                project_id=project_id,
                state=state,
                uuids=uuids,
                consumer=consumer,
                group=group,
                limit=limit,
                after=after,
                resource=resource,
            )
        )

    def list_by_consumer(
        self,
        *,
        project_id: str | None,
        consumers: Collection[str] | None,
        limit: int | None,
        after: tuple[str, str] | None,
    ) -> list[Reservation]:
        return self._untimed.read(
            lambda connection: history.list_by_consumer(
                connection, project_id=project_id, consumers=consumers, limit=limit, after=after
            )
        )

    def set_source(self, uuids: Sequence[str], source: str, replaced: str | None) -> int:
        def set_of(batch: Sequence[str]) -> int:
            return self._database.write(lambda connection: reservations.set_source(connection, batch, source, replaced))

        return sum(set_of(uuids[start : start + _SOURCE_ROWS]) for start in range(0, len(uuids), _SOURCE_ROWS))

    def expire(self, progress: Progress = None) -> int:
        return self._expirer.expire(progress)

    def purge(self, age_microseconds: int, progress: Progress = None) -> int:
        return self._purger.purge(age_microseconds, progress)

    def notices(self) -> list[Notice]:
        return self._thresholds.notices()

    def capacity_notices(self) -> list[CapacityNotice]:
        return self.providers.notices(self._settings.thresholds, self._settings.least_notified_capacity)

    def audit(self) -> list[Drift | CapacityDrift]:
        return [*self._untimed.read(maintenance.audit), *self.providers.audit()]

    def heal(self, progress: Progress = None) -> list[Drift | CapacityDrift]:
        # (Inventories first: the order in which all transactions lock.)
        capacity = self.providers.heal(progress)
        return [*self._healer.heal(progress), *capacity]

    def list_projects(self, limit: int | None, after: str | None) -> list[tuple[str, str | None]]:
        return self._untimed.read(lambda connection: projects.edges_page(connection, limit, after))

    def is_known_project(self, project_id: str) -> bool:
        return self._database.read(lambda connection: holdings.is_known(connection, project_id))

    def list_holders(self, after: str, count: int) -> list[str]:
        return self._untimed.read(lambda connection: holdings.holders(connection, after, count))

    def list_holdings(self, project_ids: Collection[str]) -> list[Holding]:
        return self._database.read(lambda connection: holdings.read(connection, project_ids))

    def import_tree(
        self, wanted: Mapping[str, str | None], author: Author | None, progress: Progress = None
    ) -> list[RecordedChange]:
        database = self._database.long_transactions
        tree = Tree(database, self._paths, self._history)
        found = TreeImport(database, tree, self._limits, wanted)
        return found.find() if author is None else found.run(author, progress or (lambda _: None))
