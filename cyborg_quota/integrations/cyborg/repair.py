# SPDX-License-Identifier: Apache-2.0
"""The repair of the ledger in Cyborg's conductor and API: compare, and make what differs as Cyborg has it.

A process compares what changed lately every few seconds. When a call of the ledger failed, it compares all: a deleted
ARQ leaves no row in Cyborg that could be looked at. Does not import Cyborg.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions, forks
from cyborg_quota.integrations.cyborg.diff import Difference, Report
from cyborg_quota.integrations.cyborg.reconciler import Reconciler, RecordsShrunk, TooManyChanges

LOG = logging.getLogger(__name__)

_MAX_LOGGED: Final = 10
_NOT_REPAIRED: Final = (
    " (not repaired: a charge has another source or none; see cyborg-quota reconcile --claim-source, or, after a "
    "change of [cyborg] source, --claim-source FROM)"
)


class Repair:
    """Compares and repairs. Shared by the threads of a process; one of them compares at a time.

    :param is_healing: repair the differences. Otherwise they are only logged.
    """

    def __init__(self, make_reconciler: Callable[[], Reconciler], *, is_healing: bool) -> None:
        self._make_reconciler = make_reconciler
        self.is_healing = is_healing
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """The thread of the parent that compares does not exist in the child."""
        self._lock = threading.Lock()
        self._is_all_due = True
        """Whether the next comparison is of all: the first one, and after a failure."""
        self._is_trusted = False
        """Whether the last comparison of all was not refused: Cyborg's records are not a wrong or old database."""

    def compare_all_next(self) -> None:
        """Have the next comparison include all ARQs, because the ledger could not be reached."""
        self._is_all_due = True

    def after_failure(self) -> bool:
        """Compare all now, because calls of the ledger failed. Returns whether all is repaired. Raises nothing."""
        if not self.is_healing:
            return True
        self.compare_all_next()
        return self.run()

    def run(self, *, compare_all: bool = False) -> bool:
        """Compare and repair what changed lately, or all. Returns False if it failed; the next run compares all then.

        After a failure that followed a comparison of all which was not refused, a repair may change any number of
        charges: users have deleted accelerators during the outage. Raises nothing.
        """
        with self._lock:
            try:
                self._run(is_all=compare_all or self._is_all_due)
            except exceptions.QuotaError as error:
                self._is_all_due = True
                LOG.error("The ledger could not be compared with Cyborg's records: %s The next turn does it.", error)
            except Exception:
                self._is_all_due = True
                LOG.exception("The ledger could not be compared with Cyborg's records. The next turn does it.")
            return not self._is_all_due

    def _run(self, *, is_all: bool) -> None:
        reconciler = self._make_reconciler()
        report = reconciler.find() if is_all else reconciler.find_lately()
        repaired: Sequence[Difference] = ()
        is_refused = False
        if report.differences and self.is_healing:
            force = not is_all or (self._is_all_due and self._is_trusted)
            try:
                repaired = reconciler.heal(report, force=force, is_automatic=True)
            except (TooManyChanges, RecordsShrunk) as error:
                is_refused = True
                LOG.error("The ledger was not repaired: %s", error)
        repaired_arqs = {one.arq for one in repaired}
        remaining = [one for one in report.differences if one.arq not in repaired_arqs]
        has_failed = self.is_healing and not is_refused and any(one.is_own for one in remaining)
        self._log(report, len(repaired), remaining)
        if is_all:
            self._is_trusted = not is_refused
        self._is_all_due = has_failed

    @staticmethod
    def _log(report: Report, repaired: int, remaining: Sequence[Difference]) -> None:
        if repaired:
            LOG.warning("Repaired the charges of %d of %d accelerators.", repaired, report.compared)
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
        else:
            LOG.debug("The ledger agrees with Cyborg's records for all %d accelerators.", report.compared)
