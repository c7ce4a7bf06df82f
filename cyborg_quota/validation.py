# SPDX-License-Identifier: Apache-2.0
"""Validation of the arguments of a call: names, amounts, expiries, project, claims, selection.

It runs before anything is written. A name must be stored and compared in the same way by all databases: MariaDB ignores
trailing blanks, PostgreSQL rejects NUL, and no database stores a lone surrogate. Control characters are rejected,
because they could forge log lines.
"""

from __future__ import annotations

import datetime
import json
import operator
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from uuid import UUID

from cyborg_quota import exceptions, units
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types import (
    ANY,
    MAX_AMOUNT,
    MAX_LIMIT,
    MAX_NAME_BYTES,
    MAX_NAME_CHARS,
    MAX_REASON_CHARS,
    MICROSECONDS,
    SELECT,
    SELECT_TEXT,
    UNLIMITED,
    Author,
    Claim,
    LimitRecord,
    Page,
    PodChoice,
    Selection,
    summed,
)

if TYPE_CHECKING:  # (its module imports this one)
    from cyborg_quota.subject import Resources

MAX_EXPIRE_SECONDS: Final = 100 * 365 * 86400
"""The maximum time to live of a reservation: 100 years, in the range of the datetime types of all databases."""

_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, lone surrogates, line and paragraph separators."""

_UUID_CHARS: Final = 36
MAX_TAGS: Final = 32
MAX_TAGS_BYTES: Final = 32_000
"""The maximum size of a pod's tags as JSON: a TEXT column of MariaDB stores 65,535 bytes."""
MAX_EXTRA_SPECS: Final = 256
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9998


class Context(Protocol):
    """The attributes of a request context that are used. Those of oslo.context and of Cyborg have them."""

    @property
    def project_id(self) -> str | None: ...

    @property
    def is_admin(self) -> bool: ...


def admin_context(user_id: str | None = None) -> Context:
    """An admin's context, for programs whose user can read the password of the database.

    ``user_id``: who runs the program, for the history of limits.
    """
    from oslo_context.context import RequestContext

    # overwrite=False: otherwise the request ID of this context would appear in each log line of the thread.
    return cast(Context, RequestContext(user_id=user_id, is_admin=True, overwrite=False))


def is_admin(context: Context) -> bool:
    """Whether the context may act for other projects. Only True counts: the string "False" is truthy."""
    return getattr(context, "is_admin", False) is True


def one_project(context: Context, call: str, project_id: str | None, why: str) -> str:
    """The id of the project. If none is given, raises NotAuthorized unless the context is an admin's, else InvalidName
    with the reason ``why``.
    """
    named = optional_name("project_id", project_id)
    if named is None:
        admin_only(context, call)
        raise exceptions.InvalidName("project_id", None, why)
    return named


def admin_only(context: Context, action: str) -> None:
    """Raise NotAuthorized unless the context is an admin's."""
    if not is_admin(context):
        raise exceptions.NotAuthorized(action)


def check_name(field: str, value: object) -> str:
    """Return the name. Raises InvalidName. ``field`` is its kind: project_id, resource, consumer, group."""
    if not isinstance(value, str):
        raise exceptions.InvalidName(field, value, "it must be a string")
    if value.isascii() and value.isprintable() and 0 < len(value) <= MAX_NAME_CHARS and " " not in value:
        return _plain(value)  # the usual case
    if not value:
        raise exceptions.InvalidName(field, value, "it must not be empty")
    if len(value) > MAX_NAME_CHARS:
        raise exceptions.InvalidName(field, value, f"it has {len(value)} characters, at most {MAX_NAME_CHARS} fit")
    if value != value.strip():
        raise exceptions.InvalidName(field, value, "it must not begin or end with a blank")
    if not has_only_printable(value):
        raise exceptions.InvalidName(field, value, "it must not contain control characters")
    length = len(value.encode())
    if length > MAX_NAME_BYTES:
        raise exceptions.InvalidName(field, value, f"it has {length} bytes in UTF-8, at most {MAX_NAME_BYTES} fit")
    return _plain(value)


