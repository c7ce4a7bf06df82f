# SPDX-License-Identifier: Apache-2.0
"""Release the charges of unbound and deleted ARQs, and retry failed releases. Does not import Cyborg.

An unbind or a delete succeeds even if the ledger is unreachable: the release is kept in memory, and this process
retries it. If the process ends first, a reconciliation finds the charge.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from oslo_log import log as logging

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg.backoff import Backoff, Reach, reach_of
from cyborg_quota.integrations.cyborg.by_project import EndOfWork, work_through
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerGuard

LOG = logging.getLogger(__name__)

_MOST_PENDING: Final = 100_000
"""The maximum number of pending releases kept in memory. A reconciliation finds the others."""
_MOST_REFUSALS: Final = 100
"""After so many releases that the database refused, a retry ends: all may be refused, if a table is missing."""

BoundOf = Callable[[Collection[str]], Mapping[str, Attached]]
"""Returns those of the given ARQs that are bound in Cyborg. Raises QuotaError if they cannot be read."""


class PendingRelease(NamedTuple):
    """A release to retry. ``uuids`` None: all reservations of the ARQ."""

    arq: str
    project_id: str
    uuids: tuple[str, ...] | None


class Request:
    """A request to the API or the conductor. It waits for an unavailable ledger once, however many ARQs it has."""

    has_waited = False
    """Whether it has waited for the ledger in vain: its further calls fail immediately."""
    was_refused_slot = False
    """Whether it has waited for a slot in vain: its further releases wait for none."""


class Releaser:
    """Releases charges, and keeps the failed releases. Shared by the threads of a process.

    :param call: calls the ledger: ``call(function, *arguments, **options)``.
    :param guard: its thread calls ``retry``. A release takes one of its slots.
    :param adopt: charges a bound ARQ regardless of limits.
    :param clock: monotonic time in seconds.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        call: Callable[..., object],
        guard: LedgerGuard,
        bound_of: BoundOf,
        adopt: Callable[[Attached], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._call = call
        self._guard = guard
        self._bound_of = bound_of
        self._adopt = adopt
        self._clock = clock
        self._admin = validation.admin_context()
        self.reset()

    def reset(self) -> None:
        """Reset the state, in a forked child: the parent retries its own pending releases."""
        self._lock = threading.Lock()
        self._pending: dict[PendingRelease, Backoff] = {}
        self._unchecked: dict[str, None] = {}
        """The ARQs that ``retry`` has released, and has not yet checked for a new bind."""

    @property
    def pending(self) -> int:
        """The number of releases to retry."""
        return len(self._pending)

    def release(
        self, arq: str, project_id: str, uuids: Sequence[str] | None = None, request: Request | None = None
    ) -> bool:
        """Release the reservations of an ARQ, or only ``uuids``, as part of ``request``. May be repeated.

        Returns False if it failed. This process then retries it, unless the ledger refused it (which is logged).
        """
        release = PendingRelease(arq, project_id, None if uuids is None else tuple(uuids))
        has_waited = request is not None and (request.has_waited or request.was_refused_slot)
        if not self._guard.take_slot(wait=not has_waited):
            if request is not None:
                request.was_refused_slot = True
            self._keep(release, "other threads are still waiting for the ledger.")
            return False
        try:
            self._release(release)
        except exceptions.DatabaseError as error:
            self._keep(release, str(error))
            return False
        except exceptions.QuotaError as error:
            self._log_refused(release, error)
            return False
        finally:
            self._guard.free_slot()
        self._forget(release)
        return True

    def _release(self, release: PendingRelease) -> None:
        if release.uuids is None:
            self._call(self._engine.release, self._admin, None, release.project_id, consumer=release.arq)
        else:
            self._call(self._engine.release, self._admin, list(release.uuids), release.project_id)

    def _keep(self, release: PendingRelease, reason: str) -> None:
        with self._lock:
            is_kept = len(self._pending) < _MOST_PENDING
            if is_kept:
                self._pending.setdefault(release, Backoff())
        LOG.error(
            "ARQ %s of project %s is unbound and still charged: %s %s",
            release.arq,
            release.project_id,
            reason,
            "This process retries the release; if it ends first, run: cyborg-quota reconcile --heal"
            if is_kept
            else "Run: cyborg-quota reconcile --heal",
        )
        self._guard.want_retry()

    def _forget(self, release: PendingRelease) -> None:
        with self._lock:
            self._pending.pop(release, None)

    @staticmethod
    def _log_refused(release: PendingRelease, error: Exception) -> None:
        LOG.error(
            "ARQ %s of project %s is unbound, but its charge cannot be released: %s Run: cyborg-quota reconcile --heal",
            release.arq,
            release.project_id,
            error,
        )

    # --- called by the guard's thread ---

    def retry(self) -> bool:
        """Retry the pending releases; returns whether nothing is left. Raises nothing.

        If an ARQ has been bound again, its charge belongs to the new bind and is kept. An ARQ that is bound while its
        charge is released is charged again. After a release that failed by a lock, the others of its project wait for
        the next retry, and the other projects are retried in several threads. A release that the database refuses does
        not delay the others: it is retried after them, and after pauses (see Backoff).
        """
        now = self._clock()
        with self._lock:
            due = [(release, backoff) for release, backoff in self._pending.items() if backoff.is_due(now)]
            pending = [release for release, _ in sorted(due, key=lambda item: item[1].pause_seconds)]
        try:
            if pending:
                self._release_all(pending, self._bound_of({release.arq for release in pending}))
            self._check_released()
        except exceptions.QuotaError as error:
            LOG.warning("%d releases are still pending: %s", self.pending, error)
        except Exception:
            LOG.exception("%d releases are still pending; retrying.", self.pending)
        return not self._pending and not self._unchecked

    def _release_all(self, pending: Sequence[PendingRelease], bound: Mapping[str, Attached]) -> None:
        refused: list[tuple[PendingRelease, Exception]] = []

        def work(release: PendingRelease) -> bool:
            attached = bound.get(release.arq)
            if attached is None or attached.project_id != release.project_id:
                try:
                    self._release(release)
                except exceptions.QuotaError as error:
                    reach = reach_of(error)
                    if reach is Reach.LEDGER:
                        raise
                    if reach is Reach.PROJECT:
                        LOG.warning("The releases of project %s are still pending: %s", release.project_id, error)
                        return False
                    if isinstance(error, exceptions.DatabaseError):
                        self._postpone(release, error, refused)
                        return True
                    self._log_refused(release, error)
                else:
                    self._unchecked[release.arq] = None
                    LOG.info("The charge of ARQ %s of project %s was released.", release.arq, release.project_id)
            self._forget(release)
            return True

        work_through(pending, lambda release: release.project_id, work)
        self._log_postponed(refused)

    def _check_released(self) -> None:
        """Charge the ARQs that were bound again during their release. If the ledger is offline, the next retry does."""
        bound = self._bound_of(self._unchecked) if self._unchecked else {}
        for arq in list(self._unchecked):
            if arq in bound:
                self._charge_again(bound[arq])
            del self._unchecked[arq]

    def _charge_again(self, attached: Attached) -> None:
        LOG.warning("ARQ %s was bound again while its charge was released; charging it again.", attached.arq)
        try:
            self._call(self._adopt, attached)
        except exceptions.QuotaError as error:
            if reach_of(error) is Reach.LEDGER:
                raise
            LOG.error(
                "ARQ %s of project %s is bound, and is not charged: %s Run: cyborg-quota reconcile --heal",
                attached.arq,
                attached.project_id,
                error,
            )

    def _postpone(
        self, release: PendingRelease, error: Exception, refused: list[tuple[PendingRelease, Exception]]
    ) -> None:
        """Keep a release that the database refuses, and retry it later. Raises EndOfWork after _MOST_REFUSALS."""
        with self._lock:
            if release in self._pending:
                self._pending[release].record_refusal(self._clock())
            refused.append((release, error))
        if len(refused) >= _MOST_REFUSALS:
            raise EndOfWork

    def _log_postponed(self, refused: Sequence[tuple[PendingRelease, Exception]]) -> None:
        if refused:
            release, error = refused[0]
            LOG.error(
                "The database refused %d of %d pending releases; they will be retried. The first is that of ARQ %s of "
                "project %s: %s",
                len(refused),
                self.pending,
                release.arq,
                release.project_id,
                error,
            )
