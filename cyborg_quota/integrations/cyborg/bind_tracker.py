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
from cyborg_quota.attachment import LOST, roll_back_rest
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerAwaited, LedgerGuard
from cyborg_quota.integrations.cyborg.reach import Reach, reach_of

T = TypeVar("T")

LOG = logging.getLogger(__name__)

_LOST: Final = (*LOST, exceptions.ReservationReleased)
"""A released reservation can belong to an ARQ that is still bound, so `is_bound` is checked after these errors."""

class Request:
    """A request to the API or the conductor. It waits for an unavailable ledger once, however many ARQs it has."""

    has_waited = False
    """Whether it has waited for the ledger in vain: its further calls fail immediately."""
    was_refused_slot = False
    """Whether it has waited for a slot in vain: its further releases wait for none."""


_REQUEST: Final[contextvars.ContextVar[Request | None]] = contextvars.ContextVar("cyborg_quota_request", default=None)


@contextlib.contextmanager
def one_request() -> Iterator[None]:
    """In this block, the thread waits for an unavailable ledger once; its further calls fail immediately."""
    token = _REQUEST.set(Request())
    try:
        yield
    finally:
        _REQUEST.reset(token)


@dataclasses.dataclass(frozen=True)
class Caller:
    """The request context for the ledger: the project that owns the ARQ.

    It never has an administrator's rights, even if the bind is an administrator's: the owner of the server may read the
    text of a refusal, and must not see what other projects use (I8).
    """

    project_id: str
    is_admin: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class BindRequest:
    """The amounts to reserve for the bind of one ARQ. Empty ``deltas``: the ARQ is not counted.

    ``provider``: the provider whose capacity the bind claims, or None.
    """

    arq: str
    instance: str
    caller: Caller
    deltas: dict[str, int]
    provider: str | None = None