def check_group(group: str | None) -> str | None:
    """The name of a group, or None: a path, as ``cluster/vm-1``, each part of which is a name. Raises InvalidName."""
    if group is None:
        return None
    name = check_name("group", group)
    if "/" in name and any(not part or part != part.strip() for part in name.split("/")):
        raise exceptions.InvalidName("group", name, "each part of a path must be a name, as in cluster/vm-1")
    return name


def check_names(field: str, names: object) -> list[str]:
    """Return the names. Raises InvalidName if it is no collection of names."""
    error = exceptions.InvalidName(field, names, "it must be a list of names")
    return [check_name(field, name) for name in listed(names, error)]


def has_only_printable(text: str) -> bool:
    """Whether the text has no control characters, lone surrogates, or line separators."""
    return text.isprintable() or not any(unicodedata.category(char) in _REFUSED_CATEGORIES for char in text)


_plain: Final = str.__str__
"""The value as a plain str. ``str(value)`` would call ``__str__`` of a subclass; that of an enum differs."""


def text_of(name: object) -> str:
    """The text of a name, valid or not, for an error message."""
    return _plain(name) if isinstance(name, str) else safe_repr(name)


def check_delta(resource: str, delta: object, known: Resources) -> int:
    """Return the amount, from 1 to MAX_AMOUNT, as a plain int (also from numpy integers). Raises InvalidDelta."""
    if isinstance(delta, bool):
        raise exceptions.InvalidDelta(resource, delta, "it must be an integer, not a boolean")
    try:
        amount = operator.index(delta)  # type: ignore[arg-type]
    except Exception:  # not only TypeError: numpy and other libraries raise their own types
        raise exceptions.InvalidDelta(resource, delta, "it must be an integer") from None
    if amount < 1:
        raise exceptions.InvalidDelta(
            resource,
            delta,
            "it must be at least 1. To give back, call release(consumer=...) or release(reservations=[...]); to change "
            "an amount, call resize",
        )
    if amount > MAX_AMOUNT:
        raise _too_large(resource, delta, amount, known)
    return int(amount)


def _too_large(resource: str, delta: object, amount: int, known: Resources) -> exceptions.InvalidDelta:
    larger = units.larger_unit(known[resource].unit, amount)
    return exceptions.InvalidDelta(resource, delta, f"at most {MAX_AMOUNT} fit; count {resource} in {larger}")


_MAX_AGE_SECONDS: Final = 1.0
"""Unknown names, however many, cost one statement in this time."""


def refuse_unknown(resources: Iterable[object], known: Resources) -> None:
    """Raise UnknownResource if one of these is not the name of a resource that is counted."""
    unknown = [name for name in resources if not isinstance(name, str) or name not in known]
    if unknown:
        known.renew(_MAX_AGE_SECONDS)
        unknown = [name for name in unknown if not isinstance(name, str) or name not in known]
    if unknown:
        raise exceptions.UnknownResource(map(text_of, unknown), known)


def check_deltas(deltas: object, known: Resources) -> dict[str, int]:
    """Return ``{resource: amount}``. Raises InvalidClaim, UnknownResource, InvalidDelta."""
    if not isinstance(deltas, Mapping):
        raise exceptions.InvalidClaim(f"Deltas must map resources to amounts, not be a {type(deltas).__name__}.")
    if not deltas:
        raise exceptions.InvalidClaim("A claim must have at least one resource; its deltas are empty.")
    refuse_unknown(deltas, known)
    return {_plain(resource): check_delta(resource, delta, known) for resource, delta in deltas.items()}


