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
from cyborg_quota.integrations.cyborg import adoption
from cyborg_quota.integrations.cyborg.backoff import Backoff, Reach, reach_of
from cyborg_quota.integrations.cyborg.by_project import EndOfWork, work_through
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerAwaited, LedgerGuard
from cyborg_quota.integrations.cyborg.releases import BoundOf, Releaser, Request

T = TypeVar("T")

LOG = logging.getLogger(__name__)

_LOST: Final = (*LOST, exceptions.ReservationReleased)
"""A released reservation can belong to an ARQ that is still bound, so `is_bound` is checked after these errors."""

_REFUSED: Final = (
    exceptions.OverQuota,
    exceptions.LimitNotSet,
    exceptions.LimitsUnavailable,
    exceptions.OverCapacity,
    exceptions.ProviderNotFound,
)


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

    It never has an administrator's rights, even if the bind is an administrator's: with [cyborg] redirect_nova, Nova
    shows the text of a refusal to the owner of the server, who must not see what other projects use (I8).
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

    def claim(self, source: str | None, provider: str | None) -> Claim:
        """What the ledger is asked for."""
        return Claim(self.arq, self.deltas, group=self.instance, source=source, provider=provider)


class BindReservation:
    """The reservations of the bind of one ARQ. Its methods may be called repeatedly, from any thread."""

    def __init__(self, tracker: BindTracker, request: BindRequest, uuids: list[str]) -> None:
        self._tracker = tracker
        self.request = request
        self.uuids = uuids
        self.extended = time.monotonic()
        self._settled = not uuids
        self.goes_on = False
        """True if a job or the periodic task will settle it later."""
        self.is_owed = False
        """True if the ARQ is bound, and the commit is postponed because the ledger was unavailable."""
        self.reach = Reach.LEDGER
        """Which other calls would fail for the reason of the last failure of ``commit`` or ``extend``."""
        self.backoff = Backoff()
        """When to retry a postponed commit that the database refuses."""
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
        caller must then detach it. If the database is unavailable, raises nothing: the periodic task retries the
        commit. A postponed commit never raises: Nova already knows that the ARQ is bound, and an instance uses it. So
        it is charged even if that exceeds a limit.
        """
        with self._lock:
            if self._settled:
                return
            try:
                self._commit(is_bound)
            except (exceptions.DatabaseError, exceptions.LimitsUnavailable) as error:
                LOG.error(
                    "ARQ %s is bound, and its reservation could not be committed: %s Retrying.", self.request.arq, error
                )
                self.reach = reach_of(error)
                if self.reach is Reach.CALL:
                    self.backoff.record_refusal(time.monotonic())
                self._tracker.retry_commit_later(self, is_bound)
                return
            except exceptions.QuotaError as error:
                if not self.is_owed:
                    raise
                LOG.error(
                    "ARQ %s is bound, but could not be charged to project %s: %s Run: cyborg-quota reconcile",
                    self.request.arq,
                    self.request.caller.project_id,
                    error,
                )
            self._finish()

    def _commit(self, is_bound: Callable[[], bool]) -> None:
        engine, call, caller = self._tracker.engine, self._tracker.call, self.request.caller
        if self.is_owed and not is_bound():  # unbound since; that release failed as well
            with contextlib.suppress(exceptions.ReservationNotFound):  # the database was restored from an older backup
                call(engine.release, caller, self.uuids)
            return
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
        self.uuids = self._reserve_afresh()
        call(engine.commit, caller, self.uuids)
        if not is_bound():
            call(engine.release, caller, self.uuids)

    def _reserve_afresh(self) -> list[str]:
        try:
            return self._tracker.reserve_requests([self.request])
        except _REFUSED as refused:
            if not self.is_owed:
                raise
            LOG.warning(
                "ARQ %s is bound and stays bound: project %s is charged %s although that is refused now. (%s)",
                self.request.arq,
                self.request.caller.project_id,
                " ".join(f"{resource}={delta}" for resource, delta in sorted(self.request.deltas.items())),
                refused,
            )
        return self._tracker.adopt(self.request)

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

    def extend(self, ttl_seconds: int) -> bool:
        """Extend the reservation while the bind runs. Raises nothing: commit detects a lost reservation.

        Returns False if the ledger call failed.
        """
        with self._lock:
            if self._settled:
                return True
            try:
                self._tracker.call(self._tracker.engine.extend, self.request.caller, self.uuids, ttl_seconds)
                self.extended = time.monotonic()
            except _LOST as lost:
                LOG.warning(
                    "The reservation of ARQ %s was lost during its bind, which will reserve again: %s",
                    self.request.arq,
                    lost,
                )
                self.extended = time.monotonic()
            except exceptions.QuotaError as error:
                LOG.error("The reservation of ARQ %s could not be extended: %s", self.request.arq, error)
                self.reach = reach_of(error)
                return False
            return True


class BindTracker:
    """Charges and releases ARQs, and tracks the binds in progress in this process. Shared by its threads.

    :param source: recorded with each charge; see Claim.source.
    :param bound_of: reads Cyborg's records; called before a release is retried.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        *,
        bind_expire_seconds: int,
        source: str | None = None,
        bound_of: BoundOf = lambda _arqs: {},
    ) -> None:
        self.engine = engine
        self._source = source
        self.guard = LedgerGuard(engine.ping, self._retry)
        self._releaser = Releaser(engine, self.call, self.guard, bound_of, self._adopt_bound)
        self._ttl = bind_expire_seconds
        self._admin = validation.admin_context()
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Clear the state in a forked child: the parent settles its binds and its postponed commits and releases."""
        self.guard.reset()
        self._releaser.reset()
        self._lock = threading.Lock()
        self._running: set[BindReservation] = set()
        self._owed: dict[BindReservation, Callable[[], bool]] = {}

    def _retry(self) -> bool:
        return self._releaser.retry()

    def close(self) -> None:
        """At the end of the process: retry the pending releases once, and stop the thread."""
        self.guard.close()
        if self._releaser.pending and not self.guard.is_open:
            self._releaser.retry()
        if self._releaser.pending:
            LOG.warning(
                "The process ends with %d releases not done. Run: cyborg-quota reconcile --heal",
                self._releaser.pending,
            )

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
        claims = [request.claim(self._source, request.provider) for request in requests]
        return self.call(self.engine.reserve_many, requests[0].caller, claims, self._ttl)

    def adopt(self, request: BindRequest) -> list[str]:
        """Charge a bound ARQ regardless of limits; returns the UUIDs of the committed reservations.

        If its provider was removed meanwhile, or has no inventory any more, only the quota is charged.
        """
        project_id = request.caller.project_id
        try:
            return self.call(
                self.engine.adopt, self._admin, [request.claim(self._source, request.provider)], project_id
            )
        except (exceptions.OverCapacity, exceptions.ProviderNotFound):
            return self.call(self.engine.adopt, self._admin, [request.claim(self._source, None)], project_id)

    def _adopt_bound(self, attached: Attached) -> None:
        if attached.deltas and attached.project_id is not None:
            adoption.adopt(self.engine, [attached], self._source)

    def release(self, arq: str, project_id: str | None, uuids: list[str] | None = None) -> bool:
        """Release the charge of an unbound or deleted ARQ. May be repeated. Returns False if it failed; see Releaser.

        ``uuids``: release only these of its reservations.
        """
        if project_id is None:
            return True  # it was never bound with quota, so nothing was charged
        return self._releaser.release(arq, project_id, uuids, _REQUEST.get())

    # --- called by the periodic task ---

    def arqs(self) -> set[str]:
        """The ARQs whose binds are in progress in this process."""
        with self._lock:
            return {reservation.request.arq for reservation in self._running}

    def retry_commit_later(self, reservation: BindReservation, is_bound: Callable[[], bool]) -> None:
        """Have the periodic task commit this reservation."""
        reservation.goes_on = reservation.is_owed = True
        with self._lock:
            self._owed[reservation] = is_bound

    def forget(self, reservation: BindReservation) -> None:
        """Stop tracking a settled reservation."""
        with self._lock:
            self._running.discard(reservation)
            self._owed.pop(reservation, None)

    def settle_owed(self) -> None:
        """Retry the postponed commits; see BindReservation.commit.

        One that the database refuses does not delay the others.
        """
        now = time.monotonic()
        with self._lock:
            owed = [item for item in self._owed.items() if item[0].backoff.is_due(now)]

        def work(item: tuple[BindReservation, Callable[[], bool]]) -> bool:
            reservation, is_bound = item
            reservation.commit(is_bound)
            return reservation.is_settled or _may_go_on(reservation.reach)

        work_through(owed, lambda item: item[0].request.caller.project_id, work)

    def extend_running(self) -> None:
        """Extend the reservations of running binds once a third of their lifetime has passed."""
        with self._lock:
            due = [running for running in self._running if time.monotonic() - running.extended > self._ttl / 3]

        def work(reservation: BindReservation) -> bool:
            return reservation.extend(self._ttl) or _may_go_on(reservation.reach)

        work_through(due, lambda reservation: reservation.request.caller.project_id, work)


def _may_go_on(reach: Reach) -> bool:
    """Whether to go on with the calls for the same project. Raises EndOfWork if every other call would fail too."""
    if reach is Reach.LEDGER:
        raise EndOfWork
    return reach is Reach.CALL
