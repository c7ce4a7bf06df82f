# SPDX-License-Identifier: Apache-2.0
"""The periodic work of the conductor: extend, expire, reconcile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, validation
from cyborg_quota.cyborg.bind_tracker import BindTracker
from cyborg_quota.cyborg.repair import Repair

LOG = logging.getLogger(__name__)

_TURN_SECONDS: Final = 5.0
"""The longest time between two turns: less than a call of the ledger is retried during an outage."""


class Upkeep:
    """Runs the periodic work. ``turn`` is called repeatedly, by one thread, and raises nothing."""

    def __init__(self, conf: cfg.ConfigOpts, tracker: BindTracker, repair: Repair) -> None:
        self._conf = conf
        self._tracker = tracker
        self._repair = repair
        self._admin = validation.admin_context()
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
                self._try("Overdue reservations could not be expired.", self._expire)
            self._compare(now)
        quota, cyborg = self._conf.quota, self._conf.cyborg
        return float(min(_TURN_SECONDS, quota.expire_interval, cyborg.reconcile_seconds, cyborg.bind_expire / 6))

    def _compare(self, now: float) -> None:
        """Start a comparison of the ledger with Cyborg's records: all of them, or those that changed lately."""
        is_all = now >= self._reconcile_at
        if (is_all or now >= self._repair_at) and self._repair.start(compare_all=is_all):
            if is_all:
                self._reconcile_at = now + float(self._conf.cyborg.reconcile_interval)
            if self._repair.is_healing:
                self._repair_at = now + float(self._conf.cyborg.reconcile_seconds)

    @staticmethod
    def _try(failed: str, work: Callable[[], object]) -> None:
        try:
            work()
        except exceptions.QuotaError as error:
            LOG.error("%s %s Tried again at the next turn.", failed, error)
        except Exception:
            LOG.exception("%s Tried again at the next turn.", failed)

    def _expire(self) -> None:
        count = self._tracker.engine.expire(self._admin)
        LOG.log(logging.INFO if count else logging.DEBUG, "Expired %d reservations.", count)
