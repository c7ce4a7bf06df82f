# SPDX-License-Identifier: Apache-2.0
"""Every error cyborg_quota raises, each carrying its data.

A caller can branch on the class and on the attributes; the message is for a person and says what to do next
where there is something to do. No message ever holds a connection URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cyborg_quota.safe_repr import amounts, safe_repr

if TYPE_CHECKING:
    from cyborg_quota.types import LimitChange, Over


class QuotaError(Exception):
    """The root of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, or sent to another process, with its data: the message alone does not make one."""
        return _remade, (type(self), self.args, dict(self.__dict__))


def _remade(kind: type[QuotaError], args: tuple[Any, ...], data: dict[str, Any]) -> QuotaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


# --- refusals ------------------------------------------------------------------------------------------------


class OverQuota(QuotaError):
    """A request would pass a limit. Nothing was charged.

    ``overs`` is a list of :class:`cyborg_quota.types.Over`, one per offended constraint, sorted by project,
    resource and scope.
    """

    def __init__(self, overs: Iterable[Over]) -> None:
        self.overs = sorted(overs)
        super().__init__("Quota exceeded: " + "; ".join(str(over) for over in self.overs))


class TooManyOpenReservations(QuotaError):
    """The project would have more reservations of the resource in flight than it may. Nothing was charged.

    ``limit`` is [quota] max_open_reservations. Each counts as one; half of them may have a negative delta.
    """

    def __init__(self, project_id: str, resource: str, limit: int) -> None:
        self.project_id, self.resource, self.limit = project_id, resource, limit
        super().__init__(
            f"Project {project_id} may have {limit} reservations of {resource} open, half of them negative, and would "
            "have more. Commit them or roll them back; what is overdue ends by itself (cyborg-quota expire)."
        )


class NotAuthorized(QuotaError):
    """The context may not do this. Says nothing about what exists."""

    def __init__(self, action: str, needs: str = "an admin's context") -> None:
        self.action = action
        super().__init__(f"Not authorized: {action} needs {needs}.")


# --- bad input: refused before anything is written -----------------------------------------------------------


class InvalidRequest(QuotaError, ValueError):
    """The request itself is wrong; the same request can never succeed."""


class InvalidName(InvalidRequest):
    """A project, resource, consumer or group name that cannot be stored or compared."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"Invalid {field} {safe_repr(value)}: {reason}.")


class UnknownResource(InvalidRequest):
    """A resource that nobody registered."""

    def __init__(self, unknown: Iterable[str], known: Iterable[str]) -> None:
        self.unknown = sorted(unknown)
        self.known = sorted(known)
        super().__init__(
            f"Unknown resource {', '.join(map(safe_repr, self.unknown))}; registered are "
            f"{', '.join(self.known) or 'none'}. Register it, or add it to [quota] resources."
        )


class InvalidDelta(InvalidRequest):
    """An amount that is not a non-zero integer of at most 31 bits."""

    def __init__(self, resource: str, delta: object, reason: str) -> None:
        self.resource = resource
        self.delta = delta
        self.reason = reason
        super().__init__(f"Invalid amount {safe_repr(delta)} for resource {safe_repr(resource)}: {reason}.")


class InvalidClaim(InvalidRequest):
    """Claims that are empty, of the wrong shape, or name one consumer twice."""


class InvalidSelection(InvalidRequest):
    """Not exactly one of reservations, consumer and group; or an empty list."""


class InvalidReservationExpiration(InvalidRequest):
    """An expiry that is not None, a number of seconds, a timedelta or a datetime that lies ahead."""

    def __init__(self, expire: object, reason: str) -> None:
        self.expire = expire
        self.reason = reason
        super().__init__(f"Invalid reservation expiration {safe_repr(expire)}: {reason}.")


class InvalidDocument(InvalidRequest):
    """A document of limits that cannot be meant. ``place`` says where, as in ``projects[0].children[2].limits``."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        safe_repr = place if len(place) <= 120 else f"{place[:58]}...{place[-59:]}"
        super().__init__(f"Invalid document of limits: {safe_repr} {reason}.")


class UsageOverflow(InvalidRequest):
    """The counter of a project cannot hold the sum (it is a 32-bit integer)."""

    def __init__(self, project_id: str, resource: str, requested: int) -> None:
        self.project_id = project_id
        self.resource = resource
        self.requested = requested
        super().__init__(
            f"Project {project_id} cannot hold {requested} more of {resource}: a project's counter ends at 2147483647."
        )


# --- reservations --------------------------------------------------------------------------------------------


class ReservationError(QuotaError):
    """A reservation is not in a state in which the call can be answered with success."""

    reason = "cannot be used"

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        super().__init__(f"Reservation {safe_repr(uuid)} {self.reason}.")


class ReservationNotFound(ReservationError):
    """No such reservation, or another project's (the answer is the same)."""

    reason = "was not found"


