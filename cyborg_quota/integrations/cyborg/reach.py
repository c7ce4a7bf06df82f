# SPDX-License-Identifier: Apache-2.0
"""Which other calls of the ledger fail when one has failed. Pure: no I/O."""

from __future__ import annotations

import enum
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerNotCalled

_OF_ALL_CALLS: Final = (
    exceptions.DatabaseUnreachable,
    exceptions.DatabaseReadOnly,
    exceptions.SchemaError,
    exceptions.LimitsUnavailable,
    LedgerNotCalled,
)


class Reach(enum.Enum):
    """Which other calls would fail for the same reason."""

    LEDGER = "all calls"
    PROJECT = "the calls for the same project, whose rows are locked"
    CALL = "this call only"


def reach_of(error: Exception) -> Reach:
    """Which other calls would fail for the reason of this error."""
    if isinstance(error, _OF_ALL_CALLS):
        return Reach.LEDGER
    return Reach.PROJECT if isinstance(error, exceptions.DatabaseUnavailable) else Reach.CALL