def expire_microseconds(expire: object, default_seconds: int) -> int:
    """The time to live of a reservation, in microseconds from now.

    ``expire`` is None (the default), seconds as an int, a timedelta, or a datetime (naive means UTC). A datetime is
    converted once, here, with the clock of this host; after that, only the clock of the database is used.
    """
    if expire is None:
        expire = default_seconds
    if isinstance(expire, bool):
        raise exceptions.InvalidReservationExpiration(expire, "a boolean is not a duration")
    if isinstance(expire, int):
        ttl = int.__mul__(expire, MICROSECONDS)
    elif isinstance(expire, datetime.timedelta):
        ttl = expire // datetime.timedelta(microseconds=1)
    elif isinstance(expire, datetime.datetime):
        moment = expire if expire.utcoffset() is not None else expire.replace(tzinfo=datetime.timezone.utc)
        ttl = (moment - datetime.datetime.now(datetime.timezone.utc)) // datetime.timedelta(microseconds=1)
    else:
        raise exceptions.InvalidReservationExpiration(expire, "give seconds (an int), a timedelta or a datetime")
    if ttl > MAX_EXPIRE_SECONDS * MICROSECONDS:
        raise exceptions.InvalidReservationExpiration(expire, "it is more than 100 years away")
    if ttl <= 0:
        raise exceptions.InvalidReservationExpiration(expire, "it must be in the future")
    return ttl


def author_of(context: Context, reason: object, *, is_required: bool = False) -> Author:
    """Who calls, and why, for the history. A value of the context that is not a valid name is recorded escaped.

    Raises InvalidRequest; ReasonRequired, if the reason is required.
    """
    user_id, project_id, request_id = (
        _recordable(getattr(context, name, None)) for name in ("user_id", "project_id", "request_id")
    )
    if reason is None:
        if is_required:
            raise exceptions.ReasonRequired
        return Author(user_id, project_id, request_id)
    if not isinstance(reason, str):
        raise exceptions.InvalidRequest(f"The reason must be a string, not {safe_repr(reason)}.")
    text = _plain(reason).strip()
    if not text or len(text) > MAX_REASON_CHARS or not has_only_printable(text):
        raise exceptions.InvalidRequest(
            f"The reason must be one line of 1 to {MAX_REASON_CHARS} characters, not {safe_repr(text)}."
        )
    return Author(user_id, project_id, request_id, text)


def _recordable(value: object) -> str | None:
    if value is None or value == "":
        return None
    try:
        return check_name("context", value)
    except exceptions.InvalidName:
        return safe_repr(value)[:MAX_NAME_CHARS]


def entry_id(marker: object) -> tuple[int, int]:
    """The generation and the number of the id of an entry. Raises InvalidRequest."""
    numbers = marker.split("-") if isinstance(marker, str) and marker.isascii() else []
    if len(numbers) != 2 or not all(number.isdigit() and len(number) <= 10 for number in numbers):
        raise exceptions.InvalidRequest(f"A marker must be the id of an entry, as in 12-0, not {safe_repr(marker)}.")
    return int(numbers[0]), int(numbers[1])


def age_microseconds(seconds: object) -> int:
    """An age in whole seconds as microseconds. Raises InvalidRequest."""
    return min(integer(seconds, 0, None, "An age must be a whole number of seconds"), MAX_EXPIRE_SECONDS) * MICROSECONDS


def moment(name: str, value: object) -> datetime.datetime:
    """A time as naive UTC. Raises InvalidRequest."""
    if not isinstance(value, datetime.datetime):
        raise exceptions.InvalidRequest(f"{name} must be a datetime, not {safe_repr(value)}.")
    try:
        naive = value if value.utcoffset() is None else value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        naive = datetime.datetime.min
    if not _FIRST_YEAR <= naive.year <= _LAST_YEAR:
        raise exceptions.InvalidRequest(f"{name} must be in the years {_FIRST_YEAR} to {_LAST_YEAR}, in UTC.")
    return naive


