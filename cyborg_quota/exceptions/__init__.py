# SPDX-License-Identifier: Apache-2.0
"""The exceptions that cyborg_quota raises. Each one has its data as attributes.

A program tests the class and the attributes. The message is for people and, where possible, says what to do next.
No message contains a connection URL.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cyborg_quota.exceptions.base import MOST_VIOLATIONS, listed
from cyborg_quota.exceptions.base import InvalidRequest as InvalidRequest
from cyborg_quota.exceptions.base import NotFound as NotFound
from cyborg_quota.exceptions.base import QuotaError as QuotaError
from cyborg_quota.exceptions.projects import AmbiguousProject as AmbiguousProject
from cyborg_quota.exceptions.projects import ProjectLookupFailed as ProjectLookupFailed
from cyborg_quota.exceptions.projects import UnknownProject as UnknownProject
from cyborg_quota.exceptions.totals import TotalLimitNotFound as TotalLimitNotFound
from cyborg_quota.safe_repr import amounts, safe_repr

if TYPE_CHECKING:
    from cyborg_quota.types import Over, RecordedChange
    from cyborg_quota.types.capacity import CapacityOver


# --- refusals ------------------------------------------------------------------------------------------------


class OverQuota(QuotaError):
    """The request would exceed a limit. Nothing was charged.

    ``overs`` is a list of :class:`cyborg_quota.types.Over`, one for each violated constraint, sorted by project,
    resource and scope.
    """

    def __init__(self, overs: Iterable[Over]) -> None:
        self.overs = sorted(overs)
        super().__init__("Quota exceeded: " + listed(self.overs, MOST_VIOLATIONS))


class OverCapacity(QuotaError):
    """The named provider, or every provider, cannot take the claim. Nothing was charged.

    ``overs`` is a list of :class:`cyborg_quota.types.capacity.CapacityOver`, sorted by provider and resource. A request
    that would also exceed a limit raises OverQuota instead.
    """

    def __init__(self, overs: Iterable[CapacityOver]) -> None:
        self.overs = sorted(overs, key=lambda over: (over.provider or "", over.resource, over.requested))
        super().__init__("The claim does not fit: " + listed(self.overs, MOST_VIOLATIONS))


class NotAuthorized(QuotaError):
    """The context is not allowed to make this call. The error does not reveal whether the object exists."""

    def __init__(self, action: str, needs: str = "an admin's context") -> None:
        self.action = action
        super().__init__(f"Not authorized: {action} needs {needs}.")


# --- invalid input: raised before anything is written --------------------------------------------------------


class InvalidName(InvalidRequest):
    """The name of a project, resource, consumer or group cannot be stored or compared."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"Invalid {field} {safe_repr(value)}: {reason}.")


class UnknownResource(InvalidRequest):
    """The request names a resource that is not registered."""

    def __init__(self, unknown: Iterable[str], known: Iterable[str]) -> None:
        self.unknown = sorted(unknown)
        self.known = sorted(known)
        super().__init__(
            f"Unknown resource {', '.join(map(safe_repr, self.unknown))}; registered resources: "
            f"{', '.join(self.known) or 'none'}. Register it, or add it to [quota] resources."
        )


class InvalidDelta(InvalidRequest):
    """An amount is not an integer, is less than 1, or has more than 31 bits."""

    def __init__(self, resource: str, delta: object, reason: str) -> None:
        self.resource = resource
        self.delta = delta
        self.reason = reason
        super().__init__(f"Invalid amount {safe_repr(delta)} for resource {safe_repr(resource)}: {reason}.")


class InvalidClaim(InvalidRequest):
    """The claims are empty, have the wrong type, or name the same consumer twice."""


class InvalidSelection(InvalidRequest):
    """The call does not have exactly one of reservations, consumer and group; or the list is empty."""


class InvalidReservationExpiration(InvalidRequest):
    """The expiry is not None, a number of seconds, a timedelta or a datetime; or it is not in the future."""

    def __init__(self, expire: object, reason: str) -> None:
        self.expire = expire
        self.reason = reason
        super().__init__(f"Invalid reservation expiration {safe_repr(expire)}: {reason}.")


class MarkerNotFound(InvalidRequest):
    """The list has no row with this marker. (An empty page would mean that the list has ended.)"""

    def __init__(self, marker: Sequence[str | None]) -> None:
        self.marker = tuple(marker)
        project = "(default)" if marker[0] is None else safe_repr(marker[0])
        shown = " ".join([project, *(safe_repr(name) for name in marker[1:] if name is not None)])
        super().__init__(f"Marker {shown}: the list has no such row.")


