# SPDX-License-Identifier: Apache-2.0
"""The repair of the ledger in Cyborg's conductor and API: compare, and make what differs as Cyborg has it.

A conductor compares what changed lately every few seconds. When a call of the ledger failed, a process compares all: a
deleted ARQ leaves no row in Cyborg that could be looked at. Does not import Cyborg.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, forks, validation
from cyborg_quota.cyborg.bind_tracker import BindTracker
from cyborg_quota.cyborg.diff import Difference, Report
from cyborg_quota.cyborg.reconciler import Reconciler, RecordsShrunk, TooManyChanges

LOG = logging.getLogger(__name__)

T = TypeVar("T")

SOON_SECONDS: Final = 2.0
"""The time from a failed call to the comparison, and between two attempts to reach the ledger before it."""
RETRY_SECONDS: Final = 10.0
"""The interval between comparisons that fail although the ledger is reachable."""
_MAX_LOGGED: Final = 10
_TURN_SECONDS: Final = 5.0
"""The longest time between two turns of PeriodicTasks: less than a call of the ledger is retried during an outage."""
_NOT_REPAIRED: Final = (
    " (not repaired: a charge has another source or none; see cyborg-quota reconcile --claim-source, or, after a "
    "change of [cyborg] source, --claim-source FROM)"
)


class Repair:
    """Compares and repairs, in one thread, which runs only while there is something to do.

    :param is_reachable: whether the ledger answers now; a comparison has no timeout.
    :param is_healing: repair the differences. Otherwise they are only logged.
    """

    def __init__(
        self,
        make_reconciler: Callable[[], Reconciler],
        is_reachable: Callable[[], bool] = lambda: True,
        *,
        is_healing: bool,
    ) -> None:
        self._make_reconciler = make_reconciler
        self._is_reachable = is_reachable
        self.is_healing = is_healing
        forks.register(self)

    def renew_after_fork(self) -> None:
        """The thread of the parent that compares does not exist in the child."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_all_due = True
        """Whether the next comparison is of all: the first one, and after a failure."""
        self._is_trusted = False
        """Whether the last comparison of all was not refused: Cyborg's records are not a wrong or old database."""

    def want_all(self) -> None:
        """Compare all soon, because a call of the ledger failed. The thread finds out when the ledger answers again."""
        self._is_all_due = True
        self.start(delay_seconds=SOON_SECONDS)

    def start(self, *, compare_all: bool = False, delay_seconds: float = 0.0) -> bool:
        """Run in the thread. Returns False, without any effect, if it is running already.

        If all has become due meanwhile, the thread then runs again.
        """
        with self._lock:
            if self._thread is not None:
                return False
            run = functools.partial(self._run_until_done, delay_seconds, compare_all)
            thread = threading.Thread(target=run, name="cyborg-quota-repair", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process is ending, or may start no more threads
                return False
            self._thread = thread
            return True

    def _run_until_done(self, pause_seconds: float, compare_all: bool) -> None:
        while True:
            time.sleep(pause_seconds)
            pause_seconds = SOON_SECONDS
            if self._is_reachable():
                if not (self.is_healing or compare_all):
                    self._is_all_due = False
                elif not self.run(compare_all=compare_all):
                    pause_seconds = RETRY_SECONDS
            with self._lock:
                if not self._is_all_due:
                    self._thread = None
                    return

    def run(self, *, compare_all: bool = False) -> bool:
        """Compare and repair what changed lately, or all. Returns False if it failed; the next run compares all then.

        After a failure that followed a comparison of all which was not refused, a repair may change any number of
        charges: users have deleted accelerators during the outage. Raises nothing.
        """
        with self._lock:
            is_after_failure, self._is_all_due = self._is_all_due, False
        is_done = False
        try:
            is_done = self._run(is_all=compare_all or is_after_failure, force=is_after_failure and self._is_trusted)
        except exceptions.QuotaError as error:
            LOG.error("The ledger could not be compared with Cyborg's records: %s The next turn does it.", error)
        except Exception:
            LOG.exception("The ledger could not be compared with Cyborg's records. The next turn does it.")
        if not is_done:
            self._is_all_due = True
        return is_done

    def _run(self, *, is_all: bool, force: bool) -> bool:
        reconciler = self._make_reconciler()
        report = reconciler.find() if is_all else reconciler.find_lately()
        repaired: Sequence[Difference] = ()
        is_refused = False
        if report.differences and self.is_healing:
            try:
                repaired = reconciler.heal(report, force=force or not is_all, is_automatic=True)
            except (TooManyChanges, RecordsShrunk) as error:
                is_refused = True
                LOG.error("The ledger was not repaired: %s", error)
        repaired_arqs = {difference.arq for difference in repaired}
        remaining = [difference for difference in report.differences if difference.arq not in repaired_arqs]
        self._log(report, len(repaired), remaining)
        if is_all:
            self._is_trusted = not is_refused
        return is_refused or not self.is_healing or not any(difference.is_own for difference in remaining)

    @staticmethod
    def _log(report: Report, repaired: int, remaining: Sequence[Difference]) -> None:
        if repaired:
            LOG.warning("Repaired the charges of %d of %d accelerators.", repaired, report.compared)
        for difference in remaining[:_MAX_LOGGED]:
            suffix = "" if difference.is_own else _NOT_REPAIRED
            LOG.warning("The ledger differs from Cyborg's records: %s%s", difference, suffix)
        total = len(remaining) + report.omitted_own + report.omitted_others
        if total:
            LOG.warning(
                "The ledger differs from Cyborg's records for %d of %d accelerators. Run: cyborg-quota reconcile",
                total,
                report.compared,
            )
        else:
            LOG.debug("The ledger agrees with Cyborg's records for all %d accelerators.", report.compared)


class PeriodicTasks:
    """The periodic work of the conductor: extend, expire, reconcile.

    ``turn`` is called repeatedly, by one thread, and raises nothing.
    """

    def __init__(self, conf: cfg.ConfigOpts, tracker: BindTracker, repair: Repair) -> None:
        self._conf = conf
        self._tracker = tracker
        self._repair = repair
        now = time.monotonic()
        self._expire_at = now
        self._repair_at = now if repair.is_healing else float("inf")
        # A random delay, so that conductors started together do not all reconcile at the same time.
        interval = conf.cyborg.reconcile_interval
        self._reconcile_at = now + random.uniform(0, interval) if interval else float("inf")

    def turn(self) -> float:
        """Run the work that is due; returns the seconds until the next call."""
        self._try("The reservations of running binds could not be extended.", self._tracker.extend_running)
        # At each turn: also a short outage, in which an API could not release, opens the breaker, and is followed by a
        # comparison of all.
        if self._tracker.guard.reaches():
            now = time.monotonic()
            if now >= self._expire_at:
                self._expire_at = now + float(self._conf.quota.expire_interval)
                expire = functools.partial(self._tracker.engine.expire, validation.admin_context())
                if count := self._try("Overdue reservations could not be expired.", expire):
                    LOG.info("Expired %d reservations.", count)
            is_all = now >= self._reconcile_at
            if (is_all or now >= self._repair_at) and self._repair.start(compare_all=is_all):
                if is_all:
                    self._reconcile_at = now + float(self._conf.cyborg.reconcile_interval)
                if self._repair.is_healing:
                    self._repair_at = now + float(self._conf.cyborg.reconcile_seconds)
        quota, cyborg = self._conf.quota, self._conf.cyborg
        return float(min(_TURN_SECONDS, quota.expire_interval, cyborg.reconcile_seconds, cyborg.bind_expire / 6))

    @staticmethod
    def _try(failed: str, work: Callable[[], T]) -> T | None:
        """The result of ``work``; None if it failed, which is logged."""
        try:
            return work()
        except exceptions.QuotaError as error:
            LOG.error("%s %s Tried again at the next turn.", failed, error)
        except Exception:
            LOG.exception("%s Tried again at the next turn.", failed)
        return None