def optional_name(field: str, name: str | None) -> str | None:
    """The validated name, or None. Raises InvalidName."""
    return None if name is None else check_name(field, name)


def provider_name(name: object) -> str:
    """The name of a new provider. Raises InvalidName, also for a name that claims use for any provider."""
    checked = check_name("provider", name)
    if checked.lower() == ANY:
        raise exceptions.InvalidName("provider", checked, "a claim with this name means any provider")
    return checked


def provider_uuid(value: object) -> str:
    """The UUID of a new provider, in its usual form. Raises InvalidName."""
    try:
        return str(UUID(value))  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):
        raise exceptions.InvalidName("provider UUID", value, "it is not a UUID") from None


def project_of(context: Context, project_id: str | None) -> str:
    """The project of the call: ``project_id``, or else that of the context. Only an admin may name another project."""
    context_project = getattr(context, "project_id", None)
    if project_id is None:
        if context_project is None:
            raise exceptions.InvalidName("project_id", None, "neither the call nor its context names a project")
        return check_name("project_id", context_project)
    # Compare the characters, not the __str__ of a subclass. check_name below rejects values that are not strings.
    if isinstance(project_id, str) and str.__str__(project_id) != context_project and not is_admin(context):
        raise exceptions.NotAuthorized("acting for another project")
    return check_name("project_id", project_id)


def check_claims(claims: Iterable[Claim], known: Resources) -> list[Claim]:
    """Return the validated claims. Raises InvalidClaim, InvalidDelta, InvalidName, UnknownResource."""
    checked: list[Claim] = []
    if not isinstance(claims, list):
        claims = listed(claims, exceptions.InvalidClaim("Claims must be a list of Claim(consumer, deltas)."))
    for claim in claims:
        if not isinstance(claim, Claim):
            raise exceptions.InvalidClaim(f"A claim must be a Claim(consumer, deltas), not {type(claim).__name__}.")
        deltas = check_deltas(claim.deltas, known)
        named = ((field, getattr(claim, field)) for field in ("consumer", "source"))
        names = {field: check_name(field, name) for field, name in named if name is not None}
        provider = None if claim.provider is None else _check_provider(claim.provider, deltas)
        pod = None if claim.pod is None else _check_pod(claim.pod, claim.provider)
        group = check_group(claim.group)
        checked.append(Claim(names.pop("consumer", None), deltas, group, provider=provider, pod=pod, **names))
    if not checked:
        raise exceptions.InvalidClaim("There is nothing to reserve: no claim was given.")
    if len(checked) == 1:
        return checked
    for consumer, number in Counter(claim.consumer for claim in checked).items():
        if consumer is not None and number > 1:
            raise exceptions.InvalidClaim(f"Consumer {consumer} has two claims in one call; merge them.")
    for resource, total in summed(item for claim in checked for item in claim.deltas.items()).items():
        if total > MAX_AMOUNT:
            raise _too_large(resource, total, total, known)
    return checked


def _check_provider(provider: object, deltas: Mapping[str, int]) -> str | dict[str, str]:
    """One provider, or {resource: provider}. Raises InvalidClaim, InvalidName."""
    if not isinstance(provider, Mapping):
        return check_name("provider", provider)
    for resource in provider.keys() - deltas.keys():
        raise exceptions.InvalidClaim(
            f"The claim names a provider of {text_of(resource)}, but no amount of this resource."
        )
    for resource in sorted(deltas.keys() - provider.keys()):
        raise exceptions.InvalidClaim(f"The claim names no provider of {resource}. Name one of each resource.")
    checked = {resource: check_name("provider", provider[resource]) for resource in deltas}
    if ANY in checked.values():
        raise exceptions.InvalidClaim("A claim names a provider of each resource, or ANY for the whole claim.")
    return checked


