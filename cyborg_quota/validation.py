# SPDX-License-Identifier: Apache-2.0
"""What a call asks for, checked: whose project, which claims, which reservations. Before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from cyborg_quota import exceptions, names
from cyborg_quota.types import MAX_AMOUNT, Claim, Selection

_UUID_CHARS = 36


class Context(Protocol):
    """What is read of a request context: oslo.context's and Cyborg's have it."""

    @property
    def project_id(self) -> str | None: ...

    @property
    def is_admin(self) -> bool: ...


def admin_context() -> Context:
    """Of a program whose user can read the database's password: that is an admin."""
    from oslo_context.context import RequestContext

    # Not the thread's context: its request's id would stand in every line of the log.
    return cast(Context, RequestContext(is_admin=True, overwrite=False))


def is_admin(context: Context) -> bool:
    """Whether the context may act for other projects. Only True says so: the text "False" would be true as well."""
    return getattr(context, "is_admin", False) is True


def admin_only(context: Context, action: str) -> None:
    """Raise NotAuthorized unless the context is an admin's."""
    if not is_admin(context):
        raise exceptions.NotAuthorized(action)


def optional_name(field: str, name: str | None) -> str | None:
    """A checked name, or None where none was given."""
    return None if name is None else names.check_name(field, name)


def project_of(context: Context, project_id: str | None) -> str:
    """The project that is charged: the one named, which must be the context's own unless it is an admin's."""
    own = getattr(context, "project_id", None)
    if project_id is None:
        if own is None:
            raise exceptions.InvalidName("project_id", None, "neither the call nor its context names a project")
        return names.check_name("project_id", own)
    # Its characters count, not what a subclass of str says of them; what is no text at all is refused below.
    if isinstance(project_id, str) and str.__str__(project_id) != own and not is_admin(context):
        raise exceptions.NotAuthorized("acting for another project")
    return names.check_name("project_id", project_id)


def check_claims(claims: Iterable[Claim], known: Mapping[str, Any]) -> list[Claim]:
    """The claims with plain ints, each consumer once, asking in all for no more than a counter can hold."""
    if not _can_be_iterated(claims):
        raise exceptions.InvalidClaim("Claims must be a list of Claim(consumer, deltas).")
    checked: list[Claim] = []
    for claim in claims:
        if not isinstance(claim, Claim):
            raise exceptions.InvalidClaim(f"A claim must be a Claim(consumer, deltas), not {type(claim).__name__}.")
        deltas = names.check_deltas(claim.deltas, known)
        consumer, group = optional_name("consumer", claim.consumer), optional_name("group", claim.group)
        checked.append(Claim(consumer, deltas, group, optional_name("source", claim.source)))
    if not checked:
        raise exceptions.InvalidClaim("There is nothing to reserve: no claim was given.")
    seen = set()
    for claim in checked:
        if claim.consumer is not None and claim.consumer in seen:
            raise exceptions.InvalidClaim(f"Consumer {claim.consumer} has two claims in one call; make them one.")
        seen.add(claim.consumer)
    _check_totals(checked)
    return checked


def _check_totals(claims: Iterable[Claim]) -> None:
    totals: dict[str, int] = {}
    for claim in claims:
        for resource, delta in claim.deltas.items():
            totals[resource] = totals.get(resource, 0) + abs(delta)
            if totals[resource] > MAX_AMOUNT:
                raise exceptions.InvalidDelta(resource, totals[resource], "the claims of one call ask for too much")


def selection(
    context: Context,
    reservations: Sequence[str] | None,
    project_id: str | None,
    *,
    consumer: str | None,
    group: str | None,
) -> Selection:
    """What a settling call means. An admin's context finds UUIDs in every project, unless it names one."""
    if (reservations is None) + (consumer is None) + (group is None) != 2:
        raise exceptions.InvalidSelection("Name what is meant by one of reservations, consumer and group.")
    if reservations is None:
        return Selection(
            project_of(context, project_id),
            consumer=optional_name("consumer", consumer),
            group=optional_name("group", group),
        )
    uuids = uuid_list(reservations)
    if not uuids:
        raise exceptions.InvalidSelection("The list of reservations is empty.")
    for uuid in uuids:
        if not isinstance(uuid, str) or not _is_storable(uuid):
            raise exceptions.ReservationNotFound(uuid)
    searched = None if project_id is None and is_admin(context) else project_of(context, project_id)
    return Selection(searched, uuids=uuids)


def uuid_list(reservations: Iterable[str]) -> list[str]:
    """A list of UUIDs, which one UUID is not."""
    if isinstance(reservations, str) or not _can_be_iterated(reservations):
        raise exceptions.InvalidSelection("Reservations must be a list of UUIDs.")
    return list(reservations)


def resource_list(resources: Iterable[Any]) -> list[Any]:
    """A list of resources, which one name is not."""
    if isinstance(resources, (str, bytes)) or not _can_be_iterated(resources):
        raise exceptions.InvalidRequest("Resources must be a list of them.")
    return list(resources)


def row_limit(limit: int | None) -> int | None:
    """How many rows are wanted at most; None means all."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_AMOUNT:
        raise exceptions.InvalidRequest(f"The most rows to list must be between 0 and {MAX_AMOUNT}.")
    return limit


def _can_be_iterated(things: object) -> bool:
    """Whether there is something to go through. (An array of no dimensions has the method, and refuses.)"""
    try:
        iter(things)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _is_storable(uuid: str) -> bool:
    """Whether the text could be a stored UUID at all; what could not be is simply not found."""
    return 0 < len(uuid) <= _UUID_CHARS and uuid.isascii() and uuid.isprintable()
