# SPDX-License-Identifier: Apache-2.0
"""The exceptions that cyborg_quota raises. Each one has its data as attributes.

A program tests the class and the attributes. The message is for people and, where possible, says what to do next.
No message contains a connection URL.

A class whose message follows from its fields declares both: ``text`` is the message, as a format of the fields. {field}
is a text that this package made, or amounts by resource; {field!r} is an untrusted value, quoted (safe_repr);
{field!s} is a list of texts.
"""

from __future__ import annotations

import dataclasses
import decimal
import itertools
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cyborg_quota.safe_repr import amounts, safe_repr

if TYPE_CHECKING:
    from cyborg_quota.types import Over, RecordedChange
    from cyborg_quota.types.capacity import CapacityOver
    from cyborg_quota.types.limits import MaySee, Violation

MAX_VIOLATIONS: Final = 20
"""The maximum number of violations that a message names. A call may have thousands; ``overs`` has all of them."""


def listed(items: Collection[object], maximum: int) -> str:
    """The first ``maximum`` items, and the number of the others: "a; b; and 3 more"."""
    texts = [str(item) for item in itertools.islice(items, maximum)]
    more = [f"and {len(items) - maximum} more"] if len(items) > maximum else []
    return "; ".join(texts + more)


class _Formatter(string.Formatter):
    """Formats a ``text`` with the attributes of an error: see the documentation of this module."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return getattr(args[0], str(key))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "r":
            return safe_repr(str(value) if isinstance(value, decimal.Decimal) else value)
        if conversion == "s":
            return ", ".join(value)
        return amounts(value) if isinstance(value, Mapping) else value


class QuotaError(Exception):
    """The base class of all exceptions of this package.

    ``next_step``: a sentence about the command that helps, for those who have a command line. ``conflict``: the error
    code of the REST API, which answers 409; empty: it answers otherwise (api/errors.py).
    """

    next_step: ClassVar[str] = ""
    conflict: ClassVar[str] = ""
    _text: ClassVar[str] = ""

    def __init_subclass__(cls, *, text: str | None = None, conflict: str | None = None) -> None:
        cls._text = cls._text if text is None else text
        cls.conflict = cls.conflict if conflict is None else conflict

    def __post_init__(self) -> None:
        Exception.__init__(self, _Formatter().format(self._text, self).rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle an error with its attributes: the constructor cannot be called with the message alone."""
        return type(self).__new__, (type(self), *self.args), dict(self.__dict__)


class NotFound(QuotaError):
    """What the call names does not exist, or is not visible to the context."""


class InvalidRequest(QuotaError, ValueError):
    """The request is invalid. Repeating it cannot succeed."""


# --- refusals ------------------------------------------------------------------------------------------------


class OverQuota(QuotaError):
    """The request would exceed a limit. Nothing was charged.

    ``overs`` is a list of :class:`cyborg_quota.types.Over`, one for each violated constraint, sorted by project,
    resource and scope.
    """

    title: ClassVar[str] = "Quota exceeded:"

    def __init__(self, overs: Iterable[Over]) -> None:
        self.overs = sorted(overs)
        super().__init__(f"{self.title} {listed(self.overs, MAX_VIOLATIONS)}")

    @classmethod
    def of(cls, overs: Iterable[Over]) -> OverQuota:
        """OverQuota, or BudgetExceeded if only budgets are exceeded."""
        overs = list(overs)
        return (BudgetExceeded if all(over.budget for over in overs) else OverQuota)(overs)


class BudgetExceeded(OverQuota):
    """The request would exceed a budget of accelerator-hours, and no limit. Nothing was charged."""

    title = "Budget exceeded for"


@dataclasses.dataclass(eq=False, repr=False)
class BudgetNotFound(NotFound, text="Project {project_id!r} has no budget{of} now."):
    """There is no such budget, or no period of it is going on. ``resource`` None: of no resource."""

    next_step = "List the budgets of all projects: cyborg-quota budget list"
    project_id: str
    resource: str | None = None

    @property
    def of(self) -> str:
        return "" if self.resource is None else f" of {safe_repr(self.resource)}"


class OverCapacity(QuotaError):
    """The named provider, or every provider, cannot take the claim. Nothing was charged.

    ``overs`` is a list of :class:`cyborg_quota.types.capacity.CapacityOver`, sorted by provider and resource. A request
    that would also exceed a limit raises OverQuota instead.
    """

    def __init__(self, overs: Iterable[CapacityOver]) -> None:
        self.overs = sorted(overs, key=lambda over: (over.provider or "", over.resource, over.requested))
        # (The resources of a claim at any provider have the same text.)
        super().__init__("The claim does not fit: " + listed(list(dict.fromkeys(map(str, self.overs))), MAX_VIOLATIONS))


