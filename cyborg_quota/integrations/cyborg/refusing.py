# SPDX-License-Identifier: Apache-2.0
"""Our errors as Cyborg's, so that its API answers with the right status and one sentence."""

from __future__ import annotations

from typing import Any, Final

from cyborg.common import exception
from oslo_messaging.rpc import dispatcher

from cyborg_quota import exceptions
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


def translated(error: exceptions.QuotaError) -> Any:
    """The error for the API's caller: 403 for a refusal, 409 for a conflict, 400 for bad input, else 503.

    These are Cyborg's own classes: of others its API makes a 500.
    """
    message = str(error)
    if isinstance(error, _REFUSED):
        return exception.Forbidden(message)
    if isinstance(error, exceptions.ReservationConflict):
        return exception.Conflict(message)
    if isinstance(error, exceptions.InvalidRequest):
        return exception.InvalidParameterValue(message)
    return exception.ServiceUnavailable(message)


def answer(error: Any) -> dispatcher.ExpectedException:
    """What an RPC method raises to have ``error`` answered, but neither logged as a fault nor sent with a traceback."""
    expected = dispatcher.ExpectedException()
    expected.exc_info = (type(error), error, None)
    return expected


def plain(error: Exception) -> Exception:
    """A refusal that came over RPC, without what oslo.messaging adds to its text. Other errors as they are."""
    kind: Any = type(error).__mro__[1]
    if not type(error).__name__.endswith("_Remote") or kind not in _MADE_PLAIN or not error.args:
        return error
    return kind(error.args[0])  # type: ignore[no-any-return]
