# SPDX-License-Identifier: Apache-2.0
"""DbQuotaDriver: stores usage and reservations in a database. The order of the steps of a call is in these modules:

reserve.py (reserve, adopt), settle.py (commit, rollback, release, extend, expire), purge.py (purge), counters.py
(repair), path_cache.py (the path from a project to its root).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import enforcement, exceptions
from cyborg_quota.db import listing, maintenance, path_state, projects, schema, sources, usages
from cyborg_quota.db.database import Database
from cyborg_quota.ledger import base
from cyborg_quota.ledger.batch_throttle import run_batches
from cyborg_quota.ledger.counters import Healer
from cyborg_quota.ledger.limit_changes import LimitKeeper
from cyborg_quota.ledger.limit_history import LimitHistory
from cyborg_quota.ledger.open_cap import OpenCap
from cyborg_quota.ledger.origin_clearing import OriginClearing
from cyborg_quota.ledger.parallel_expirer import ParallelExpirer
from cyborg_quota.ledger.path_cache import PathCache
from cyborg_quota.ledger.project_tree import Tree
from cyborg_quota.ledger.purge import Purger
from cyborg_quota.ledger.reserve import Reserver, ReserveRequest
from cyborg_quota.ledger.settings import DriverSettings, driver_settings
from cyborg_quota.ledger.settle import Settler
from cyborg_quota.ledger.thresholds import ThresholdNotifier
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.types import (
    MICROSECONDS,
    UNLIMITED,
    Author,
    Claim,
    Counters,
    Drift,
    Notice,
    Over,
    RecordedChanges,
    Reservation,
    Selection,
    State,
    Usage,
    UsageRecord,
)

LOG = logging.getLogger(__name__)

Key = TypeVar("Key")
Progress = Callable[[int], None] | None
_SOURCE_ROWS: Final = 256
"""The maximum number of rows of which one transaction sets the source."""


class DbQuotaDriver(base.QuotaDriver):
    """Stores quota_usages and reservations in SQLite, MariaDB/MySQL or PostgreSQL. The constructor does no I/O."""

    def __init__(self, settings: DriverSettings, limits: LimitDriver) -> None:
        self._batch_rows = settings.batch_rows
        self._limits = limits
        self._database = Database(settings.database, verify=schema.check)
        # Full scans (audit, list) run without a statement timeout.
        untimed = dataclasses.replace(settings.database, statement_timeout_seconds=None)
        self._untimed = Database(untimed, verify=schema.check)
        limits.use(self._database)
        self._paths = PathCache(self._database)
        self._settler = Settler(self._database, self._paths, int(settings.expire_grace_seconds * MICROSECONDS))
        self._parallel_expirer = ParallelExpirer(self._database, self._settler, self._batch_rows)
        self._purger = Purger(self._database, self._untimed, self._batch_rows)
        self._history = LimitHistory(self._untimed)
        self._tree = Tree(self._database, self._paths, self._history)
        cap = OpenCap(settings.max_open_reservations)
        self._reserver = Reserver(self._database, self._paths, limits, self._settler, self._tree, cap=cap)
        self._thresholds = ThresholdNotifier(self._database, self._untimed, limits, settings.thresholds)
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
        return LimitKeeper(long_transactions, tree, self._limits, self._history)

    def announce_limit_changes(self, listener: Callable[[RecordedChanges], None] | None) -> None:
        self._history.listener = listener

    @property
    def history(self) -> LimitHistory:
        return self._history

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
        self._untimed.close()

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

    def commit(self, selection: Selection) -> None:
        self._settler.settle("commit", selection)

    def rollback(self, selection: Selection) -> None:
        self._settler.settle("rollback", selection)

    def release(self, selection: Selection) -> None:
        self._settler.settle("release", selection)

    def extend(self, selection: Selection, ttl_microseconds: int) -> None:
        self._settler.settle("extend", selection, ttl_microseconds)

    def check(self, project_id: str, request: Mapping[str, int], *, sees_all: bool) -> list[Over]:
        # Read the current path: only a charge detects that a cached path is stale, and a check charges nothing.
        project_path = self._database.read(lambda connection: projects.read_path(connection, project_id, request))
        path = project_path.limiting(self._limits.origin)
        parent_id = self._limits.parent_of(project_id)
        if parent_id is not None and path[1:2] != (parent_id,):
            path = (project_id, parent_id)  # its next charge moves it there
        constraints = self._limits.get_constraints(path, sorted(request))
        counters = self._database.read(lambda connection: usages.read(connection, path, request))
        violations = enforcement.find_violations(project_id, constraints, counters, request)
        return violations if sees_all else enforcement.redact(violations, project_id)

    def get_usages(
        self, project_id: str, resources: Collection[str], *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        state = self._database.read(lambda connection: path_state.read(connection, project_id, self._limits.origin))
        held = {resource for owner, resource in state.counters if owner == project_id}
        names = sorted(held.union(resources))
        limits = _look_up(lambda: self._limits.get_limits_on_path(state, names), allow_unknown=allow_unknown_limits)
        return {name: _usage(state.counters.get((project_id, name), Counters()), limits, name) for name in names}

    def list_usages(self, project_id: str | None, *, allow_unknown_limits: bool = False) -> list[UsageRecord]:
        rows = self._untimed.read(
            lambda connection: usages.read(connection, None if project_id is None else [project_id])
        )
        limits = _look_up(
            lambda: self._limits.get_limits({key[0] for key in rows}, {key[1] for key in rows}),
            allow_unknown=allow_unknown_limits,
        )
        return [UsageRecord(*key, usage=_usage(counters, limits, key)) for key, counters in rows.items()]

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
        return self._untimed.read(
            lambda connection: listing.read(
                connection,
                project_id=project_id,
                state=state,
                uuids=uuids,
                consumer=consumer,
                group=group,
                limit=limit,
                after=after,
            )
        )

    def set_source(self, uuids: Sequence[str], source: str) -> int:
        def set_of(batch: Sequence[str]) -> int:
            return self._database.write(lambda connection: sources.give(connection, batch, source))

        return sum(set_of(uuids[start : start + _SOURCE_ROWS]) for start in range(0, len(uuids), _SOURCE_ROWS))

    def expire(self, progress: Progress = None) -> int:
        return run_batches(
            self._database,
            self._settler.expire_batch,
            self._batch_rows,
            progress,
            self._parallel_expirer.expire_in_parallel,
        )

    def purge(self, age_microseconds: int, progress: Progress = None) -> int:
        return self._purger.purge(age_microseconds, progress)

    def notices(self) -> list[Notice]:
        return self._thresholds.notices()

    def audit(self) -> list[Drift]:
        return self._untimed.read(maintenance.audit)

    def heal(self, progress: Progress = None) -> list[Drift]:
        return self._healer.heal(progress)

    def count_ignored_edges(self) -> dict[str, int]:
        counts = self._untimed.read(projects.count_by_origin)
        return {origin: count for origin, count in sorted(counts.items()) if origin != self._limits.origin}

    def clear_origin(
        self, origin: str, author: Author, *, keep: bool, dry_run: bool, progress: Progress = None
    ) -> list[tuple[str, str]]:
        clearing = OriginClearing(
            self._database.long_transactions, self._limits, self._history, origin, author, keep=keep
        )
        if dry_run:
            return clearing.find()
        try:
            return clearing.run(progress or (lambda _: None))
        finally:
            self._paths.forget_all()


def _look_up(limits: Callable[[], Mapping[Key, int]], *, allow_unknown: bool) -> Mapping[Key, int] | None:
    """The limits. If they are unavailable: None (``allow_unknown``), or raises LimitsUnavailable."""
    try:
        return limits()
    except exceptions.LimitsUnavailable as error:
        if not allow_unknown:
            raise
        LOG.warning("The limits are unknown: %s", error.reason)
        return None


def _usage(counters: Counters, limits: Mapping[Key, int] | None, key: Key) -> Usage:
    limit = None if limits is None else limits.get(key, UNLIMITED)
    return Usage(limit=limit, used=counters.used, reserved=counters.reserved)