class InvalidDocument(InvalidRequest):
    """A document of limits is invalid. ``place`` is the position of the error: ``projects[0].children[2].limits``."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        short_place = place if len(place) <= 120 else f"{place[:58]}...{place[-59:]}"
        super().__init__(f"Invalid document of limits: {short_place} {reason}.")


class InvalidInventory(InvalidRequest):
    """A value of an inventory is invalid: the total, reserved, min_unit, max_unit, step_size, allocation_ratio."""

    def __init__(self, resource: str, field: str, value: object, reason: str) -> None:
        self.resource, self.field, self.value, self.reason = resource, field, value, reason
        shown = safe_repr(str(value) if isinstance(value, decimal.Decimal) else value)
        super().__init__(f"Invalid {field} {shown} of the inventory of {safe_repr(resource)}: {reason}.")


class ReasonRequired(InvalidRequest):
    """[limits] require_reason is set, and the change of limits or of the project tree has no reason."""

    next_step = "Give it with --reason."

    def __init__(self) -> None:
        super().__init__("A change of limits needs a reason: [limits] require_reason is set.")


class UsageOverflow(InvalidRequest):
    """The sum does not fit into the counter of the project, which is a 32-bit integer."""

    def __init__(self, project_id: str, resource: str, requested: int) -> None:
        self.project_id = project_id
        self.resource = resource
        self.requested = requested
        super().__init__(
            f"Project {project_id} cannot hold {requested} more of {resource}: the maximum of a counter is 2147483647. "
            "Release some first, or count the resource in larger units."
        )


# --- reservations --------------------------------------------------------------------------------------------


class ReservationError(QuotaError):
    """The state of a reservation does not allow the call."""

    reason = "cannot be used"

    def __init__(self, uuid: str | None, text: str | None = None) -> None:
        self.uuid = uuid
        super().__init__(text or f"Reservation {safe_repr(uuid)} {self.reason}.")


class ReservationNotFound(NotFound, ReservationError):
    """The reservation does not exist, or belongs to another project (both raise the same error).

    For a call by consumer or group, ``uuid`` is that name: it has no reservation in the project.
    """

    reason = "was not found"

    @classmethod
    def of_holder(cls, project_id: str, consumer: str | None, group: str | None = None) -> ReservationNotFound:
        """The error for a consumer or a group."""
        kind, name = ("Group", str(group)) if consumer is None else ("Consumer", consumer)
        return cls(name, f"{kind} {safe_repr(name)} of project {safe_repr(project_id)} holds no reservation.")


class ResourceNotHeld(ReservationNotFound):
    """The consumer holds other resources, but not this one. ``uuid`` is None."""

    def __init__(self, project_id: str, consumer: str, resource: str) -> None:
        self.project_id, self.consumer, self.resource = project_id, consumer, resource
        who = f"Consumer {safe_repr(consumer)} of project {safe_repr(project_id)}"
        super().__init__(None, f"{who} holds no {safe_repr(resource)}. Reserve it for another consumer.")


class ReservationCommitted(ReservationError):
    """The reservation was already committed. Release it; it cannot be rolled back."""

    reason = "was committed; release it instead"


class ReservationRolledBack(ReservationError):
    """The reservation was rolled back. Make a new one."""

    reason = "was rolled back; reserve again"


class ReservationExpired(ReservationError):
    """The reservation was not committed before its expiry. Make a new one."""

    reason = "has expired; reserve again"


class ReservationReleased(ReservationError):
    """The reservation was committed and later released. Make a new one."""

    reason = "was released; reserve again"


class ReservationConflict(QuotaError):
    """The consumer already has live reservations with other deltas, or without the requested provider or pod.

    ``held`` and ``requested`` map resources to deltas. ``provider``, ``pod``: the requested one, if only that differs.
    """

    def __init__(
        self, consumer: str, held: Mapping[str, int], requested: Mapping[str, int], *,
        provider: str | None = None, pod: str | None = None, text: str | None = None,
    ) -> None:  # fmt: skip
        self.consumer, self.held, self.requested = consumer, dict(held), dict(requested)
        self.provider, self.pod = provider, pod
        differs = f"which differs from the request ({amounts(requested)})"
        if provider is not None:
            differs = f"but not at provider {safe_repr(provider)}"
        if pod is not None:
            differs = f"but not in pod {safe_repr(pod)}"
        super().__init__(
            text
            or f"Consumer {safe_repr(consumer)} already holds {amounts(held)}, {differs}. "
            "Release or roll back the existing reservations first."
        )


class AmountChanged(ReservationConflict):
    """The consumer does not hold the expected amounts. Nothing was changed. ``held`` and ``requested`` are amounts."""

    def __init__(self, consumer: str, held: Mapping[str, int], expected: Mapping[str, int]) -> None:
        text = (
            f"Consumer {safe_repr(consumer)} holds {amounts(held)}, which differs from the expected amounts "
            f"({amounts(expected)}). Nothing was changed."
        )
        super().__init__(consumer, held, expected, text=text)


class NameConflict(ReservationConflict):
    """A commit with a name: the name is held by another claim, or a reservation has another consumer.

    Nothing was changed. ``held``: what the other claim, or the other consumer, holds.
    """

    def __init__(self, consumer: str, held: Mapping[str, int], requested: Mapping[str, int], reason: str) -> None:
        text = f"The name {safe_repr(consumer)} cannot be given: {reason}. Nothing was changed."
        super().__init__(consumer, held, requested, text=text)


# --- limits and the project tree -----------------------------------------------------------------------------


class LimitNotSet(QuotaError):
    """No limit is set for a resource, and [limits] missing is refuse. ``hint`` says how to set a limit."""

    conflict = "limit_not_set"

    def __init__(self, resource: str, hint: str) -> None:
        self.resource, self.hint = resource, hint
        super().__init__(f"No limit is set for resource {safe_repr(resource)}. {hint}")


class LimitsUnavailable(QuotaError):
    """The limit source is unavailable, and the cached limits are too old to be used. Nothing was charged."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason, self.seconds = reason, seconds
        super().__init__(f"Limits have been unavailable for {seconds:.0f} s ({reason}). Nothing was charged.")