@dataclasses.dataclass(eq=False, repr=False)
class NotAuthorized(QuotaError, text="Not authorized: {action} needs {needs}."):
    """The context is not allowed to make this call. The error does not reveal whether the object exists."""

    action: str
    needs: str = "an admin's context"


# --- invalid input: raised before anything is written --------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class InvalidName(InvalidRequest, text="Invalid {field} {value!r}: {reason}."):
    """The name of a project, resource, consumer or group cannot be stored or compared."""

    field: str
    value: object
    reason: str


class UnknownResource(InvalidRequest):
    """The request names a resource that is not registered."""

    next_step = "To register it, run `cyborg-quota resource create`, or add it to [quota] resources."

    def __init__(self, unknown: Iterable[str], known: Iterable[str]) -> None:
        self.unknown = sorted(unknown)
        self.known = sorted(known)
        super().__init__(
            f"Unknown resource {', '.join(map(safe_repr, self.unknown))}; registered resources: "
            f"{', '.join(self.known) or 'none'}."
        )


@dataclasses.dataclass(eq=False, repr=False)
class InvalidDelta(InvalidRequest, text="Invalid amount {delta!r} for resource {resource!r}: {reason}."):
    """An amount is not an integer, is less than 1, or has more than 31 bits."""

    resource: str
    delta: object
    reason: str


class InvalidClaim(InvalidRequest):
    """The claims are empty, have the wrong type, or name the same consumer twice."""


class InvalidSelection(InvalidRequest):
    """The call does not have exactly one of reservations, consumer and group; or the list is empty."""


@dataclasses.dataclass(eq=False, repr=False)
class InvalidReservationExpiration(InvalidRequest, text="Invalid reservation expiration {expire!r}: {reason}."):
    """The expiry is not None, a number of seconds, a timedelta or a datetime; or it is not in the future."""

    expire: object
    reason: str


class MarkerNotFound(InvalidRequest):
    """The list has no row with this marker. (An empty page would mean that the list has ended.)"""

    def __init__(self, marker: Sequence[str | None]) -> None:
        self.marker = tuple(marker)
        project = "(default)" if marker[0] is None else safe_repr(marker[0])
        shown = " ".join([project, *(safe_repr(name) for name in marker[1:] if name is not None)])
        super().__init__(f"Marker {shown}: the list has no such row.")


class InvalidDocument(InvalidRequest):
    """A document of limits is invalid. ``position`` is where the error is: ``projects[0].children[2].limits``."""

    def __init__(self, position: str, reason: str) -> None:
        self.position, self.reason = position, reason
        shown = position if len(position) <= 120 else f"{position[:58]}...{position[-59:]}"
        super().__init__(f"Invalid document of limits: {shown} {reason}.")


@dataclasses.dataclass(eq=False, repr=False)
class InvalidInventory(InvalidRequest, text="Invalid {field} {value!r} of the inventory of {resource!r}: {reason}."):
    """A value of an inventory is invalid: the total, reserved, min_unit, max_unit, step_size, allocation_ratio."""

    resource: str
    field: str
    value: object
    reason: str


@dataclasses.dataclass(eq=False, repr=False)
class ReasonRequired(InvalidRequest, text="A change of limits needs a reason: [limits] require_reason is set."):
    """[limits] require_reason is set, and the change of limits or of the project tree has no reason."""

    next_step = "Give it with --reason."


@dataclasses.dataclass(eq=False, repr=False)
class UsageOverflow(
    InvalidRequest,
    text="Project {project_id} cannot hold {requested} more of {resource}: the maximum of a counter is 2147483647. "
    "Release some first, or count the resource in larger units.",
):
    """The sum does not fit into the counter of the project, which is a 32-bit integer."""

    project_id: str
    resource: str
    requested: int


class MeterOverflow(
    UsageOverflow,
    text="Project {project_id} cannot hold {requested} more of {resource}: a project above it, or all projects "
    "together, would hold more than 8589934591, and the device-seconds that it uses would not fit into 64 bits. "
    "Release some first, or count the resource in larger units.",
):
    """The sum over a subtree would be too large for its meter (types.MAX_COUNTED)."""


# --- reservations --------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class ReservationError(QuotaError, text="Reservation {uuid!r} cannot be used."):
    """The state of a reservation does not allow the call."""

    uuid: str | None


