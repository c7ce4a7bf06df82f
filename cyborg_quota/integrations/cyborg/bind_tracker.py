# SPDX-License-Identifier: Apache-2.0
"""Quota around binds and unbinds: what is charged when, and what becomes of it. Knows the ledger, not Cyborg.

A bind is a *flight*: reserved before it starts, then committed, or given up. Who calls this tells what it saw of the
ARQ; nothing here asks Cyborg but through the functions that are passed in.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, forks, validation
from cyborg_quota.attachment import LOST, give_up_rest
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerGuard
from cyborg_quota.integrations.cyborg.releases import BoundOf, Releaser

T = TypeVar("T")

LOG = logging.getLogger(__name__)

_LOST: Final = (*LOST, exceptions.ReservationReleased)
"""What was released may be bound all the same: here Cyborg is asked."""

_REFUSED: Final = (
    exceptions.OverQuota,
    exceptions.TooManyOpenReservations,
    exceptions.LimitNotSet,
    exceptions.LimitsUnavailable,
)


class _Request:
    """A request of the API or of the conductor, which waits for the ledger once, whatever the number of its ARQs."""

    has_waited = False


_REQUEST: Final[contextvars.ContextVar[_Request | None]] = contextvars.ContextVar("cyborg_quota_request", default=None)


@contextlib.contextmanager
def one_request() -> Iterator[None]:
    """What this thread does inside waits for an unavailable ledger once: further calls fail at once."""
    token = _REQUEST.set(_Request())
    try:
        yield
    finally:
        _REQUEST.reset(token)


@dataclasses.dataclass(frozen=True)
class Caller:
    """Whose bind it is, for the ledger: the project that Cyborg charges, and whether an admin asks."""

    project_id: str
    is_admin: bool


@dataclasses.dataclass(frozen=True)
class BindRequest:
    """What one ARQ asks for. ``deltas`` {}: it is not counted."""

    arq: str
    instance: str
    caller: Caller
    deltas: dict[str, int]


class BindReservation:
    """One ARQ's bind, from its reservation on. ``settle`` calls may be repeated, and come from any thread."""

    def __init__(self, charger: BindTracker, wish: BindRequest, uuids: list[str]) -> None:
        self._charger = charger
        self.wish = wish
        self.uuids = uuids
        self.extended = time.monotonic()
        self._lock = threading.Lock()
        self._settled = not uuids
        self.goes_on = False
        """Somebody settles it later: a job, or the periodic task."""
        self.is_owed = False
        """Bound, and not committed yet, for the ledger was away."""

    @property
    def is_settled(self) -> bool:
        """Committed, or given up."""
        return self._settled

    def commit(self, is_bound: Callable[[], bool]) -> None:
        """The ARQ is bound. Where its reservation was lost meanwhile, it is charged afresh.

        ``is_bound`` is asked whether it still is, after that: who unbinds first and releases after would otherwise
        leave the new charge behind. Raises OverQuota and its like when it cannot be charged: detach it. A database
        that is away is no reason to: the commit is owed, and tried again by the periodic task. What is owed raises
        nothing: Nova has been told that it is bound, and an instance runs with it. So it is charged, past the limits
        if need be.
        """
        with self._lock:
            if self._settled:
                return
            try:
                self._commit(is_bound)
            except (exceptions.DatabaseError, exceptions.LimitsUnavailable) as error:
                LOG.error("The charge of bound ARQ %s could not be committed: %s Tried again.", self.wish.arq, error)
                self._charger.retry_commit_later(self, is_bound)
                return
            except exceptions.QuotaError as error:
                if not self.is_owed:
                    raise
                LOG.error(
                    "ARQ %s is bound, and could not be charged to project %s: %s See: cyborg-quota reconcile",
                    self.wish.arq,
                    self.wish.caller.project_id,
                    error,
                )
            self._finish()

    def _commit(self, is_bound: Callable[[], bool]) -> None:
        engine, call, caller = self._charger.engine, self._charger.call, self.wish.caller
        if self.is_owed and not is_bound():  # unbound meanwhile, when it could not be released either
            with contextlib.suppress(exceptions.ReservationNotFound):  # the database was restored from a backup
                call(engine.release, caller, self.uuids)
            return
        try:
            call(engine.commit, caller, self.uuids)
            return
        except _LOST as lost:
            LOG.warning("ARQ %s is bound, and is charged afresh. (%s)", self.wish.arq, lost)
        call(give_up_rest, engine, caller, self.uuids)
        if not is_bound():
            return
        self.uuids = self._reserve_afresh()
        call(engine.commit, caller, self.uuids)
        if not is_bound():
            call(engine.release, caller, self.uuids)

    def _reserve_afresh(self) -> list[str]:
        try:
            return self._charger.reserve_wishes([self.wish])
        except _REFUSED as refused:
            if not self.is_owed:
                raise
            LOG.warning(
                "ARQ %s is bound, and stays so: project %s is charged %s, though that is refused now. (%s)",
                self.wish.arq,
                self.wish.caller.project_id,
                " ".join(f"{resource}={delta}" for resource, delta in sorted(self.wish.deltas.items())),
                refused,
            )
        return self._charger.adopt(self.wish)

    def give_up(self, is_bound: Callable[[], bool]) -> None:
        """The bind failed, or never began. Raises nothing: what cannot be rolled back now expires by itself."""
        with self._lock:
            if self._settled:
                return
            engine, caller = self._charger.engine, self.wish.caller
            try:
                try:
                    self._charger.call(engine.rollback, caller, self.uuids)
                except exceptions.ReservationCommitted:
                    # By another delivery of the call, whose bind may have worked.
                    if not is_bound():
                        self._charger.release(self.wish.arq, caller.project_id, self.uuids)
            except exceptions.ReservationNotFound as error:
                # The database was restored from a backup that lacks it: nothing is charged.
                LOG.info("ARQ %s is not bound, and is not charged: %s", self.wish.arq, error)
            except exceptions.QuotaError as error:
                LOG.error(
                    "ARQ %s is not bound, and its reservation could not be rolled back: %s It expires by itself.",
                    self.wish.arq,
                    error,
                )
            self._finish()

    def leave(self) -> None:
        """Somebody else binds this ARQ, on the same reservation: it is theirs to settle."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        self._settled = True
        self._charger.forget(self)

    def extend(self, life_seconds: int) -> bool:
        """Let the reservation live on, for the bind runs. Raises nothing: what is lost is seen by commit.

        False: the ledger could not do it now.
        """
        with self._lock:
            if self._settled:
                return True
            try:
                self._charger.call(self._charger.engine.extend, self.wish.caller, self.uuids, life_seconds)
                self.extended = time.monotonic()
            except _LOST as lost:
                LOG.warning("ARQ %s is still being bound, and is charged afresh after. (%s)", self.wish.arq, lost)
                self.extended = time.monotonic()
            except exceptions.QuotaError as error:
                LOG.error("The reservation of ARQ %s could not be extended: %s", self.wish.arq, error)
                return False
            return True


class BindTracker:
    """Charges and releases ARQs; knows which binds are under way in this process. Shared by its threads.

    :param source: whose charges these are; see Claim.source.
    :param bound_of: Cyborg's records; asked before a release is retried.
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
        self._releaser = Releaser(engine, self.call, self.guard.want_retry, bound_of, self._adopt_bound)
        self._ttl = bind_expire_seconds
        self._admin = validation.admin_context()
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Binds that run, and commits and releases that are owed, are the parent's to settle."""
        self.guard.reset()
        self._releaser.reset()
        self._lock = threading.Lock()
        self._flights: set[BindReservation] = set()
        self._owed: dict[BindReservation, Callable[[], bool]] = {}

    def _retry(self) -> bool:
        return self._releaser.retry()

    def close(self) -> None:
        """At the end of the process: try once more what is pending, and end the thread."""
        self.guard.close()
        if self._releaser.pending and not self.guard.is_open:
            self._releaser.retry()
        if self._releaser.pending:
            LOG.warning(
                "%d releases were not done when the process ended. See: cyborg-quota reconcile --heal",
                self._releaser.pending,
            )

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call the ledger. Raises LedgerOffline at once where this process, or this request, has waited for it."""
        request = _REQUEST.get()
        if request is None:
            return self.guard.call(function, *args, **options)
        if request.has_waited:
            raise self.guard.offline()
        try:
            return self.guard.call(function, *args, **options)
        except exceptions.DatabaseUnavailable:
            request.has_waited = True
            raise

    def reserve_binds(self, wishes: Iterable[BindRequest]) -> dict[str, BindReservation]:
        """Reserve for all ARQs of a call, all or none; {arq: its flight}. Raises what reserve_many does.

        One transaction for all that one project is charged. Nova never names more in one call; where an admin does,
        what was reserved for the first is given up when the next is refused.
        """
        together: dict[Caller, list[BindRequest]] = {}
        for wish in wishes:
            together.setdefault(wish.caller, []).append(wish)
        flights: dict[str, BindReservation] = {}
        try:
            for group in together.values():
                flights.update(self._take_off_together(group))
        except BaseException:
            for flight in flights.values():
                flight.give_up(lambda: True)  # what had been committed before this call stays
            raise
        return flights

    def _take_off_together(self, group: list[BindRequest]) -> dict[str, BindReservation]:
        counted = [wish for wish in group if wish.deltas]
        uuids = iter(self.reserve_wishes(counted))
        made = {wish.arq: BindReservation(self, wish, [next(uuids) for _ in wish.deltas]) for wish in group}
        with self._lock:
            self._flights.update(flight for flight in made.values() if not flight.is_settled)
        return made

    def reserve_wishes(self, wishes: list[BindRequest]) -> list[str]:
        """The reservations of wishes of one caller, in their order."""
        if not wishes:
            return []
        claims = [Claim(wish.arq, wish.deltas, group=wish.instance, source=self._source) for wish in wishes]
        return self.call(self.engine.reserve_many, wishes[0].caller, claims, self._ttl)

    def adopt(self, wish: BindRequest) -> list[str]:
        """Charge what is bound, whatever the limits; returns the reservations, committed."""
        claim = Claim(wish.arq, wish.deltas, group=wish.instance, source=self._source)
        return self.call(self.engine.adopt, self._admin, [claim], wish.caller.project_id)

    def _adopt_bound(self, attached: Attached) -> None:
        if attached.deltas and attached.project_id is not None:
            claim = Claim(attached.arq, attached.deltas, group=attached.instance, source=self._source)
            self.engine.adopt(self._admin, [claim], attached.project_id)

    def release(self, arq: str, project_id: str | None, uuids: list[str] | None = None) -> bool:
        """The ARQ is unbound or deleted. May be repeated. False: it could not be released now; see Releaser.

        ``uuids``: only these of its reservations.
        """
        if project_id is None:
            return True  # such an ARQ was never bound by us
        return self._releaser.release(arq, project_id, uuids)

    # --- what the periodic task does ---

    def arqs(self) -> set[str]:
        """Those whose binds are under way here."""
        with self._lock:
            return {flight.wish.arq for flight in self._flights}

    def retry_commit_later(self, flight: BindReservation, is_bound: Callable[[], bool]) -> None:
        """Commit this one later."""
        flight.goes_on = flight.is_owed = True
        with self._lock:
            self._owed[flight] = is_bound

    def forget(self, flight: BindReservation) -> None:
        """It is settled."""
        with self._lock:
            self._flights.discard(flight)
            self._owed.pop(flight, None)

    def settle_owed(self) -> None:
        """Commit what could not be committed: see Flight.commit."""
        with self._lock:
            owed = list(self._owed.items())
        for flight, is_bound in owed:
            flight.commit(is_bound)
            if not flight.is_settled:
                return  # the ledger is still away: each of the others would wait for it as long

    def extend_running(self) -> None:
        """Extend the reservations of binds that run, when a third of their life is over."""
        with self._lock:
            due = [one for one in self._flights if time.monotonic() - one.extended > self._ttl / 3]
        for flight in due:
            if not flight.extend(self._ttl):
                return  # the others would wait as long; there are two more thirds