def _check_pod(pod: object, provider: object) -> str | PodChoice:
    is_choice = isinstance(pod, PodChoice) or pod == SELECT_TEXT
    if provider != ANY and (provider is not None or is_choice):
        raise exceptions.InvalidClaim(
            "A claim in a pod is at any provider of the pod: set the provider to ANY (`--provider any`)."
        )
    if isinstance(pod, PodChoice):
        return PodChoice(optional_name("availability_zone", pod.zone), check_extra_specs(pod.affinity))
    return SELECT if pod == SELECT_TEXT else check_name("pod", pod)


MAX_POD_CHARS: Final = 100
"""The longest name of a new pod."""


def new_name(field: str, name: object) -> str:
    """The name of a new pod or resource, which is one segment of a URL. Raises InvalidName."""
    checked = check_name(field, name)
    if "/" in checked:
        raise exceptions.InvalidName(field, checked, "it must not contain a slash")
    return checked


def pod_name(name: object) -> str:
    """The name of a new pod. Raises InvalidName, also for a name with which a claim selects the pod of its project."""
    checked = new_name("pod", name)
    if len(checked) > MAX_POD_CHARS:
        raise exceptions.InvalidName("pod", checked, f"it has {len(checked)} characters, at most {MAX_POD_CHARS} fit")
    if checked.lower() == SELECT_TEXT:
        raise exceptions.InvalidName("pod", checked, "a claim with this name means the pod of its project")
    return checked


def check_affinity(affinity: object) -> dict[str, str]:
    """The tags of a pod, by name; None: no tags. Raises InvalidPod, InvalidName."""
    if affinity is None:
        return {}
    if not isinstance(affinity, Mapping) or len(affinity) > MAX_TAGS:
        raise exceptions.InvalidPod("affinity", affinity, f"it must map at most {MAX_TAGS} names to strings")
    checked = {check_name("affinity", key): check_name("affinity", value) for key, value in affinity.items()}
    for key, value in checked.items():
        if "=" in key:
            raise exceptions.InvalidPod("affinity", key, "the name of a tag must not contain =")
        if "," in key or "," in value:
            raise exceptions.InvalidPod("affinity", f"{key}={value}", "a tag must not contain a comma")
    if len(json.dumps(checked)) > MAX_TAGS_BYTES:
        raise exceptions.InvalidPod("affinity", affinity, f"the tags have more than {MAX_TAGS_BYTES} bytes as JSON")
    return checked


def check_extra_specs(specs: object) -> dict[str, str]:
    """The extra specs of a request, by key, as of a flavor; None: none. Raises InvalidPod.

    Only those that some pod has as a tag are compared: the others may be what no tag is, such as "0,1".
    """
    if specs is None:
        return {}
    if not (
        isinstance(specs, Mapping)
        and len(specs) <= MAX_EXTRA_SPECS
        and all(isinstance(text, str) and len(text) <= MAX_NAME_CHARS for pair in specs.items() for text in pair)
    ):
        rule = f"it must map at most {MAX_EXTRA_SPECS} keys to strings, of at most {MAX_NAME_CHARS} characters each"
        raise exceptions.InvalidPod("affinity", specs, rule)
    return {_plain(key): _plain(value) for key, value in specs.items()}


_NO_LIST_OF_UUIDS: Final = "Reservations must be a list of UUIDs."


def selection(
    context: Context,
    reservations: Sequence[str] | None,
    project_id: str | None,
    *,
    consumer: str | None,
    group: str | None,
) -> Selection:
    """The reservations that a call selects. For an admin, UUIDs may belong to any project unless one is named."""
    if (reservations is None) + (consumer is None) + (group is None) != 2:
        raise exceptions.InvalidSelection("Name the reservations by exactly one of reservations, consumer and group.")
    if reservations is None:
        return Selection(
            project_of(context, project_id),
            consumer=optional_name("consumer", consumer),
            group=check_group(group),
        )
    uuids = listed(reservations, exceptions.InvalidSelection(_NO_LIST_OF_UUIDS))
    if not uuids:
        raise exceptions.InvalidSelection("The list of reservations is empty.")
    for uuid in uuids:
        # (No stored UUID looks otherwise; a database may refuse to compare the text.)
        if not (isinstance(uuid, str) and 0 < len(uuid) <= _UUID_CHARS and uuid.isascii() and uuid.isprintable()):
            raise exceptions.ReservationNotFound(uuid)
    selected_project = None if project_id is None and is_admin(context) else project_of(context, project_id)
    return Selection(selected_project, uuids=uuids)