class ReservationNotFound(NotFound, ReservationError, text="Reservation, consumer or group {uuid!r} was not found."):
    """The reservation does not exist, or belongs to another project (both raise the same error).

    For a call by consumer or group, ``uuid`` is that name: it has no reservation in the project.
    """


@dataclasses.dataclass(eq=False, repr=False)
class ResourceNotHeld(
    ReservationNotFound,
    text="Reservation or consumer {uuid!r} of project {project_id!r} holds no {resource!r}. Reserve it for another "
    "consumer.",
):
    """The reservation, or the consumer (``uuid`` is its name), holds other resources, but not this one."""

    project_id: str
    resource: str


class ReservationCommitted(ReservationError, text="Reservation {uuid!r} was committed; release it instead."):
    """The reservation was already committed. Release it; it cannot be rolled back."""


class ReservationRolledBack(ReservationError, text="Reservation {uuid!r} was rolled back; reserve again."):
    """The reservation was rolled back. Make a new one."""


class ReservationExpired(ReservationError, text="Reservation {uuid!r} has expired; reserve again."):
    """The reservation was not committed before its expiry. Make a new one."""


class ReservationReleased(ReservationError, text="Reservation {uuid!r} was released; reserve again."):
    """The reservation was committed and later released. Make a new one."""


@dataclasses.dataclass(eq=False, repr=False)
class ReservationConflict(
    QuotaError,
    text="Consumer {consumer!r} already holds {held}, not what was requested ({requested}), or holds it at another "
    "provider or in another pod. Release or roll back the existing reservations first.",
):
    """The consumer already has live reservations with other deltas, or without the requested provider or pod.

    ``held`` and ``requested`` map resources to deltas.
    """

    consumer: str | None
    held: Mapping[str, int]
    requested: Mapping[str, int]


class AmountChanged(
    ReservationConflict,
    text="Reservation or consumer {consumer!r} holds {held}, which differs from the expected amounts ({requested}). "
    "Nothing was changed.",
):
    """The consumer, or the reservation (``consumer`` is its UUID), does not hold the expected amounts.

    Nothing was changed. ``held`` and ``requested`` are amounts.
    """


@dataclasses.dataclass(eq=False, repr=False)
class NameConflict(ReservationConflict, text="The name {consumer!r} cannot be given: {reason}. Nothing was changed."):
    """A commit with a name: the name is held by another claim, or a reservation has another consumer.

    Nothing was changed. ``held``: what the other claim, or the other consumer, holds.
    """

    reason: str


# --- limits and the project tree -----------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class LimitNotSet(QuotaError, conflict="limit_not_set", text="No limit is set for resource {resource!r}. {hint}"):
    """No limit is set for a resource, and [limits] missing is refuse. ``hint`` says how to set a limit."""

    resource: str
    hint: str


@dataclasses.dataclass(eq=False, repr=False)
class LimitsUnavailable(
    QuotaError, text="Limits have been unavailable for {seconds:.0f} s ({reason}). Nothing was charged."
):
    """The limit source is unavailable, and the cached limits are too old to be used. Nothing was charged."""

    reason: str
    seconds: float


@dataclasses.dataclass(eq=False, repr=False)
class LimitsReadOnly(
    QuotaError,
    conflict="limits_read_only",
    text="This needs [limits] driver = database. The limits in force are set {where}.",
):
    """[limits] driver is not database: the ledger has no limits in force to show or to change. See ``where``."""

    where: str


class TreeReadOnly(QuotaError, conflict="limits_read_only"):
    """The source of the limits keeps the project tree too, so it cannot be changed here."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"The project tree is kept in {source.title()}, because [limits] driver is {source}: change it there."
        )


class LimitRefused(QuotaError, conflict="limit_refused"):
    """The enforcement model forbids the change. Nothing was changed.

    ``problems``: one sentence for each violation; the message has the first MAX_SHOWN. ``changes``: the changes that an
    import would have made. ``violations``: what the sentences are made of.
    """

    MAX_SHOWN: Final = 10

    def __init__(
        self,
        violations: Sequence[Violation],
        changes: Sequence[RecordedChange] = (),
        may_see: MaySee = lambda _project_id, _parent_id: True,
        outcome: str = "Nothing was changed.",
    ) -> None:
        """``may_see``: the projects that the caller may see; the sentences do not name others (I8).

        ``outcome``: what was changed, if the call has several transactions.
        """
        self.violations, self.changes = list(violations), list(changes)
        self.problems = [violation.sentence(may_see) for violation in violations]
        super().__init__(f"Not allowed: {listed(self.problems, self.MAX_SHOWN)}. {outcome}")


@dataclasses.dataclass(eq=False, repr=False)
class TooManyOverrides(
    QuotaError,
    conflict="too_many_overrides",
    text="Project {project_id!r} would have more than {maximum} overrides of {resource!r} that have not ended. Cancel "
    "some, or wait until they end. Nothing was changed.",
):
    """The maximum number of overrides of one limit is reached."""

    project_id: str
    resource: str
    maximum: int


@dataclasses.dataclass(eq=False, repr=False)
class LimitsChanged(QuotaError, text="The limits of project {project_id!r} were changed meanwhile. Read them again."):
    """The generation of the project's limits is not the given one. Nothing was changed."""

    project_id: str