class LimitsReadOnly(QuotaError):
    """[limits] driver is not database, so limits and the project tree cannot be changed here. See ``where``."""

    conflict = "limits_read_only"

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"Limits cannot be set here, because [limits] driver is not database. They are set {where}.")


class TreeReadOnly(QuotaError):
    """The source of the limits keeps the project tree too, so it cannot be changed here."""

    conflict = "limits_read_only"

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"The project tree is kept in {source.title()}, because [limits] driver is {source}: change it there, and "
            f"run `cyborg-quota project import --from {source}` if it is to be changed here at once."
        )


class LimitRefused(QuotaError):
    """The enforcement model forbids the change. Nothing was changed.

    ``problems``: one sentence for each violation; the message has the first MAX_SHOWN. ``changes``: the changes that an
    import would have made.
    """

    MAX_SHOWN: Final = 10
    conflict = "limit_refused"

    def __init__(self, problems: Sequence[str], changes: Sequence[RecordedChange] = ()) -> None:
        self.problems = list(problems)
        self.changes = list(changes)
        super().__init__(f"Not allowed: {listed(self.problems, self.MAX_SHOWN)}. Nothing was changed.")


class OverrideNotFound(NotFound):
    """The override does not exist, has ended, or was cancelled."""

    next_step = "List the overrides: cyborg-quota limit override list"

    def __init__(self, override_id: str) -> None:
        self.override_id = override_id
        super().__init__(f"Override {safe_repr(override_id)} was not found, or has ended. Nothing was changed.")


class ProjectRefused(QuotaError):
    """A project cannot be added, moved or removed: it is unknown, is in use, or would become its own descendant."""

    conflict = "project_refused"

    def __init__(self, project_id: str, reason: str) -> None:
        self.project_id, self.reason = project_id, reason
        super().__init__(f"Project {safe_repr(project_id)} {reason}.")


# --- pods ----------------------------------------------------------------------------------------------------


class InvalidPod(InvalidRequest):
    """A value of a pod cannot be stored."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field, self.value, self.reason = field, value, reason
        super().__init__(f"Invalid {field} {safe_repr(value)} of a pod: {reason}.")


class PodNotFound(NotFound):
    """No pod has this name."""

    next_step = "List the pods: cyborg-quota pod list"

    def __init__(self, pod: str) -> None:
        self.pod = pod
        super().__init__(f"Pod {safe_repr(pod)} was not found.")


class PodExists(QuotaError):
    """Another pod has the same name. Nothing was changed."""

    def __init__(self, pod: str) -> None:
        self.pod = pod
        super().__init__(f"A pod with the name {safe_repr(pod)} exists.")


class PodInUse(QuotaError):
    """A pod cannot be removed: projects are bound to it, or providers belong to it. Nothing was changed."""

    def __init__(self, pod: str, reason: str) -> None:
        self.pod, self.reason = pod, reason
        super().__init__(f"Pod {safe_repr(pod)} cannot be removed: {reason}.")


class PodNotAvailable(QuotaError):
    """The pod takes neither bindings nor claims that name it, because of its state. Nothing was changed."""

    def __init__(self, pod: str, state: str) -> None:
        self.pod, self.state = pod, state
        super().__init__(
            f"Pod {safe_repr(pod)} takes no bindings and no claims: its state is {state} (see `pod enable`)."
        )


class NoPodFits(QuotaError):
    """The project has no pod for this zone and these tags, and no pod passes the filters. Nothing was changed."""

    conflict = "no_pod_fits"

    def __init__(self, zone: str | None, affinity: Mapping[str, str]) -> None:
        self.zone, self.affinity = zone, dict(affinity)
        where = "any zone" if zone is None else f"zone {safe_repr(zone)}"
        tags = ", ".join(f"{safe_repr(key)}={safe_repr(value)}" for key, value in sorted(affinity.items()))
        super().__init__(
            f"No available pod passes the filters in {where} {f'with the tags {tags}' if tags else 'without tags'}."
        )


class BindingNotFound(NotFound):
    """The project has no current binding for this zone and these tags."""

    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        super().__init__(
            f"Project {safe_repr(project_id)} is not bound to a pod for this zone and these tags; "
            "see `pod binding list`."
        )


# --- capacity ------------------------------------------------------------------------------------------------


class ProviderNotFound(NotFound):
    """No provider has this UUID or name."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        super().__init__(f"Provider {safe_repr(provider)} was not found; see `cyborg-quota capacity provider list`.")


