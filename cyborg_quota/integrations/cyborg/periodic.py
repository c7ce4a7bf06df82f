# SPDX-License-Identifier: Apache-2.0
"""The periodic work of the conductor: extend, retry commits, recover, expire, reconcile."""

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
from cyborg_quota.integrations.cyborg.reconciler import RecordsShrunk, SourceShared, TooManyChanges

LOG = logging.getLogger(__name__)

_MAX_LOGGED = 10
_NOT_REPAIRED = (
    " (not repaired: a charge has another source or none; see cyborg-quota reconcile --claim-source, or, after a "
    "change of [cyborg] source, --claim-source FROM)"
)


class Upkeep:
    """Runs the periodic work. ``turn`` is called repeatedly, by one thread, and raises nothing."""

    def __init__(self, conf: cfg.ConfigOpts, tracker: BindTracker, resource_map: ResourceMap) -> None:
        self._conf = conf
        self._tracker = tracker
        self._resource_map = resource_map
        self._admin = validation.admin_context()
        now = time.monotonic()
        self._expire_at = now
        # A random delay, so that conductors started together do not all reconcile at the same time.
        interval = conf.cyborg.reconcile_interval
        self._reconcile_at = now + random.uniform(0, interval) if interval else float("inf")
        self._threads: dict[str, threading.Thread] = {}
        self._has_checked_tree = False
        self._is_registered = False

    def turn(self) -> float:
        """Run the work that is due; returns the seconds until the next call."""
        self._try("The reservations of running binds could not be extended.", self._tracker.extend_running)
        self._try("Postponed commits could not be retried.", self._tracker.settle_owed)
        now = time.monotonic()
        is_due = now >= min(self._expire_at, self._reconcile_at)
        # Listing all reservations has no statement timeout, so check first that the server answers.
        if is_due and not self._tracker.guard.reaches():
            return self._pause
        if now >= self._expire_at:
            self._expire_at = now + float(self._conf.quota.expire_interval)
            if not self._is_registered:
                self._try("The use of [cyborg] source could not be recorded.", self._register)
            self._try("Reservations of bound ARQs could not be committed.", self._recover)
            self._try("Overdue reservations could not be expired.", self._expire)
            if not self._has_checked_tree:
                self._start("check of the project tree", self._check_tree)
        if now >= self._reconcile_at and self._start("reconciliation", self._reconcile):
            self._reconcile_at = now + float(self._conf.cyborg.reconcile_interval)
        return self._pause

    def _start(self, name: str, work: Callable[[], object]) -> bool:
        """Run ``work`` in a thread. Returns False, without any effect, if the last thread of this name still runs.

        For work that waits for other services, because the caller must extend running binds in time.
        """
        former = self._threads.get(name)
        if former is not None and former.is_alive():
            return False
        thread = threading.Thread(target=self._try, args=(f"The {name} failed.", work), name=name, daemon=True)
        self._threads[name] = thread
        self._try(f"The {name} could not be started.", thread.start)
        return True

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

    def _records(self) -> arq_records.Records:
        return arq_records.Records(self._resource_map, self._conf.cyborg.claim_capacity)

    def _recover(self) -> None:
        records = self._records()
        recovery.commit_bound(self._tracker.engine, records, self._tracker.arqs(), mapping.source(self._conf))

    def _register(self) -> None:
        """Record the use of [cyborg] source at the start, so that another Cyborg with the same name repairs nothing."""
        try:
            self._is_registered = cyborg_host.reconciler(self._conf, self._tracker.engine, self._records()).register()
        except SourceShared as error:
            self._is_registered = True
            LOG.error("The ledger will not be repaired: %s", error)

    def _check_tree(self) -> None:
        """Warn, once after the start, of tree edges that the limit driver ignores or will replace."""
        warnings = self._tracker.engine.administration.tree_warnings(self._admin)
        self._has_checked_tree = True
        for warning in warnings:
            LOG.warning("%s", warning)

    def _expire(self) -> None:
        count = self._tracker.engine.expire(self._admin)
        LOG.log(logging.INFO if count else logging.DEBUG, "Expired %d reservations.", count)

    def _reconcile(self) -> None:
        reconciler = cyborg_host.reconciler(self._conf, self._tracker.engine, self._records())
        try:
            reconciler.register()
        except SourceShared as error:
            LOG.error("The ledger was not repaired: %s", error)
            return
        report = reconciler.find()
        repaired: list[Difference] = []
        try:
            if report.differences and self._conf.cyborg.reconcile_heal != "none":
                only_certain = self._conf.cyborg.reconcile_heal == "certain"
                repaired = reconciler.heal(report, only_certain=only_certain, is_automatic=True)
        except (SourceShared, TooManyChanges, RecordsShrunk) as error:
            LOG.error("The ledger was not repaired: %s", error)
        if not report.differences:
            LOG.debug("The ledger agrees with Cyborg's records for all %d accelerators.", report.compared)
        if repaired:
            LOG.warning("Repaired the charges of %d of %d accelerators.", len(repaired), report.compared)
        repaired_arqs = {difference.arq for difference in repaired}
        remaining = [difference for difference in report.differences if difference.arq not in repaired_arqs]
        self._log_remaining(report, remaining)

    @staticmethod
    def _log_remaining(report: Report, remaining: Sequence[Difference]) -> None:
        for difference in remaining[:_MAX_LOGGED]:
            suffix = "" if difference.is_own else _NOT_REPAIRED
            LOG.warning("The ledger differs from Cyborg's records: %s%s", difference, suffix)
        total = len(remaining) + sum(report.omitted.values())
        if total:
            LOG.warning(
                "The ledger differs from Cyborg's records for %d of %d accelerators. Run: cyborg-quota reconcile",
                total,
                report.compared,
            )
