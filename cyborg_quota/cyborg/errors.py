# SPDX-License-Identifier: Apache-2.0
"""Translate errors of cyborg_quota into Cyborg's, so that its API answers with the right status and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cyborg.common import exception
from oslo_log import log as logging
from oslo_messaging.rpc import dispatcher

from cyborg_quota import exceptions
from cyborg_quota.conf.resource_rules import ClassNotCounted
from cyborg_quota.cyborg.bind_tracker import public_message
from cyborg_quota.cyborg.ledger_guard import LedgerNotCalled

LOG = logging.getLogger(__name__)

_REFUSED: Final = (
    exceptions.OverQuota,
    exceptions.LimitNotSet,
    exceptions.OverCapacity,
    exceptions.PodNotAvailable,
    exceptions.PodNotFound,
    ClassNotCounted,
)
ANSWERED: Final = (exception.Forbidden, exception.Conflict, exception.ServiceUnavailable)
"""The errors returned by ``translated`` that Cyborg's bind itself never raises."""

UNAVAILABLE: Final = "The accelerator quota cannot be checked at the moment. Try again later."
"""The message that the API's caller gets for any internal error. The log has the details: hosts, URLs, users."""
_RETRY_AFTER_SECONDS: Final = 5


def translated(error: exceptions.QuotaError) -> Any:
    """The error for the API's caller: 403 for a refusal, 409 for a conflict, 400 for bad input, else 503.

    The errors are of Cyborg's classes: its API answers any other class with 500. For a 503, ``kwargs["retry_after"]``
    is the value of the header Retry-After, in seconds.
    """
    message = public_message(error)
    if isinstance(error, _REFUSED):
        return exception.Forbidden(message)
    if isinstance(error, exceptions.ReservationConflict):
        return exception.Conflict(message)
    if isinstance(error, exceptions.InvalidRequest):
        return exception.InvalidParameterValue(message)
    seconds = error.retry_after_seconds if isinstance(error, LedgerNotCalled) else _RETRY_AFTER_SECONDS
    return exception.ServiceUnavailable(UNAVAILABLE, retry_after=seconds)


class _Untraced(Exception):
    """An exception that traceback.format_exception renders as an empty line."""


_Untraced.__module__, _Untraced.__qualname__ = "builtins", ""


class _ExcInfo(tuple[Any, ...]):
    """The sys.exc_info() of an error, for which oslo.messaging sends no traceback.

    oslo.messaging appends the formatted traceback to the text that an unmodified API shows to its caller. A traceback
    without frames would still repeat the class name and the text. oslo.messaging formats ``*exc_info``, but reads the
    error from ``exc_info[1]``. So iteration yields an empty exception, and the index yields the error.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter((_Untraced, _Untraced(), None))


def answer(error: Any) -> dispatcher.ExpectedException:
    """The exception by which an RPC method answers with ``error``, without an error in the log or a traceback."""
    expected = dispatcher.ExpectedException()
    expected.exc_info = _ExcInfo((type(error), error, None))
    return expected


def answer_refusal(error: exceptions.QuotaError) -> dispatcher.ExpectedException:
    """The exception by which an RPC method refuses a bind. Logs the details that the API's caller does not get."""
    refused = translated(error)
    is_unavailable = isinstance(refused, exception.ServiceUnavailable)
    # The reason of a call that was not made has been logged as an error.
    level = logging.ERROR if is_unavailable and not isinstance(error, LedgerNotCalled) else logging.INFO
    LOG.log(level, "Bind refused%s: %s", " with 503" if is_unavailable else "", error)
    return answer(refused)
