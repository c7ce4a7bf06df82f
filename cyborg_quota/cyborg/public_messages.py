# SPDX-License-Identifier: Apache-2.0
"""The messages for users of Cyborg's API: without hosts, services, URLs and commands of the operator. Pure."""

from __future__ import annotations

from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.cyborg.mapping import ClassNotCounted

NO_CAPACITY: Final = "The provider of the accelerator has no capacity left for it."


def public_message(error: exceptions.QuotaError) -> str:
    """One sentence for a refusal, a conflict or bad input. The log has the message of the error itself."""
    if isinstance(error, exceptions.OverCapacity):
        return NO_CAPACITY  # the message names a host
    if isinstance(error, ClassNotCounted):
        return error.public_message
    if isinstance(error, exceptions.LimitNotSet):
        return f"No limit is set for resource {error.resource}."
    if isinstance(error, exceptions.ReservationConflict):
        return f"Accelerator request {error.consumer} already has a different charge."
    return str(error)
