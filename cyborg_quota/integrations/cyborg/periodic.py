# SPDX-License-Identifier: Apache-2.0
"""What the conductor does by itself, from its periodic task: extend, settle, recover, expire, reconcile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, validation
from cyborg_quota.integrations.cyborg import arq_records, cyborg_host, mapping, recovery
from cyborg_quota.integrations.cyborg.bind_tracker import BindTracker
from cyborg_quota.integrations.cyborg.diff import Difference, Report
from cyborg_quota.integrations.cyborg.mapping import ResourceMap
from cyborg_quota.integrations.cyborg.reconciler import RecordsShrunk, TooManyChanges

LOG = logging.getLogger(__name__)

_SHOWN = 10
_NOT_OWN = " (not charged by this Cyborg, as far as is recorded, and not repaired: see reconcile --claim-source)"


class Upkeep:
    """``turn`` is called again and again, by one thread, and raises nothing."""

    def __init__(self, conf: cfg.ConfigOpts, charger: BindTracker, resource_map: ResourceMap) -> None:
        self._conf = conf
        self._charger = charger
        self._resource_map = resource_map
        self._admin = validation.admin_context()
        now = time.monotonic()
        self._expire_at = now
        # Conductors that were started together must not all look at once.
        interval = conf.cyborg.reconcile_interval
        self._reconcile_at = now + random.uniform(0, interval) if interval else float("inf")
        self._reconciling: threading.Thread | None = None
        self._has_checked_tree = False

    def turn(self) -> float:
        """Do what is due. Returns after how many seconds something may be."""
        self._try("Binds that run could not be extended.", self._charger.extend_running)
        self._try("What is owed could not be committed.", self._charger.settle_owed)
        now = time.monotonic()
        is_due = now >= min(self._expire_at, self._reconcile_at)
        # What lists all reservations waits for its answer without a limit of time: not for a server that hangs.
        if is_due and not self._charger.guard.reaches():
            return self._pause
        if now >= self._expire_at:
            self._expire_at = now + float(self._conf.quota.expire_interval)
            self._try("What was bound could not be committed.", self._recover)
            self._try("Overdue reservations could not be expired.", self._expire)
            if not self._has_checked_tree:
                self._try("The project tree could not be checked.", self._check_tree)
        if now >= self._reconcile_at and (self._reconciling is None or not self._reconciling.is_alive()):
            self._reconcile_at = now + float(self._conf.cyborg.reconcile_interval)
            # It waits for its grace; a bind that runs must be extended meanwhile.
            self._reconciling = threading.Thread(target=self._reconcile, name="reconcile", daemon=True)
            self._try("The reconciliation could not be started.", self._reconciling.start)
        return self._pause

    @property
    def _pause(self) -> float:
        return min(float(self._conf.quota.expire_interval), float(self._conf.cyborg.bind_expire) / 6)

    @staticmethod
    def _try(failed: str, work: Callable[[], object]) -> None:
        try:
            work()
        except exceptions.QuotaError as error:
            LOG.error("%s %s Tried again at the next turn.", failed, error)
        except Exception:
            LOG.exception("%s Tried again at the next turn.", failed)

    def _recover(self) -> None:
        found = arq_records.Records(self._resource_map)
        recovery.commit_bound(self._charger.engine, found, self._charger.arqs(), mapping.source(self._conf))

    def _check_tree(self) -> None:
        """Once after the start: warn of edges that a previous limit driver made."""
        warning = self._charger.engine.administration.ignored_edges_warning(self._admin)
        self._has_checked_tree = True
        if warning is not None:
            LOG.warning("%s", warning)

    def _expire(self) -> None:
        count = self._charger.engine.expire(self._admin)
        LOG.log(logging.INFO if count else logging.DEBUG, "Expired %d reservations.", count)

    def _reconcile(self) -> None:
        self._try("The ledger could not be compared with Cyborg's records.", self._find_and_heal)

    def _find_and_heal(self) -> None:
        reconciler = cyborg_host.reconciler(self._conf, self._charger.engine, arq_records.Records(self._resource_map))
        report = reconciler.find()
        repaired: list[Difference] = []
        try:
            if report.differences and self._conf.cyborg.reconcile_heal != "none":
                repaired = reconciler.heal(report, only_certain=self._conf.cyborg.reconcile_heal == "certain")
        except (TooManyChanges, RecordsShrunk) as error:
            LOG.error("The ledger was not repaired: %s", error)
        if not report.differences:
            LOG.debug("The ledger agrees with Cyborg's records on %d accelerators.", report.compared)
        if repaired:
            LOG.warning("Repaired %d accelerators of %d.", len(repaired), report.compared)
        done = {one.arq for one in repaired}
        self._tell(report, [one for one in report.differences if one.arq not in done])

    @staticmethod
    def _tell(report: Report, left: Sequence[Difference]) -> None:
        for one in left[:_SHOWN]:
            LOG.warning("The ledger differs from Cyborg's records: %s%s", one, "" if one.is_own else _NOT_OWN)
        if left:
            LOG.warning(
                "The ledger differs from Cyborg's records on %d of %d accelerators. Run: cyborg-quota reconcile",
                len(left),
                report.compared,
            )
