# SPDX-License-Identifier: Apache-2.0
"""Releases of unbound and deleted ARQs, and the retry of those that failed. Knows Cyborg only by what is passed in.

Nobody is kept from giving an accelerator back because the ledger cannot be reached: the release is kept in memory and
tried again by this process. If the process ends before that, a reconciliation finds the charge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from oslo_log import log as logging

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg.diff import Attached

LOG = logging.getLogger(__name__)

_MOST_PENDING: Final = 100_000
"""So many are kept; what is beyond is left to a reconciliation."""
_MOST_WAITING: Final = 2
"""So many threads of a process release at a time. While the ledger does not answer, and the breaker is not open yet,
the others of a web server's threads stay free for requests that need no ledger."""
_SLOT_SECONDS: Final = 0.5
"""How long the others wait for their turn. (A release takes some milliseconds.)"""

BoundOf = Callable[[Collection[str]], Mapping[str, Attached]]
"""Those of these ARQs that Cyborg has bound now. Raises QuotaError where that cannot be read."""


class PendingRelease(NamedTuple):
    """``uuids`` None: all that the ARQ holds."""

    arq: str
    project_id: str
    uuids: tuple[str, ...] | None


class Releaser:
    """Shared by the threads of a process.

    :param call: calls the ledger: ``call(function, *arguments, **options)``.
    :param postpone: has ``retry`` called later.
    :param adopt: charges an ARQ that is bound, past the limits.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        call: Callable[..., object],
        postpone: Callable[[], None],
        bound_of: BoundOf,
        adopt: Callable[[Attached], object],
    ) -> None:
        self._engine = engine
        self._call = call
        self._postpone = postpone
        self._bound_of = bound_of
        self._adopt = adopt
        self._admin = validation.admin_context()
        self.reset()

    def reset(self) -> None:
        """In a forked child: what its parent could not release is the parent's to retry."""
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_MOST_WAITING)
        self._pending: dict[PendingRelease, None] = {}

    @property
    def pending(self) -> int:
        """How many releases wait to be retried."""
        return len(self._pending)

    def release(self, arq: str, project_id: str, uuids: Sequence[str] | None = None) -> bool:
        """Release what an ARQ holds, or only these reservations. May be repeated.

        False: not yet. It is tried again by this process, unless the ledger refused it (which is logged).
        """
        wanted = PendingRelease(arq, project_id, None if uuids is None else tuple(uuids))
        if not self._slots.acquire(timeout=_SLOT_SECONDS):
            self._keep(wanted, "others have waited for the ledger since")
            return False
        try:
            self._release(wanted)
        except exceptions.DatabaseError as error:
            self._keep(wanted, str(error))
            return False
        except exceptions.QuotaError as error:
            self._say_refused(wanted, error)
            return False
        finally:
            self._slots.release()
        self._forget(wanted)
        return True

    def _release(self, wanted: PendingRelease) -> None:
        if wanted.uuids is None:
            self._call(self._engine.release, self._admin, None, wanted.project_id, consumer=wanted.arq)
        else:
            self._call(self._engine.release, self._admin, list(wanted.uuids), wanted.project_id)

    def _keep(self, wanted: PendingRelease, reason: str) -> None:
        with self._lock:
            is_kept = len(self._pending) < _MOST_PENDING
            if is_kept:
                self._pending[wanted] = None
        LOG.error(
            "ARQ %s of project %s is unbound and still charged: %s %s",
            wanted.arq,
            wanted.project_id,
            reason,
            "This process tries again; if it ends before that, see: cyborg-quota reconcile --heal"
            if is_kept
            else "See: cyborg-quota reconcile --heal",
        )
        self._postpone()

    def _forget(self, wanted: PendingRelease) -> None:
        with self._lock:
            self._pending.pop(wanted, None)

    @staticmethod
    def _say_refused(wanted: PendingRelease, error: Exception) -> None:
        LOG.error(
            "ARQ %s of project %s is unbound, and its charge cannot be released: %s See: cyborg-quota reconcile --heal",
            wanted.arq,
            wanted.project_id,
            error,
        )

    # --- what the guard's thread does ---

    def retry(self) -> bool:
        """Release what is pending; returns whether nothing is left. Raises nothing.

        An ARQ may have been bound again meanwhile: then its charge is the new bind's, and stays. One that is bound
        while it is released is charged again.
        """
        with self._lock:
            pending = list(self._pending)
        if not pending:
            return True
        try:
            bound = self._bound_of({one.arq for one in pending})
            released = self._release_all(pending, bound)
            for attached in self._bound_of({one.arq for one in released}).values():
                LOG.warning("ARQ %s was bound again while it was released, and is charged again.", attached.arq)
                self._call(self._adopt, attached)
        except exceptions.QuotaError as error:
            LOG.warning("%d releases are still to be done: %s", self.pending, error)
        except Exception:
            LOG.exception("%d releases are still to be done.", self.pending)
        return not self._pending

    def _release_all(self, pending: Sequence[PendingRelease], bound: Mapping[str, Attached]) -> list[PendingRelease]:
        released = []
        for one in pending:
            attached = bound.get(one.arq)
            if attached is None or attached.project_id != one.project_id:
                try:
                    self._release(one)
                except exceptions.DatabaseError:
                    raise
                except exceptions.QuotaError as error:
                    self._say_refused(one, error)
                else:
                    released.append(one)
                    LOG.info("ARQ %s of project %s is released.", one.arq, one.project_id)
            self._forget(one)
        return released
