# SPDX-License-Identifier: Apache-2.0
"""Validation of names, amounts and expiries. Runs before anything is written.

A name must be stored and compared in the same way by all databases: MariaDB ignores trailing blanks, PostgreSQL rejects
NUL, and no database stores a lone surrogate. Control characters are rejected because they could forge log lines.
"""

from __future__ import annotations

import datetime
import operator
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types import MAX_AMOUNT, MAX_NAME_BYTES, MAX_NAME_CHARS

MAX_EXPIRE_SECONDS: Final = 100 * 365 * 86400
"""The maximum time to live of a reservation: 100 years, in the range of the datetime types of all databases."""

_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, lone surrogates, line and paragraph separators."""


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


def has_only_printable(text: str) -> bool:
    """Whether the text has no control characters, lone surrogates, or line separators."""
    return text.isprintable() or not any(unicodedata.category(char) in _REFUSED_CATEGORIES for char in text)


def _plain(value: str) -> str:
    """The value as a plain str. ``str(value)`` would call ``__str__`` of a subclass; that of an enum differs."""
    return str.__str__(value)


def text_of(name: object) -> str:
    """The text of a name, valid or not, for an error message."""
    return _plain(name) if isinstance(name, str) else safe_repr(name)


def check_delta(resource: str, delta: object) -> int:
    """Return the signed, non-zero amount as a plain int (also from numpy integers). Raises InvalidDelta."""
    if isinstance(delta, bool):
        raise exceptions.InvalidDelta(resource, delta, "it must be an integer, not a boolean")
    try:
        amount = operator.index(delta)  # type: ignore[arg-type]
    except Exception:  # not only TypeError: numpy and other libraries raise their own types
        raise exceptions.InvalidDelta(resource, delta, "it must be an integer") from None
    if not amount:
        raise exceptions.InvalidDelta(resource, delta, "it must not be zero")
    if abs(amount) > MAX_AMOUNT:
        raise exceptions.InvalidDelta(resource, delta, f"it must be between -{MAX_AMOUNT} and {MAX_AMOUNT}")
    return int(amount)


def check_deltas(deltas: object, known: Mapping[str, Any]) -> dict[str, int]:
    """Return ``{resource: amount}``. Raises InvalidClaim, UnknownResource, InvalidDelta."""
    if not isinstance(deltas, Mapping):
        raise exceptions.InvalidClaim(f"Deltas must map resources to amounts, not be a {type(deltas).__name__}.")
    if not deltas:
        raise exceptions.InvalidClaim("A claim must have at least one resource; its deltas are empty.")
    unknown = [resource for resource in deltas if not isinstance(resource, str) or resource not in known]
    if unknown:
        raise exceptions.UnknownResource(map(text_of, unknown), known)
    return {_plain(resource): check_delta(resource, delta) for resource, delta in deltas.items()}


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
        if 0 < expire <= MAX_EXPIRE_SECONDS:
            return int.__mul__(expire, 1_000_000)  # the usual case
        if abs(expire) > MAX_EXPIRE_SECONDS:
            raise exceptions.InvalidReservationExpiration(expire, "it is more than 100 years away")
        ttl = datetime.timedelta(0)
    elif isinstance(expire, datetime.timedelta):
        ttl = expire
    elif isinstance(expire, datetime.datetime):
        moment = expire if expire.utcoffset() is not None else expire.replace(tzinfo=datetime.timezone.utc)
        ttl = moment - datetime.datetime.now(datetime.timezone.utc)
    else:
        raise exceptions.InvalidReservationExpiration(expire, "give seconds (an int), a timedelta or a datetime")
    if ttl > datetime.timedelta(seconds=MAX_EXPIRE_SECONDS):
        raise exceptions.InvalidReservationExpiration(expire, "it is more than 100 years away")
    if ttl <= datetime.timedelta(0):
        raise exceptions.InvalidReservationExpiration(expire, "it must be in the future")
    return ttl // datetime.timedelta(microseconds=1)
