# SPDX-License-Identifier: Apache-2.0
"""QuotaEngine, the public interface. It checks arguments, determines the project and calls the driver's parts."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from oslo_log import log as logging

from cyborg_quota import exceptions, validation
from cyborg_quota.metrics.monitoring import Monitoring
from cyborg_quota.policy import SEE_PODS, Policy
from cyborg_quota.queries import Queries
from cyborg_quota.subject import Resources, admin_call
from cyborg_quota.types import (
    ANY,
    COMMITTED,
    MICROSECONDS,
    Claim,
    Drift,
    Notice,
    Over,
    PodChoice,
    ReserveRequest,
    ResizeRequest,
    Resource,
    TransferRequest,
)
from cyborg_quota.types.capacity import CapacityDrift
from cyborg_quota.validation import Context

if TYPE_CHECKING:  # the command line's help must not load a database
    from typing_extensions import Unpack

    from cyborg_quota.capacity.api import Capacity
    from cyborg_quota.driver import DbQuotaDriver
    from cyborg_quota.hours.api import Hours
    from cyborg_quota.limits.api import Limits
    from cyborg_quota.limits.sources.keystone_projects import ProjectDirectory
    from cyborg_quota.pods.api import Pods

LOG = logging.getLogger(__name__)

LOST = (
    exceptions.ReservationExpired,
    exceptions.ReservationRolledBack,
    exceptions.ReservationNotFound,
)
"""The errors of a commit whose reservation was lost during the attach."""

Expire = int | datetime.timedelta | datetime.datetime | None


class ProviderChoice(TypedDict, total=False):
    """Where a claim takes capacity, as ``reserve`` gets it."""

    provider: str | Mapping[str, str] | None
    pod: str | PodChoice | None


class QuotaEngine(Queries):
    """Reserves, commits, rolls back and releases the quota of projects.

    ``reserve``, ``commit``, ``rollback`` and ``register_resource(s)`` are compatible with the calls of
    ``cyborg.quota.QUOTAS``. In all calls, ``context`` needs the attributes ``project_id`` and ``is_admin``.
    ``project_id`` may differ from that of the context only if the context is an admin's (else NotAuthorized).

    ``commit``, ``rollback``, ``release`` and ``extend`` select reservations by exactly one of ``reservations`` (UUIDs),
    ``consumer`` and ``group``. They apply to all selected reservations or to none. Every call may raise
    DatabaseUnavailable (the outcome is unknown: call again), SchemaError or InvalidRequest.
    """

    def __init__(
        self,
        driver: DbQuotaDriver,
        *,
        resources: Iterable[str] = (),
        reservation_expire_seconds: int = 86400,
        authority: Policy | None = None,
        require_reason: bool = False,
        directory: Callable[[], ProjectDirectory] | None = None,
    ) -> None:
        """``resources``: those of the configuration, which are counted in addition to the stored ones.

        ``directory``: makes a directory of Keystone's projects.
        """
        known = Resources(driver, resources)
        super().__init__(driver, known, authority or Policy(), require_reason=require_reason)
        self._expire_seconds = reservation_expire_seconds
        self._directory = directory
        common = driver, self._resources, self._authority
        self._limits: Limits | None = None
        self._subjects: dict[str, Any] | None = None
        self.monitoring: Final = Monitoring(*common)
        """Metrics of the ledger."""

    @property
    def limits(self) -> Limits:
        """Limits and the project tree. They can be changed only if [limits] driver is database."""
        if self._limits is None:
            options = {"require_reason": self._require_reason, "directory": self._directory}
            self._limits = self._driver.limits(self._resources, self._authority, **options)
        return self._limits

    @property
    def subjects(self) -> dict[str, Any]:
        """The interfaces that the driver has besides the ledger, by name: capacity and pods. Made at the first use."""
        # (functools.cached_property has a lock, which another thread may hold when the process forks.)
        if self._subjects is None:
            self._subjects = self._driver.interfaces(self._resources, self._authority)
        return self._subjects

    @property
    def capacity(self) -> Capacity:
        """Providers, their inventories, and the claims at them."""
        return cast("Capacity", self._subject("capacity"))

    @property
    def pods(self) -> Pods:
        """Pods, and the pod of each project."""
        return cast("Pods", self._subject("pods"))

    @property
    def hours(self) -> Hours:
        """What projects have used, in hours, and budgets."""
        return cast("Hours", self._subject("hours"))

    def _subject(self, name: str) -> Any:
        if name not in self.subjects:
            raise exceptions.ConfigurationError(f"This installation has no {name}.")
        return self.subjects[name]

    # --- resources ---

    def register_resource(self, resource: Any) -> None:
        """Register a resource: a name, or an object with a ``name`` (types.Resource or Cyborg's resource).

        It is stored, so that all processes count it. One that is known is not stored again, unless the object has a
        ``description`` or a ``unit``: these are changed. Raises InvalidName.
        """
        name = resource if isinstance(resource, str) else getattr(resource, "name", resource)
        texts = {field: getattr(resource, field, None) for field in ("description", "unit")}
        described = {field: validation.optional_name(field, text) for field, text in texts.items()}
        self._resources.register(Resource(validation.new_name("resource", name), **described))

    def register_resources(self, resources: Iterable[Any]) -> None:
        """Register several resources."""
        for resource in validation.resource_list(resources):
            self.register_resource(resource)

    # --- reserving ---

    def reserve(
        self,
        context: Context,
        deltas: Mapping[str, int],
        expire: Expire = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
        provider: str | Mapping[str, str] | None = None,
        pod: str | PodChoice | None = None,
    ) -> list[str]:
        """Reserve ``deltas`` ({resource: amount of at least 1}) if all limits permit it.

        With a ``provider`` (a UUID, a name, or ANY), the reservation also takes capacity of that provider, all of it
        from one provider; with {resource: provider}, from several. A repeated call with ANY returns the first
        reservations. With provider ANY and a ``pod`` (SELECT, another PodChoice, or a name, which needs the policy rule
        cyborg_quota:pod:see), the provider is one of that pod; SELECT binds the project to another pod if the claim
        does not fit in the present one.

        ``expire`` is the expiry: seconds, a timedelta or a datetime (naive means UTC). With a ``consumer``, the call is
        idempotent: a repeated call with the same deltas returns the same reservations. Returns the UUIDs of the
        reservations in the order of ``deltas``. Raises OverQuota, ReservationConflict,
        UnknownResource, UsageOverflow, LimitNotSet, LimitsUnavailable; with a provider also OverCapacity,
        ProviderNotFound; with the name of a pod also PodNotFound, PodNotAvailable, NotAuthorized.
        """
        claim = Claim(consumer, deltas, provider=provider, pod=pod)
        return self.reserve_many(context, [claim], expire, project_id, group=group)

    def reserve_many(
        self,
        context: Context,
        claims: Iterable[Claim],
        expire: Expire = None,
        project_id: str | None = None,
        *,
        group: str | None = None,
    ) -> list[str]:
        """Reserve for several consumers in one transaction. Returns the UUIDs in the order of the claims.

        Raises the same errors as ``reserve``.
        """
        project_id = validation.project_of(context, project_id)
        checked = validation.check_claims(claims, self._resources)
        names_pod = any(isinstance(claim.pod, str) for claim in checked)
        # (``names_pods``: the context of a program that belongs to a pod, as a Cyborg.)
        if names_pod and not (
            getattr(context, "names_pods", False) is True or self._authority.allows(context, SEE_PODS, project_id)
        ):
            raise exceptions.NotAuthorized("naming the pod of a claim")
        ttl = validation.expire_microseconds(expire, self._expire_seconds)
        named = validation.check_group(group)
        try:
            uuids = self._driver.reserver.charge(
                ReserveRequest(project_id, checked, named, ttl, sees_all=validation.is_admin(context))
            )
        except exceptions.OverQuota as error:
            raise exceptions.OverQuota.of(self._authority.visible(context, project_id, error.overs)) from None
        LOG.debug("Project %s reserved %s", project_id, uuids)
        return uuids

    def check(
        self,
        context: Context,
        deltas: Mapping[str, int],
        project_id: str | None = None,
        *,
        pod: str | None = None,
        redacted: bool = False,
    ) -> list[Over]:
        """The constraints, and the other bounds, that would refuse a reserve of ``deltas`` now, sorted. Writes nothing.

        Only an admin's context gets all of them; others get, of each resource, the one that determines what fits.
        ``redacted``: an admin's context, too, gets what the users of the project see. ``pod``: also the limits per pod
        of this pod, which needs the policy rule cyborg_quota:pod:see. Raises PodNotFound, LimitsUnavailable.
        """
        project_id = validation.project_of(context, project_id)
        _, in_pod = self._provider_choice(context, project_id, None, pod)
        request = validation.check_deltas(deltas, self._resources)
        sees_all = validation.is_admin(context) and not redacted
        return self._driver.headroom.check(project_id, request, sees_all=sees_all, pod=in_pod)

    @admin_call
    def adopt(
        self,
        context: Context,
        claims: Iterable[Claim],
        project_id: str | None = None,
        *,
        group: str | None = None,
    ) -> list[str]:
        """Charge accelerators that are already attached, as committed, without a limit check. Admin only; idempotent.

        If a consumer has reservations with the same deltas, they are kept, and those in state reserved are committed.
        Other deltas raise ReservationConflict. If a reservation in state reserved is rolled back, is released or
        expires during the call, its claim is charged again. A claim with a provider takes its capacity, whatever the
        units are, and even if that exceeds the capacity; a warning is then logged.
        """
        project_id = validation.project_of(context, project_id)
        checked = validation.check_claims(claims, self._resources)
        for claim in checked:
            if claim.provider == ANY:
                raise exceptions.InvalidClaim("What is attached is at one provider: name it.")
        named = validation.check_group(group)
        return self._driver.reserver.adopt(ReserveRequest(project_id, checked, named, None, True, COMMITTED))

    # --- commit, rollback, release, extend ---

    def commit(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
        known_as: str | None = None,
    ) -> None:
        """Commit reservations, after a successful attach. Committed ones are not changed.

        ``known_as``: with ``reservations`` (UUIDs of one project, of different resources) that were made without a
        consumer, the name of the consumer that holds them from now on. A repeat changes nothing.

        Raises ReservationNotFound, ReservationExpired (the expiry is then stored), ReservationRolledBack,
        ReservationReleased; with ``known_as`` also ReservationConflict, if another claim holds the name or a
        reservation has another consumer.
        """
        selection = validation.selection(context, reservations, project_id, consumer=consumer, group=group)
        if known_as is None:
            self._driver.settler.settle("commit", selection)
            return
        if selection.uuids is None:
            raise exceptions.InvalidSelection("A commit with a name (known_as) needs the UUIDs of the reservations.")
        self._driver.settler.commit_as(selection, validation.check_name("known_as", known_as))

    def rollback(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """Roll reservations back, after a failed attach. Ended ones are not changed.

        Raises ReservationNotFound, ReservationCommitted.
        """
        selection = validation.selection(context, reservations, project_id, consumer=consumer, group=group)
        self._driver.settler.settle("rollback", selection)

    def release(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """Release reservations, committed or not. Ended ones are not changed.

        An unknown consumer or group has no effect. Raises ReservationNotFound for an unknown UUID.
        """
        selection = validation.selection(context, reservations, project_id, consumer=consumer, group=group)
        self._driver.settler.settle("release", selection)

    def extend(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        expire: Expire = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """Set a new expiry, counted from now. Committed reservations are not changed.

        Raises the same errors as ``commit``.
        """
        selection = validation.selection(context, reservations, project_id, consumer=consumer, group=group)
        ttl = validation.expire_microseconds(expire, self._expire_seconds)
        self._driver.settler.settle("extend", selection, ttl)

    # --- resize, transfer ---

    def resize(
        self,
        context: Context,
        amounts: Mapping[str, int],
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        reservation: str | None = None,
        expected: Mapping[str, int] | None = None,
    ) -> None:
        """Set new amounts ({resource: positive integer}) of what a consumer holds, all or none. The UUIDs stay.

        ``reservation``: the UUID of one reservation, instead of the consumer.

        A growth must fit within all limits and, with a provider, its capacity; a reduction ignores limits. An amount
        that is held already does not change, so that the call can be repeated. ``expected``: the amounts before, of
        some of these resources; if others are held, raises AmountChanged. Other errors: those of ``commit`` and, for a
        growth, those of ``reserve``; ResourceNotHeld, InvalidDelta.
        """
        if (consumer is None) == (reservation is None):
            raise exceptions.InvalidSelection("Name either the consumer or the reservation.")
        uuids = None if reservation is None else [reservation]
        selection = validation.selection(context, uuids, project_id, consumer=consumer, group=None)
        checked = validation.check_deltas(amounts, self._resources)
        before = {} if expected is None else validation.check_deltas(expected, self._resources)
        for resource in before.keys() - checked.keys():
            raise exceptions.InvalidRequest(f"An amount of {resource} is expected, but it is not resized.")
        request = ResizeRequest(selection, checked, before, sees_all=validation.is_admin(context))
        try:
            self._driver.amender.resize(request)
        except exceptions.OverQuota as error:
            raise exceptions.OverQuota.of(
                self._authority.visible(context, str(selection.project_id), error.overs)
            ) from None

    @admin_call
    def transfer(self, context: Context, to_project: str, project_id: str | None = None, *, consumer: str) -> None:
        """Transfer all that a consumer holds in ``project_id`` to ``to_project``, whose limits apply. Admin only.

        The UUIDs, the states and the providers stay. A repeat changes nothing while the receiver holds them, and raises
        ReservationNotFound afterwards. Raises the errors of ``commit`` and ``reserve``, and ReservationConflict if
        the receiver has a consumer of this name.
        """
        project_id, to_project = (
            validation.project_of(context, project_id),
            validation.check_name("to_project", to_project),
        )
        if project_id == to_project:
            raise exceptions.InvalidRequest(f"The transfer is from project {project_id} to itself.")
        name = validation.check_name("consumer", consumer)
        self._driver.amender.transfer(TransferRequest(project_id, to_project, name))

    # --- maintenance ---

    @admin_call
    def set_source(
        self, context: Context, reservations: Sequence[str], source: str, *, replaced: str | None = None
    ) -> int:
        """Set the source (Claim.source) of live reservations that have none. Admin only.

        ``replaced``: change instead those that have this source. Other sources are never changed. Returns the number of
        changed reservations.
        """
        uuids = validation.uuid_list(reservations)
        source = validation.check_name("source", source)
        replaced = validation.optional_name("source", replaced)
        return self._driver.reservations.set_source(uuids, source, replaced) if uuids else 0

    @admin_call
    def expire(self, context: Context, *, progress: Callable[[int], None] | None = None) -> int:
        """Expire all overdue reservations and return their number. Admin only.

        Call it periodically; several hosts may do so concurrently. ``progress`` is called with the size of each batch.
        """
        return self._driver.reservations.expire(progress)

    @admin_call
    def purge(
        self,
        context: Context,
        older_than_seconds: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete reservations that ended earlier than that. Admin only. Returns by how many rows the table shrank.

        Committed reservations of the same age without a consumer and a group are merged into one carried-forward row.
        """
        rule = "The minimum age for a purge must be a whole number of seconds between 0 and 100 years"
        seconds = validation.integer(older_than_seconds, 0, validation.MAX_EXPIRE_SECONDS, rule)
        return self._driver.reservations.purge(seconds * MICROSECONDS, progress)

    @admin_call
    def notices(self, context: Context) -> list[Notice]:
        """The projects that crossed a threshold of a limit since the last call, by any host. Admin only."""
        return self._driver.thresholds.notices()

    @admin_call
    def audit(self, context: Context) -> list[Drift | CapacityDrift]:
        """The counters of usage and of inventories that differ from the reservations. Normally none. Admin only."""
        drifts = [drift for enforcer in self._driver.enforcers for drift in enforcer.audit()]
        return [*self._driver.healer.audit(), *drifts]

    @admin_call
    def heal(self, context: Context, *, progress: Callable[[int], None] | None = None) -> list[Drift | CapacityDrift]:
        """Repair the counters that ``audit`` reports, without blocking other calls. Admin only.

        Returns the counters before and after. ``progress`` is called for each row that was checked. A reservation whose
        inventory does not exist is reported, not repaired: set the inventory, or release it.
        """
        # (Inventories first: the order in which all transactions lock.)
        healed = [drift for enforcer in self._driver.enforcers for drift in enforcer.heal(progress)]
        return [*self._driver.healer.heal(progress), *healed]

    @property
    def location(self) -> str:
        """The database of usage and reservations, without credentials; for log lines."""
        return self._driver.database.location

    def ping(self) -> bool:
        """Whether the database is reachable: SELECT 1 on a new connection, with a timeout of a few seconds."""
        return self._driver.database.ping()

    def limit_scans(self, seconds: int) -> None:
        """From now on, lists over all projects and audits raise StatementTimeout after ``seconds``.

        Without this call, they have no timeout. (SQLite: none.)
        """
        self._driver.database.limit_scans(seconds)

    def close(self) -> None:
        """Close the connections of the driver. The engine can still be used: it connects again."""
        self._driver.database.close()


@contextlib.contextmanager
def attachment(
    engine: QuotaEngine,
    context: Context,
    deltas: Mapping[str, int],
    *,
    consumer: str,
    group: str | None = None,
    expire: Expire = None,
    project_id: str | None = None,
    **choice: Unpack[ProviderChoice],
) -> Iterator[list[str]]:
    """Reserve ``deltas``, run the block (the attach), commit. Yields the reservations' UUIDs.

    If the block raises an exception, the reservations are rolled back and the exception is raised again. Reservations
    that a concurrent delivery of the same call has committed are kept, because that attach succeeded.

    If the reservations were lost during the block (they expired or were rolled back), the same deltas are reserved
    again and committed. An error of this second attempt (such as OverQuota) means that the accelerator is attached but
    not charged: detach it.

    ``choice``: ``provider`` and what belongs to it, as in ``QuotaEngine.reserve``. With ANY, the attach needs to know
    which provider was chosen: read it with ``QuotaEngine.get_reservations``. The second attempt then names that one.
    """
    reserve = functools.partial(engine.reserve, context, deltas, expire, project_id, consumer=consumer, group=group)
    uuids = reserve(**choice)
    try:
        yield uuids
    except BaseException:
        # Log errors of the rollback: the exception of the block must be raised. Reservations that remain will expire.
        try:
            engine.rollback(context, uuids, project_id)
        except exceptions.ReservationCommitted:
            LOG.info("Reservations %s were committed by another delivery of the call; they are kept.", uuids)
        except Exception:
            LOG.exception("Rollback of reservations %s failed; they occupy quota until they expire.", uuids)
        raise
    try:
        engine.commit(context, uuids, project_id)
    except LOST as lost:
        LOG.warning("%s The attach of consumer %s succeeded, so its deltas are charged again.", lost, consumer)
        roll_back_rest(engine, context, uuids, project_id)
        if choice.get("provider") == ANY:
            rows = engine.get_reservations(context, project_id, consumer=consumer)
            chosen = {row.resource: row.provider for row in rows if row.uuid in uuids and row.provider}
            choice = {"provider": chosen} if chosen else choice
        uuids = reserve(**choice)
        engine.commit(context, uuids, project_id)


def roll_back_rest(engine: QuotaEngine, context: Context, uuids: list[str], project_id: str | None = None) -> None:
    """Roll back the reservations that were not lost, because a claim is charged completely or not at all."""
    for uuid in uuids:
        # Ended reservations need no rollback. Those that another delivery has committed must stay.
        with contextlib.suppress(exceptions.ReservationError):
            engine.rollback(context, [uuid], project_id)