class ProviderExists(QuotaError):
    """Another provider has the same name or UUID. Nothing was changed."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        super().__init__(f"A provider with the name or UUID {safe_repr(provider)} exists.")


class ProviderInUse(QuotaError):
    """A provider, or one of its inventories, has claims or children, and cannot be removed. Nothing was changed.

    ``resource`` None: the provider has children. ``change``: what was refused.
    """

    def __init__(self, provider: str, resource: str | None, reason: str, *, change: str = "removed") -> None:
        self.provider, self.resource, self.reason = provider, resource, reason
        what = f"Provider {safe_repr(provider)}"
        if resource is not None:
            what = f"The inventory of {safe_repr(resource)} at provider {safe_repr(provider)}"
        super().__init__(f"{what} cannot be {change}: {reason}.")


class ProviderConflict(QuotaError):
    """The provider has changed since its generation was read. Nothing was changed; read it again.

    ``expected`` is the generation of the caller, ``generation`` that of the provider.
    """

    def __init__(self, provider: str, expected: int, generation: int) -> None:
        self.provider, self.expected, self.generation = provider, expected, generation
        super().__init__(
            f"Provider {safe_repr(provider)} has generation {generation}, not {expected}: it was changed concurrently. "
            "Read its inventories and try again."
        )


# --- database ------------------------------------------------------------------------------------------------


class DatabaseError(QuotaError):
    """The database rejected a statement. ``__cause__`` is the original exception."""


_CONCURRENT_CHANGES = ("keeps changing", "keep changing", "too many concurrent changes of the same rows")


class DatabaseUnavailable(DatabaseError):
    """The database was unreachable, or its statements failed, until the retry deadline. Call again later.

    Or the database answered, but other calls kept changing what this one needs; ``reason`` says so.
    """

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        self.seconds = seconds
        outcome = f"gave up after {seconds:.1f} s" if seconds >= 0.05 else "not retried"
        text = f"The database is unavailable ({reason}); {outcome}."
        if reason.endswith(_CONCURRENT_CHANGES):
            text = f"The call could not be completed ({reason}) within {seconds:.1f} s; call again."
        super().__init__(text)


class DatabaseReadOnly(DatabaseUnavailable):
    """The database server accepts no writes: it is a replica, or is set to read-only. Nothing was changed."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason, seconds)
        self.args = (
            f"The database accepts no writes ({reason}): it is a replica, or was set to be read-only. [database] "
            "connection must point to the primary server (for PostgreSQL, list all servers there and add "
            "target_session_attrs=read-write), or to an SQLite file in a directory that this user may write.",
        )


class DatabaseUnreachable(DatabaseUnavailable):
    """No connection could be made, or the server stopped answering.

    Also raised if PgBouncer cannot reach its server, or if a Galera node has no quorum. A lock timeout, a deadlock
    or another conflict raises DatabaseUnavailable, never this subclass: the server did answer, and calls for other
    projects may succeed.
    """


class SchemaError(DatabaseError):
    """The schema of the database does not match this release."""


class DatabaseNotInitialized(SchemaError):
    """The database does not contain the tables of cyborg_quota."""

    def __init__(self) -> None:
        super().__init__("The database has no cyborg_quota schema yet. Create it: cyborg-quota db sync")


class DatabaseBehind(SchemaError):
    """The schema of the database is older than this release requires."""

    def __init__(self, revision: str, head: str) -> None:
        self.revision = revision
        self.head = head
        super().__init__(
            f"The database is at revision {revision}, this code needs {head}. Upgrade it: cyborg-quota db sync"
        )


class DatabaseForeign(SchemaError):
    """The database contains tables of another service with the same names."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = sorted(tables)
        super().__init__(
            f"The database already holds another service's {', '.join(self.tables)}. Give cyborg_quota a database "
            "of its own: set [database] connection to a separate database. Nothing was changed."
        )


class ConfigurationError(QuotaError):
    """The value of a configuration option is invalid."""