@dataclasses.dataclass(eq=False, repr=False)
class OverrideNotFound(NotFound, text="Override {override_id!r} was not found, or has ended. Nothing was changed."):
    """The override does not exist, has ended, or was cancelled."""

    next_step = "List the overrides: cyborg-quota override list"
    override_id: str


@dataclasses.dataclass(eq=False, repr=False)
class ProjectRefused(QuotaError, conflict="project_refused", text="Project {project_id!r} {reason}."):
    """A project cannot be added, moved or removed: it is unknown, is in use, or would become its own descendant."""

    project_id: str
    reason: str


@dataclasses.dataclass(eq=False, repr=False)
class TotalLimitNotFound(NotFound, text="There is no total limit for {resources!s}. Nothing was changed."):
    """These resources have no total limit over all projects. ``resources``: their names, sorted."""

    resources: Sequence[str]


# --- the names of projects, which Keystone knows -------------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class UnknownProject(QuotaError, text="Keystone has no project with the name or id {project!r}. {hint}"):
    """Keystone has no project or domain with this id or name."""

    project: str
    hint: str = dataclasses.field(default="", kw_only=True)


class AmbiguousProject(QuotaError):
    """Several projects of Keystone have this name. ``candidates``: (project_id, domain_id) of each.

    The message has the first MAX_SHOWN.
    """

    MAX_SHOWN: Final = 10

    def __init__(self, project: str, candidates: Sequence[tuple[str, str | None]]) -> None:
        self.project, self.candidates = project, tuple(candidates)
        named = [f"{project_id} (domain {domain_id})" for project_id, domain_id in self.candidates]
        super().__init__(
            f"{len(named)} projects have the name {safe_repr(project)}: {listed(named, self.MAX_SHOWN)}. Give the id "
            "of one of them."
        )


@dataclasses.dataclass(eq=False, repr=False)
class ProjectLookupFailed(QuotaError, text="Projects cannot be looked up: {reason}. {hint}"):
    """Keystone, which knows the names of the projects, did not answer."""

    reason: str
    hint: str = dataclasses.field(default="", kw_only=True)


# --- pods ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class InvalidPod(InvalidRequest, text="Invalid {field} {value!r} of a pod: {reason}."):
    """A value of a pod cannot be stored."""

    field: str
    value: object
    reason: str


@dataclasses.dataclass(eq=False, repr=False)
class PodNotFound(NotFound, text="Pod {pod!r} was not found."):
    """No pod has this name."""

    next_step = "List the pods: cyborg-quota pod list"
    pod: str


@dataclasses.dataclass(eq=False, repr=False)
class PodExists(QuotaError, conflict="pod_exists", text="A pod with the name {pod!r} exists."):
    """Another pod has the same name. Nothing was changed."""

    pod: str


@dataclasses.dataclass(eq=False, repr=False)
class PodInUse(QuotaError, conflict="pod_in_use", text="Pod {pod!r} cannot be removed: {reason}."):
    """A pod cannot be removed: projects are bound to it, or providers belong to it. Nothing was changed."""

    pod: str
    reason: str


@dataclasses.dataclass(eq=False, repr=False)
class PodNotAvailable(
    QuotaError,
    conflict="pod_not_available",
    text="Pod {pod!r} takes no bindings and no claims: its state is {state} (see `pod set --state available`).",
):
    """The pod takes neither bindings nor claims that name it, because of its state. Nothing was changed."""

    pod: str
    state: str


@dataclasses.dataclass(eq=False, repr=False)
class NoPodFits(
    QuotaError,
    conflict="no_pod_fits",
    text="No available pod passes the filters (zone {zone!r}, tags {affinity!r}).",
):
    """The project has no pod for this zone and these tags, and no pod passes the filters. Nothing was changed."""

    next_step = "See `pod list`."
    zone: str | None
    affinity: Mapping[str, str]


