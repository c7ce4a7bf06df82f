# SPDX-License-Identifier: Apache-2.0
"""QuotaEngine: the public face. Validates, decides whose project is meant, and calls the driver."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from cyborg_quota import exceptions, names, validation
from cyborg_quota.administration import Administration
from cyborg_quota.ledger.base import QuotaDriver
from cyborg_quota.policy import Policy
from cyborg_quota.types import (
    MICROSECONDS,
    STATES,
    Claim,
    Drift,
    Notice,
    Over,
    Reservation,
    Resource,
    State,
    Usage,
    UsageRecord,
)
from cyborg_quota.validation import Context

LOG = logging.getLogger(__name__)

Expire = int | datetime.timedelta | datetime.datetime | None


class QuotaEngine:
    """Reserve, commit, roll back and release what projects hold.

    ``reserve``, ``commit``, ``rollback`` and ``register_resource(s)`` take the calls of ``cyborg.quota.QUOTAS``
    unchanged. Everywhere: ``context`` needs ``project_id`` and ``is_admin``; ``project_id`` names another project
    than the context's, which only an admin's context may (else NotAuthorized). A settling call names what it means
    by exactly one of ``reservations`` (UUIDs), ``consumer`` and ``group``, and does all of it or nothing. Any call
    may raise DatabaseUnavailable (nothing was answered: call again), SchemaError or InvalidRequest.
    """

    def __init__(
        self, driver: QuotaDriver, *, reservation_expire_seconds: int = 86400, authority: Policy | None = None
    ) -> None:
        self._driver = driver
        self._authority = authority or Policy()
        self._expire_seconds = reservation_expire_seconds
        self._resources: dict[str, Any] = {}

    # --- resources ---

    @property
    def resources(self) -> list[str]:
        """The registered resources, sorted."""
        return sorted(self._resources)

    def register_resource(self, resource: Any) -> None:
        """Count a resource from now on. ``resource`` has a ``name`` (types.Resource, Cyborg's own), or is one."""
        name = resource if isinstance(resource, str) else getattr(resource, "name", resource)
        self._resources[names.check_name("resource", name)] = (
            Resource(resource) if isinstance(resource, str) else resource
        )

    def register_resources(self, resources: Iterable[Any]) -> None:
        """Count these resources from now on."""
        for resource in validation.resource_list(resources):
            self.register_resource(resource)

    @property
    def administration(self) -> Administration:
        """Limits and the project tree. Where the limit driver keeps none of its own, they can only be looked at."""
        return Administration(self._driver, self._resources, self._authority)

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
    ) -> list[str]:
        """Charge ``deltas`` ({resource: signed amount}) as in flight, if every limit allows.

        ``expire``: seconds, timedelta or datetime (naive means UTC) after which it lapses. With a ``consumer`` the
        call may be repeated: the same deltas give the same reservations. Returns their UUIDs in the order of
        ``deltas``. Raises OverQuota, ReservationConflict, UnknownResource, UsageOverflow.
        """
        return self.reserve_many(context, [Claim(consumer, deltas)], expire, project_id, group=group)

    def reserve_many(
        self,
        context: Context,
        claims: Iterable[Claim],
        expire: Expire = None,
        project_id: str | None = None,
        *,
        group: str | None = None,
    ) -> list[str]:
        """Reserve for several consumers in one transaction, all or none. Returns UUIDs, claim by claim."""
        project_id = validation.project_of(context, project_id)
        checked = validation.check_claims(claims, self._resources)
        ttl = names.expire_microseconds(expire, self._expire_seconds)
        uuids = self._driver.reserve(
            project_id, checked, validation.optional_name("group", group), ttl, sees_all=validation.is_admin(context)
        )
        LOG.debug("Project %s reserved %s", project_id, uuids)
        return uuids

    def check(self, context: Context, deltas: Mapping[str, int], project_id: str | None = None) -> list[Over]:
        """What would block ``deltas`` now: one entry per offended constraint, sorted. Writes nothing."""
        project_id = validation.project_of(context, project_id)
        request = {
            resource: delta for resource, delta in names.check_deltas(deltas, self._resources).items() if delta > 0
        }
        return self._driver.check(project_id, request, sees_all=validation.is_admin(context)) if request else []

    def adopt(
        self,
        context: Context,
        claims: Iterable[Claim],
        project_id: str | None = None,
        *,
        group: str | None = None,
    ) -> list[str]:
        """Charge what is attached already, as committed, whatever the limits. Admin only; may be repeated.

        A consumer that holds the same deltas keeps its reservations, and what is still in flight is committed; other
        deltas raise ReservationConflict. If a reservation in flight is rolled back, released or expires during the
        call, its claim is charged anew.
        """
        validation.admin_only(context, "adopt")
        project_id = validation.project_of(context, project_id)
        checked = validation.check_claims(claims, self._resources)
        for claim in checked:
            for resource, delta in claim.deltas.items():
                if delta < 0:
                    raise exceptions.InvalidDelta(resource, delta, "what is attached is positive")
        return self._driver.adopt(project_id, checked, validation.optional_name("group", group))

    # --- settling ---

    def commit(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """What was reserved is attached. Committed already: nothing happens.

        Raises ReservationNotFound, ReservationExpired (which is then durable), ReservationRolledBack,
        ReservationReleased.
        """
        self._driver.commit(validation.selection(context, reservations, project_id, consumer=consumer, group=group))

    def rollback(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """What was reserved is given up. Ended already: nothing happens.

        Raises ReservationNotFound, ReservationCommitted.
        """
        self._driver.rollback(validation.selection(context, reservations, project_id, consumer=consumer, group=group))

    def release(
        self,
        context: Context,
        reservations: Sequence[str] | None = None,
        project_id: str | None = None,
        *,
        consumer: str | None = None,
        group: str | None = None,
    ) -> None:
        """What was reserved or attached is free again. Ended already, or an unknown name: nothing happens.

        Raises ReservationNotFound for an unknown UUID.
        """
        self._driver.release(validation.selection(context, reservations, project_id, consumer=consumer, group=group))

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
        """What is reserved lives until ``expire``, counted from now. Committed already: nothing happens.

        Raises as commit does.
        """
        selection = validation.selection(context, reservations, project_id, consumer=consumer, group=group)
        self._driver.extend(selection, names.expire_microseconds(expire, self._expire_seconds))

    # --- looking ---

    def get_usages(
        self, context: Context, project_id: str | None = None, *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        """{resource: Usage(limit, used, reserved, available)} of one project.

        Where the source of the limits cannot be asked: raises LimitsUnavailable, or (``allow_unknown_limits``) logs a
        warning and returns each Usage with limit None.
        """
        return self._driver.get_usages(
            validation.project_of(context, project_id), self._resources, allow_unknown_limits=allow_unknown_limits
        )

    def list_usages(
        self, context: Context, project_id: str | None = None, *, allow_unknown_limits: bool = False
    ) -> list[UsageRecord]:
        """Every project's usage, or one's; sorted by project and resource. Admin only.

        ``allow_unknown_limits``: as in get_usages.
        """
        validation.admin_only(context, "list_usages")
        return self._driver.list_usages(
            validation.optional_name("project_id", project_id), allow_unknown_limits=allow_unknown_limits
        )

    def list_reservations(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        state: State | None = None,
        reservations: Collection[str] | None = None,
        consumer: str | None = None,
        group: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Reservation]:
        """Reservations that match all that is given, oldest first, at most ``limit``, ``after`` a UUID. Admin only."""
        validation.admin_only(context, "list_reservations")
        if state is not None and state not in STATES:
            raise exceptions.InvalidName("state", state, f"the states are {', '.join(STATES)}")
        return self._driver.list_reservations(
            project_id=validation.optional_name("project_id", project_id),
            state=state,
            uuids=None
            if reservations is None
            else [names.check_name("reservation", uuid) for uuid in validation.uuid_list(reservations)],
            consumer=validation.optional_name("consumer", consumer),
            group=validation.optional_name("group", group),
            limit=validation.row_limit(limit),
            after=validation.optional_name("after", after),
        )

    # --- upkeep ---

    def set_source(self, context: Context, reservations: Sequence[str], source: str) -> int:
        """Record who made reservations that do not say so (Claim.source), such as an older release's. Admin only.

        Returns how many were changed: those that are live and have no source. A source is never replaced.
        """
        validation.admin_only(context, "set_source")
        uuids = [names.check_name("reservation", uuid) for uuid in validation.uuid_list(reservations)]
        source = names.check_name("source", source)
        return self._driver.set_source(uuids, source) if uuids else 0

    def expire(self, context: Context, *, progress: Callable[[int], None] | None = None) -> int:
        """End what is overdue; returns how many reservations. The periodic job: on any number of hosts at once.

        Admin only. ``progress`` is told the size of every batch.
        """
        validation.admin_only(context, "expire")
        return self._driver.expire(progress)

    def purge(
        self,
        context: Context,
        older_than_seconds: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete reservations that ended longer ago; returns by how many rows the table became shorter. Admin only.

        Committed rows of no consumer and no group, as old, become one carried-forward row.
        """
        validation.admin_only(context, "purge")
        if isinstance(older_than_seconds, bool) or not isinstance(older_than_seconds, int):
            raise exceptions.InvalidRequest("The age of what is purged must be a whole number of seconds.")
        if not 0 <= older_than_seconds <= names.MAX_EXPIRE_SECONDS:
            raise exceptions.InvalidRequest("The age of what is purged must be between 0 seconds and 100 years.")
        return self._driver.purge(older_than_seconds * MICROSECONDS, progress)

    def notices(self, context: Context) -> list[Notice]:
        """Who has crossed a threshold of a limit since anybody last asked; for the periodic job. Admin only."""
        validation.admin_only(context, "notices")
        return self._driver.notices()

    def audit(self, context: Context) -> list[Drift]:
        """The counters that differ from the reservations; none, unless somebody wrote them by hand. Admin only."""
        validation.admin_only(context, "audit")
        return self._driver.audit()

    def heal(self, context: Context, *, progress: Callable[[int], None] | None = None) -> list[Drift]:
        """Repair what audit finds, while others go on; returns the figures before and after. Admin only.

        ``progress`` is told of every row that was looked at.
        """
        validation.admin_only(context, "heal")
        return self._driver.heal(progress)

    @property
    def location(self) -> str:
        """Where usage and reservations are kept, without credentials; for a log line."""
        return self._driver.location

    def ping(self) -> bool:
        """Whether the database can be reached now: one SELECT 1 on a new connection, a few seconds at most."""
        return self._driver.ping()

    def close(self) -> None:
        """Give back the driver's connections. The engine may be used again."""
        self._driver.close()
