# SPDX-License-Identifier: Apache-2.0
"""Our errors as Cyborg's, so that its API answers with the right status and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cyborg.common import exception
from oslo_messaging.rpc import dispatcher

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerOffline
from cyborg_quota.integrations.cyborg.mapping import ClassNotCounted

_REFUSED: Final = (
    exceptions.OverQuota,
    exceptions.TooManyOpenReservations,
    exceptions.LimitNotSet,
    ClassNotCounted,
)
ANSWERED: Final = (exception.Forbidden, exception.Conflict, exception.ServiceUnavailable)
"""What ``translated`` makes that Cyborg's own bind never raises."""
_MADE_PLAIN: Final = (*ANSWERED, exception.InvalidParameterValue)

UNAVAILABLE: Final = "The accelerator quota cannot be checked at the moment. Try again later."
"""All that the API's caller is told of a fault of ours. The log has the details: hosts, URLs, users."""
_RETRY_AFTER_SECONDS: Final = 5


def translated(error: exceptions.QuotaError) -> Any:
    """The error for the API's caller: 403 for a refusal, 409 for a conflict, 400 for bad input, else 503.

    These are Cyborg's own classes: of others its API makes a 500. A 503's ``kwargs["retry_after"]``, in seconds, is
    what the header Retry-After says.
    """
    message = str(error)
    if isinstance(error, _REFUSED):
        return exception.Forbidden(message)
    if isinstance(error, exceptions.ReservationConflict):
        return exception.Conflict(message)
    if isinstance(error, exceptions.InvalidRequest):
        return exception.InvalidParameterValue(message)
    seconds = error.retry_after_seconds if isinstance(error, LedgerOffline) else _RETRY_AFTER_SECONDS
    return exception.ServiceUnavailable(UNAVAILABLE, retry_after=seconds)


def retry_after(error: Exception) -> int | None:
    """After how many seconds the caller of a 503 of ours should call again; None for other errors."""
    if not isinstance(error, exception.ServiceUnavailable):
        return None
    seconds = getattr(error, "kwargs", {}).get("retry_after")
    return seconds if isinstance(seconds, int) else None


class _Untraced(Exception):
    """An exception that traceback.format_exception renders as an empty line."""


_Untraced.__module__, _Untraced.__qualname__ = "builtins", ""


class _ExcInfo(tuple[Any, ...]):
    """sys.exc_info() of an error, which oslo.messaging sends without a traceback.

    It appends the formatted traceback to the text that an unmodified API shows to its caller. Without frames that is
    still the class's name and the whole text once more. It formats ``*exc_info``, and takes the error itself from
    ``exc_info[1]``: so the two may differ.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter((_Untraced, _Untraced(), None))


def answer(error: Any) -> dispatcher.ExpectedException:
    """What an RPC method raises to have ``error`` answered, but neither logged as a fault nor sent with a traceback."""
    expected = dispatcher.ExpectedException()
    expected.exc_info = _ExcInfo((type(error), error, None))
    return expected


def plain(error: Exception) -> Exception:
    """A refusal that came over RPC, without what oslo.messaging adds to its text. Other errors as they are."""
    kind: Any = type(error).__mro__[1]
    if not type(error).__name__.endswith("_Remote") or kind not in _MADE_PLAIN or not error.args:
        return error
    return kind(error.args[0], **getattr(error, "kwargs", {}))  # type: ignore[no-any-return]