@dataclasses.dataclass(eq=False, repr=False)
class BindingNotFound(
    NotFound,
    text="Project {project_id!r} is not bound to a pod for this zone and these tags; see `pod binding list`.",
):
    """The project has no current binding for this zone and these tags."""

    project_id: str


# --- capacity ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, repr=False)
class ProviderNotFound(NotFound, text="Provider {provider!r} was not found."):
    """No provider has this UUID or name."""

    next_step = "List the providers: cyborg-quota provider list"

    provider: str


@dataclasses.dataclass(eq=False, repr=False)
class ProviderExists(
    QuotaError, conflict="provider_exists", text="A provider with the name or UUID {provider!r} exists."
):
    """Another provider has the same name or UUID. Nothing was changed."""

    provider: str


@dataclasses.dataclass(eq=False, repr=False)
class ProviderInUse(QuotaError, conflict="provider_in_use", text="{what} cannot be {change}: {reason}."):
    """A provider, or one of its inventories, has claims or children, and cannot be removed. Nothing was changed.

    ``resource`` None: the provider has children. ``change``: what was refused.
    """

    provider: str
    resource: str | None
    reason: str
    change: str = dataclasses.field(default="removed", kw_only=True)

    @property
    def what(self) -> str:
        """The provider or the inventory, for the message."""
        if self.resource is None:
            return f"Provider {safe_repr(self.provider)}"
        return f"The inventory of {safe_repr(self.resource)} at provider {safe_repr(self.provider)}"


@dataclasses.dataclass(eq=False, repr=False)
class ProviderConflict(
    QuotaError,
    conflict="provider_conflict",
    text="Provider {provider!r} has generation {generation}, not {expected}: it was changed concurrently. "
    "Read its inventories and try again.",
):
    """The provider has changed since its generation was read. Nothing was changed; read it again.

    ``expected`` is the generation of the caller, ``generation`` that of the provider.
    """

    provider: str
    expected: int
    generation: int


# --- database ------------------------------------------------------------------------------------------------


class DatabaseError(QuotaError):
    """The database rejected a statement. ``__cause__`` is the original exception."""


@dataclasses.dataclass(eq=False, repr=False)
class DatabaseUnavailable(
    DatabaseError, text="The database did not complete the call ({reason}) within {seconds:.1f} s; call again."
):
    """The database was unreachable, or its statements failed, until the retry deadline. Call again later.

    Or the database answered, but other calls kept changing what this one needs; ``reason`` says so.
    """

    reason: str
    seconds: float


class DatabaseReadOnly(
    DatabaseUnavailable,
    text="The database accepts no writes ({reason}): it is a replica, or was set to be read-only. [database] "
    "connection must point to the primary server (for PostgreSQL, list all servers there and add "
    "target_session_attrs=read-write), or to an SQLite file in a directory that this user may write.",
):
    """The database server accepts no writes: it is a replica, or is set to read-only. Nothing was changed."""


class DatabaseUnreachable(DatabaseUnavailable):
    """No connection could be made, or the server stopped answering.

    Also raised if PgBouncer cannot reach its server, or if a Galera node has no quorum. A lock timeout, a deadlock
    or another conflict raises DatabaseUnavailable, never this subclass: the server did answer, and calls for other
    projects may succeed.
    """


class StatementTimeout(DatabaseUnavailable):
    """The server ended a list over all projects, or an audit, at the timeout of QuotaEngine.limit_scans."""


class SchemaError(DatabaseError):
    """The schema of the database does not match this release."""


@dataclasses.dataclass(eq=False, repr=False)
class DatabaseNotInitialized(
    SchemaError, text="The database has no cyborg_quota schema yet. Create it: cyborg-quota db sync"
):
    """The database does not contain the tables of cyborg_quota."""


@dataclasses.dataclass(eq=False, repr=False)
class DatabaseBehind(
    SchemaError,
    text="The database is at revision {revision}, this code needs {head}. Upgrade it: cyborg-quota db sync",
):
    """The schema of the database is older than this release requires."""

    revision: str
    head: str


@dataclasses.dataclass(eq=False, repr=False)
class DatabaseForeign(
    SchemaError,
    text="The database already holds another service's {tables!s}. Give cyborg_quota a database of its own: set "
    "[database] connection to a separate database. Nothing was changed.",
):
    """The database contains tables of another service with the same names, ``tables``, sorted."""

    tables: Sequence[str]


class ConfigurationError(QuotaError):
    """The value of a configuration option is invalid."""