class ReservationCommitted(ReservationError):
    """It was committed already; what is attached is released, not rolled back."""

    reason = "was committed; release it instead"


class ReservationRolledBack(ReservationError):
    """It was rolled back; reserve afresh."""

    reason = "was rolled back; reserve afresh"


class ReservationExpired(ReservationError):
    """Nobody settled it in time; reserve afresh."""

    reason = "has expired; reserve afresh"


class ReservationReleased(ReservationError):
    """It was committed and released since; reserve afresh."""

    reason = "was released; reserve afresh"


class ReservationConflict(QuotaError):
    """The consumer already holds something else.

    ``held`` and ``requested`` map resources to deltas.
    """

    def __init__(self, consumer: str, held: Mapping[str, int], requested: Mapping[str, int]) -> None:
        self.consumer = consumer
        self.held = dict(held)
        self.requested = dict(requested)
        super().__init__(
            f"Consumer {safe_repr(consumer)} already holds {amounts(held)}, which is not the requested "
            f"{amounts(requested)}. Release or roll back what it holds first."
        )


# --- limits and the project tree -----------------------------------------------------------------------------


class LimitNotSet(QuotaError):
    """A resource has no limit anywhere, and configuration says to refuse it then. ``hint`` says how to set one."""

    def __init__(self, resource: str, hint: str) -> None:
        self.resource, self.hint = resource, hint
        super().__init__(f"No limit is set for resource {safe_repr(resource)}. {hint}")


class LimitsUnavailable(QuotaError):
    """The source of the limits could not be asked for longer than old answers may be used."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason, self.seconds = reason, seconds
        super().__init__(f"Limits have been unavailable for {seconds:.0f} s ({reason}). Nothing was charged.")


class LimitsReadOnly(QuotaError):
    """[limits] driver is not database: limits and the tree are not changed here, but where ``where`` says."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"Limits are not set here: [limits] driver is not database. They are set {where}.")


class LimitRefused(QuotaError):
    """What the policy does not allow. ``problems``: one sentence each; ``changes``: what an import would change."""

    def __init__(self, problems: Sequence[str], changes: Sequence[LimitChange] = ()) -> None:
        self.problems = list(problems)
        self.changes = list(changes)
        super().__init__("Not allowed: " + "; ".join(self.problems) + ". Nothing was changed.")


class ProjectRefused(QuotaError):
    """A project cannot be added, moved or removed: it is unknown, in use, or would lie below itself."""

    def __init__(self, project_id: str, reason: str) -> None:
        self.project_id, self.reason = project_id, reason
        super().__init__(f"Project {safe_repr(project_id)} {reason}.")


# --- database ------------------------------------------------------------------------------------------------


class DatabaseError(QuotaError):
    """The database refused a statement. The cause is chained."""


class DatabaseUnavailable(DatabaseError):
    """The database could not be reached, or kept refusing, for as long as the retry policy allows."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        self.seconds = seconds
        super().__init__(f"The database is unavailable ({reason}); gave up after {seconds:.1f} s.")


class DatabaseReadOnly(DatabaseUnavailable):
    """The database server refuses all changes: it is a replica, or is set to be read-only. Nothing was changed."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason, seconds)
        self.args = (
            f"The database refuses changes ({reason}): it is a replica, or was set to be read-only. [database] "
            "connection must lead to the primary server; for PostgreSQL, name all servers in it, and "
            "target_session_attrs=read-write.",
        )


class DatabaseUnreachable(DatabaseUnavailable):
    """No connection could be made, or the server stopped answering.

    A lock that was not granted, a deadlock or any other conflict is a DatabaseUnavailable, and never this: the server
    answered, and other projects' calls may succeed.
    """


class SchemaError(DatabaseError):
    """The database's schema is not the one this code works with."""


class DatabaseNotInitialized(SchemaError):
    """The database has no tables of ours yet."""

    def __init__(self) -> None:
        super().__init__("The database has no cyborg_quota schema yet. Create it: cyborg-quota db sync")


class DatabaseBehind(SchemaError):
    """The database is at an older revision than this code needs."""

    def __init__(self, revision: str, head: str) -> None:
        self.revision = revision
        self.head = head
        super().__init__(
            f"The database is at revision {revision}, this code needs {head}. Upgrade it: cyborg-quota db sync"
        )


class DatabaseForeign(SchemaError):
    """The database holds somebody else's tables of our names."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = sorted(tables)
        super().__init__(
            f"The database already holds another service's {', '.join(self.tables)}. Give cyborg_quota a database "
            "of its own: set [database] connection to a separate database. Nothing was changed."
        )


class ConfigurationError(QuotaError):
    """An option's value cannot be used."""