def uuid_list(reservations: Iterable[str]) -> list[str]:
    """Return a list of UUIDs. A single string is rejected with InvalidSelection. Raises InvalidName."""
    uuids = listed(reservations, exceptions.InvalidSelection(_NO_LIST_OF_UUIDS))
    return [check_name("reservation", uuid) for uuid in uuids]


def resource_list(resources: Iterable[Any]) -> list[Any]:
    """Return a list of resources. A single name is rejected with InvalidRequest."""
    return listed(resources, exceptions.InvalidRequest("Resources must be given as a list."))


def check_resource_name(resource: object) -> str:
    """The name of a resource, which may be unknown. Raises InvalidName if it is not a string."""
    if not isinstance(resource, str):
        raise exceptions.InvalidName("resource", resource, "it must be a string")
    return resource


def integer(value: object, minimum: int, maximum: int | None, rule: str) -> int:
    """The value. Raises InvalidRequest, which states the rule and names the value, unless it is in this range."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < minimum
        or (maximum is not None and value > maximum)
    ):
        raise exceptions.InvalidRequest(f"{rule}, not {safe_repr(value)}.")
    return int(value)


def check_limit(limit: object) -> int:
    """A limit: -1 (unlimited), 0, or a number. Raises InvalidRequest."""
    return integer(limit, UNLIMITED, MAX_LIMIT, "A limit must be a whole number of at least -1 (unlimited)")


def row_limit(limit: int | None) -> int | None:
    """The maximum number of rows to list; None means all. Raises InvalidRequest."""
    rule = f"The maximum number of rows to list must be between 0 and {MAX_AMOUNT}"
    return None if limit is None else integer(limit, 0, MAX_AMOUNT, rule)


def check_page(limit: int | None, after: object, resource: str | None, *, owner: str = "project") -> Page:
    """The part of a list to read. ``after``: see types.Marker, with this kind of owner. Raises InvalidRequest."""
    marker = None
    if after is not None:
        if not isinstance(after, (tuple, list)) or len(after) != 2:
            raise exceptions.InvalidRequest(f"A marker must be a {owner} and a resource, not {safe_repr(after)}.")
        marker = (optional_name("marker", after[0]), optional_name("marker", after[1]))
    return Page(row_limit(limit), marker, optional_name("resource", resource))


def select_page(records: Sequence[LimitRecord], page: Page) -> list[LimitRecord]:
    """The page of the limits of one project, or of the defaults, sorted by resource. Raises MarkerNotFound."""
    selected = [record for record in records if page.resource in (None, record.resource)]
    if page.after is not None:
        if not any(
            page.after in ((record.project_id, record.resource), (record.project_id, None)) for record in records
        ):
            raise exceptions.MarkerNotFound(page.after)
        last = page.after[1]
        selected = [] if last is None else [record for record in selected if record.resource > last]
    return selected[: page.limit]


def listed(values: object, error: exceptions.QuotaError, kind: type = object) -> list[Any]:
    """Return a list of the values. Raises ``error`` unless they can be iterated and are of ``kind``; and for a string.

    (A zero-dimensional numpy array has ``__iter__`` but raises TypeError.)
    """
    try:
        items: list[Any] = list(values)  # type: ignore[call-overload]
    except TypeError as cause:
        raise error from cause
    if isinstance(values, (str, bytes)) or not all(isinstance(item, kind) for item in items):
        raise error
    return items