class BindReservation:
    """The reservations of the bind of one ARQ. Its methods may be called repeatedly, from any thread."""

    def __init__(self, tracker: BindTracker, request: BindRequest, uuids: list[str]) -> None:
        self._tracker = tracker
        self.request = request
        self.uuids = uuids
        self.extended = time.monotonic()
        self._settled = not uuids
        self.goes_on = False
        """True if a job will settle it later."""
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """The thread of the parent that settles or extends it does not exist in the child."""
        self._lock = threading.Lock()

    @property
    def is_settled(self) -> bool:
        """Whether it is committed, rolled back, or left to another call."""
        return self._settled

    def commit(self, is_bound: Callable[[], bool]) -> None:
        """Commit the reservation of a bound ARQ. If the reservation was lost, reserve and commit again.

        After a new reservation, ``is_bound`` is called again: an unbind whose release ran before the new charge would
        otherwise leave that charge behind. Raises OverQuota or another refusal if the ARQ cannot be charged; the
        caller must then detach it. If the database is unavailable, raises nothing: the ARQ stays bound, and the next
        comparison with Cyborg's records charges it, even if that exceeds a limit.
        """
        with self._lock:
            if self._settled:
                return
            try:
                self._commit(is_bound)
            except (exceptions.DatabaseError, exceptions.LimitsUnavailable) as error:
                LOG.error(
                    "ARQ %s is bound, and its reservation could not be committed: %s The next comparison with Cyborg's "
                    "records does it.",
                    self.request.arq,
                    error,
                )
                self._tracker.guard.want_repair()
            self._finish()

    def _commit(self, is_bound: Callable[[], bool]) -> None:
        engine, call, caller = self._tracker.engine, self._tracker.call, self.request.caller
        try:
            call(engine.commit, caller, self.uuids)
            return
        except _LOST as lost:
            LOG.warning(
                "ARQ %s is bound, but its reservation was lost: %s Reserving and committing it again.",
                self.request.arq,
                lost,
            )
        call(roll_back_rest, engine, caller, self.uuids)
        if not is_bound():
            return
        self.uuids = self._tracker.reserve_requests([self.request])
        call(engine.commit, caller, self.uuids)
        if not is_bound():
            call(engine.release, caller, self.uuids)

    def give_up(self, is_bound: Callable[[], bool]) -> None:
        """Roll back after a bind that failed or did not start. Raises nothing: after a failed rollback, it expires.

        ``is_bound``: whether Cyborg has the ARQ bound.
        """
        with self._lock:
            if self._settled:
                return
            engine, caller = self._tracker.engine, self.request.caller
            try:
                try:
                    self._tracker.call(engine.rollback, caller, self.uuids)
                except exceptions.ReservationCommitted:
                    # Another delivery of the same call committed it; its bind may have succeeded.
                    if not is_bound():
                        self._tracker.release(self.request.arq, caller.project_id, self.uuids)
            except exceptions.ReservationNotFound as error:
                # The database was restored from a backup without this reservation: nothing is charged.
                LOG.info("ARQ %s is not bound and not charged: %s", self.request.arq, error)
            except exceptions.QuotaError as error:
                LOG.error(
                    "ARQ %s is not bound, but its reservation could not be rolled back: %s It will expire.",
                    self.request.arq,
                    error,
                )
            self._finish()

    def leave(self) -> None:
        """Stop tracking it without settling: another call binds this ARQ with the same reservation, and settles it."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        self._settled = True
        self._tracker.forget(self)

    def extend(self, ttl_seconds: int) -> Reach | None:
        """Extend the reservation while the bind runs. Raises nothing: commit detects a lost reservation.

        Returns which other calls would fail too, if the ledger call failed.
        """
        with self._lock:
            if self._settled:
                return None
            try:
                self._tracker.call(self._tracker.engine.extend, self.request.caller, self.uuids, ttl_seconds)
            except _LOST as lost:
                LOG.warning(
                    "The reservation of ARQ %s was lost during its bind, which will reserve again: %s",
                    self.request.arq,
                    lost,
                )
            except exceptions.QuotaError as error:
                LOG.error("The reservation of ARQ %s could not be extended: %s", self.request.arq, error)
                return reach_of(error)
            self.extended = time.monotonic()
            return None


class BindTracker:
    """Charges and releases ARQs, and tracks the binds in progress in this process. Shared by its threads.

    :param source: recorded with each charge; see Claim.source.
    :param repair: compares all charges with Cyborg's records, after calls of the ledger failed; see Repair.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        *,
        bind_expire_seconds: int,
        source: str | None = None,
        repair: Callable[[], bool] = lambda: True,
    ) -> None:
        self.engine = engine
        self._source = source
        self.guard = LedgerGuard(engine.ping, repair)
        self._ttl = bind_expire_seconds
        self._admin = validation.admin_context()
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Clear the state in a forked child: the parent settles its binds."""
        self.guard.reset()
        self._lock = threading.Lock()
        self._running: set[BindReservation] = set()

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call the ledger. Raises LedgerNotCalled immediately if this process or request has already waited for it."""
        request = _REQUEST.get()
        if request is None:
            return self.guard.call(function, *args, **options)
        if request.has_waited:
            raise self.guard.offline() if self.guard.is_open else LedgerAwaited()
        try:
            return self.guard.call(function, *args, **options)
        except exceptions.DatabaseUnavailable:
            request.has_waited = True
            raise

    def reserve_binds(self, requests: Iterable[BindRequest]) -> dict[str, BindReservation]:
        """Reserve for all ARQs of a call, all or none; returns {arq: reservation}. Raises what reserve_many does.

        One transaction per project. Nova's calls have one project. In an administrator's call with several, a refusal
        of one project rolls back the reservations of the projects before it.
        """
        together: dict[Caller, list[BindRequest]] = {}
        for request in requests:
            together.setdefault(request.caller, []).append(request)
        reservations: dict[str, BindReservation] = {}
        try:
            for group in together.values():
                reservations.update(self._reserve_together(group))
        except BaseException:
            for reservation in reservations.values():
                reservation.give_up(lambda: True)  # keep what was committed before this call
            raise
        return reservations

    def _reserve_together(self, group: list[BindRequest]) -> dict[str, BindReservation]:
        counted = [request for request in group if request.deltas]
        uuids = iter(self.reserve_requests(counted))
        made = {request.arq: BindReservation(self, request, [next(uuids) for _ in request.deltas]) for request in group}
        with self._lock:
            self._running.update(reservation for reservation in made.values() if not reservation.is_settled)
        return made

    def reserve_requests(self, requests: list[BindRequest]) -> list[str]:
        """Reserve for requests of one caller; returns the reservation UUIDs in the order of the requests."""
        if not requests:
            return []
        claims = [
            Claim(one.arq, one.deltas, group=one.instance, source=self._source, provider=one.provider)
            for one in requests
        ]
        return self.call(self.engine.reserve_many, requests[0].caller, claims, self._ttl)

    def release(self, arq: str, project_id: str | None, uuids: list[str] | None = None) -> bool:
        """Release the charge of an unbound or deleted ARQ. May be repeated. Raises nothing.

        Returns False if it failed: the next comparison with Cyborg's records finds the charge. ``uuids``: release only
        these of its reservations.
        """
        if project_id is None:
            return True  # it was never bound with quota, so nothing was charged
        request = _REQUEST.get() or Request()
        if not self.guard.take_slot(wait=not (request.has_waited or request.was_refused_slot)):
            request.was_refused_slot = True
            return self._fail_release(arq, project_id, "other threads are still waiting for the ledger.")
        try:
            if uuids is None:
                self.call(self.engine.release, self._admin, None, project_id, consumer=arq)
            else:
                self.call(self.engine.release, self._admin, uuids, project_id)
        except exceptions.QuotaError as error:
            return self._fail_release(arq, project_id, str(error))
        finally:
            self.guard.free_slot()
        return True

    def _fail_release(self, arq: str, project_id: str, reason: str) -> bool:
        LOG.error(
            "ARQ %s of project %s is unbound and still charged: %s The next comparison with Cyborg's records releases "
            "it.",
            arq,
            project_id,
            reason,
        )
        self.guard.want_repair()
        return False

    def forget(self, reservation: BindReservation) -> None:
        """Stop tracking a settled reservation."""
        with self._lock:
            self._running.discard(reservation)

    def extend_running(self) -> None:
        """Extend the reservations of running binds once a third of their lifetime has passed.

        Called by the periodic task. If a lock is not granted, the others of the same project wait for the next call.
        """
        with self._lock:
            due = [running for running in self._running if time.monotonic() - running.extended > self._ttl / 3]
        locked = set[str]()
        for reservation in due:
            project_id = reservation.request.caller.project_id
            reach = None if project_id in locked else reservation.extend(self._ttl)
            if reach is Reach.LEDGER:
                return
            if reach is Reach.PROJECT:
                locked.add(project_id)
