# SPDX-License-Identifier: Apache-2.0
"""Reserve, commit and release quota for binds and unbinds. Uses the ledger, and does not import Cyborg.

A `BindReservation` is reserved before its bind starts, and is then committed or rolled back. Callers pass in the state
of the ARQ, or a function that reads it from Cyborg's records.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, forks, validation
from cyborg_quota.conf.resource_rules import ClassNotCounted
from cyborg_quota.cyborg.ledger_guard import LedgerGuard, LedgerNotCalled
from cyborg_quota.engine import LOST, roll_back_rest
from cyborg_quota.types import grouped

T = TypeVar("T")

LOG = logging.getLogger(__name__)

_LOST: Final = (*LOST, exceptions.ReservationReleased)
"""A released reservation can belong to an ARQ that is still bound, so `is_bound` is checked after these errors."""


_WAITS: Final[contextvars.ContextVar[list[Exception] | None]] = contextvars.ContextVar(
    "cyborg_quota_waits", default=None
)
"""The errors after which the request of this thread has waited for the ledger in vain."""


@contextlib.contextmanager
def one_request() -> Iterator[None]:
    """In this block, the thread waits for an unavailable ledger once; its further calls fail immediately.

    So a request to the API or the conductor waits once, however many ARQs it has.
    """
    token = _WAITS.set([])
    try:
        yield
    finally:
        _WAITS.reset(token)


@dataclasses.dataclass(frozen=True)
class Caller:
    """The request context for the ledger: the project that owns the ARQ.

    It never has an administrator's rights, even if the bind is an administrator's: the owner of the server may read the
    text of a refusal, and must not see what other projects use (I8).
    """

    project_id: str
    is_admin: ClassVar[bool] = False
    names_pods: ClassVar[bool] = True
    """A bind counts in the pod of its Cyborg ([cyborg] pod)."""


class BindReservation:
    """The reservations of the bind of one ARQ. Its methods may be called repeatedly."""

    def __init__(self, tracker: BindTracker, caller: Caller, claim: Claim, uuids: list[str]) -> None:
        self._tracker = tracker
        self.caller = caller
        self.claim = claim
        self.uuids = uuids
        self.extended = time.monotonic()
        self.is_settled = not uuids
        """Whether it is committed, rolled back, or left to another call."""
        self.goes_on = False
        """True if a job will settle it later."""

    def commit(self, is_bound: Callable[[], bool]) -> None:
        """Commit the reservation of a bound ARQ. If the reservation was lost, reserve and commit again.

        After a new reservation, ``is_bound`` is called again: an unbind whose release ran before the new charge would
        otherwise leave that charge behind. Raises OverQuota or another refusal if the ARQ cannot be charged; the
        caller must then detach it. If the database is unavailable, raises nothing: the ARQ stays bound, and the next
        comparison with Cyborg's records charges it, even if that exceeds a limit.
        """
        if self.is_settled:
            return
        try:
            self._commit(is_bound)
        except (exceptions.DatabaseError, exceptions.LimitsUnavailable) as error:
            LOG.error(
                "ARQ %s is bound, and its reservation could not be committed: %s The next comparison with Cyborg's "
                "records does it.",
                self.claim.consumer,
                error,
            )
            self._tracker.guard.want_repair()
        finally:
            self.leave()

    def _commit(self, is_bound: Callable[[], bool]) -> None:
        engine, call, caller = self._tracker.engine, self._tracker.call, self.caller
        try:
            call(engine.commit, caller, self.uuids)
            return
        except _LOST as lost:
            LOG.warning(
                "ARQ %s is bound, but its reservation was lost: %s Reserving and committing it again.",
                self.claim.consumer,
                lost,
            )
        call(roll_back_rest, engine, caller, self.uuids)
        if not is_bound():
            return
        self.uuids = call(engine.reserve_many, caller, [self.claim], self._tracker.ttl)
        call(engine.commit, caller, self.uuids)
        if not is_bound():
            call(engine.release, caller, self.uuids)

    def give_up(self) -> None:
        """Roll back after a bind that failed or did not start. Raises nothing: after a failed rollback, it expires."""
        if self.is_settled:
            return
        try:
            self._tracker.call(self._tracker.engine.rollback, self.caller, self.uuids)
        except (exceptions.ReservationCommitted, exceptions.ReservationNotFound) as error:
            # Another delivery of the same call committed it; if the ARQ is not bound in the end, the next comparison
            # releases it. Or the database was restored from a backup without this reservation.
            LOG.info("The reservation of ARQ %s is not rolled back: %s", self.claim.consumer, error)
        except exceptions.QuotaError as error:
            LOG.error(
                "ARQ %s is not bound, but its reservation could not be rolled back: %s It will expire.",
                self.claim.consumer,
                error,
            )
        self.leave()

    def leave(self) -> None:
        """Stop tracking it: it is settled, or another call binds this ARQ with the same reservation, and settles it."""
        self.is_settled = True
        self._tracker.running.discard(self)

    def extend(self, ttl_seconds: int) -> bool:
        """Extend the reservation while the bind runs. Raises nothing: commit detects a lost reservation.

        Returns False if the ledger was unavailable, or the rows of the project are locked.
        """
        try:
            self._tracker.call(self._tracker.engine.extend, self.caller, self.uuids, ttl_seconds)
        except _LOST as lost:
            LOG.warning(
                "The reservation of ARQ %s was lost during its bind, which will reserve again: %s",
                self.claim.consumer,
                lost,
            )
        except exceptions.QuotaError as error:
            LOG.error("The reservation of ARQ %s could not be extended: %s", self.claim.consumer, error)
            return not isinstance(error, exceptions.DatabaseUnavailable)
        self.extended = time.monotonic()
        return True


class BindTracker:
    """Charges and releases ARQs, and tracks the binds in progress in this process. Shared by its threads.

    :param want_repair: has all charges compared with Cyborg's records, because a call of the ledger failed.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        *,
        bind_expire_seconds: int,
        want_repair: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.guard = LedgerGuard(engine.ping, want_repair)
        self.ttl = bind_expire_seconds
        self._admin = validation.admin_context()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Clear the state in a forked child: the parent settles its binds, and its thread does not exist there."""
        self.guard.reset()
        self.running: set[BindReservation] = set()
        self._lock = threading.Lock()
        self._is_extending = False

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call the ledger. Raises LedgerNotCalled immediately if this process or request has already waited for it."""
        waits = _WAITS.get()
        if waits and not self.guard.is_open:
            raise LedgerNotCalled("this request has already waited for it in vain")
        try:
            return self.guard.call(function, *args, **options)
        except exceptions.DatabaseUnavailable as error:
            if waits is not None:
                waits.append(error)
            raise

    def reserve_binds(self, binds: Iterable[tuple[Caller, Claim]]) -> dict[str, BindReservation]:
        """Reserve for all ARQs of a call, all or none; returns {arq: reservation}. Raises what reserve_many does.

        The consumer of a claim is its ARQ; without deltas, the ARQ is not counted. One transaction per project. Nova's
        calls have one project. In an administrator's call with several, a refusal of one project rolls back the
        reservations of the projects before it.
        """
        made: dict[str, BindReservation] = {}
        try:
            for caller, caller_binds in grouped(binds, lambda bind: bind[0]).items():
                counted = [claim for _, claim in caller_binds if claim.deltas]
                uuids = iter(self.call(self.engine.reserve_many, caller, counted, self.ttl) if counted else ())
                for _, claim in caller_binds:
                    reservation = BindReservation(self, caller, claim, [next(uuids) for _ in claim.deltas])
                    made[str(claim.consumer)] = reservation
        except BaseException:
            for reservation in made.values():
                reservation.give_up()
            raise
        self.running.update(reservation for reservation in made.values() if not reservation.is_settled)
        return made

    def release(self, arq: str, project_id: str | None) -> bool:
        """Release the charge of an unbound or deleted ARQ. May be repeated. Raises nothing.

        Returns False if it failed: the next comparison with Cyborg's records finds the charge.
        """
        if project_id is None:
            return True  # it was never bound with quota, so nothing was charged
        try:
            self.call(self.guard.call_in_slot, self.engine.release, self._admin, None, project_id, consumer=arq)
        except exceptions.QuotaError as error:
            LOG.error(
                "ARQ %s of project %s is unbound and still charged: %s The next comparison with Cyborg's records "
                "releases it.",
                arq,
                project_id,
                error,
            )
            self.guard.want_repair()
            return False
        return True

    def extend_running(self) -> None:
        """Extend the reservations of running binds once a third of their lifetime has passed.

        Called by the periodic task. If a lock is not granted, the others of the same project wait for the next call.
        """
        locked = set[str]()
        for reservation in list(self.running):
            project_id = reservation.caller.project_id
            is_due = time.monotonic() - reservation.extended > self.ttl / 3
            if is_due and project_id not in locked and not self.guard.is_open and not reservation.extend(self.ttl):
                locked.add(project_id)

    def extend_in_thread(self) -> None:
        """Extend the reservations of running binds in a thread, which ends with the last of them.

        Called after each reserve, by a process without a periodic task.
        """
        with self._lock:
            if not self._is_extending and self.running:
                threading.Thread(target=self._extend_until_settled, name="cyborg-quota-extend", daemon=True).start()
                self._is_extending = True

    def _extend_until_settled(self) -> None:
        while True:
            time.sleep(self.ttl / 6)
            try:
                self.extend_running()
            except Exception:
                LOG.exception("The reservations of running binds could not be extended. Tried again later.")
            with self._lock:
                if not self.running:
                    self._is_extending = False
                    return


def public_message(error: exceptions.QuotaError) -> str:
    """One sentence for users of Cyborg's API about a refusal, a conflict or bad input.

    It names no host, service, URL, or command of the operator. The log has the message of the error itself.
    """
    if isinstance(error, exceptions.OverCapacity):
        return "The provider of the accelerator has no capacity left for it."  # the message names a host
    if isinstance(error, exceptions.PodNotFound | exceptions.PodNotAvailable):
        return "This deployment attaches no accelerators at present."
    if isinstance(error, ClassNotCounted):
        return f"Accelerators of resource class {error.resource_class} are not counted in this cloud; ask its operator."
    if isinstance(error, exceptions.LimitNotSet):
        return f"No limit is set for resource {error.resource}."
    if isinstance(error, exceptions.ReservationConflict):
        return f"Accelerator request {error.consumer} already has a different charge."
    return str(error)
