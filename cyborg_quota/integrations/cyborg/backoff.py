# SPDX-License-Identifier: Apache-2.0
"""Which other calls of the ledger fail when one has failed, and when a refused call is retried. Pure: no I/O."""

from __future__ import annotations

import enum
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerNotCalled

FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 40.0
"""The longest pause: a postponed call succeeds within a minute after the cause of its refusal has ended."""


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


class Backoff:
    """The pauses between the attempts of a call that the database refuses. All times are of one monotonic clock."""

    def __init__(self) -> None:
        self.pause_seconds = 0.0
        self._due_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to try now."""
        return now >= self._due_at

    def record_refusal(self, now: float) -> None:
        """Wait for FIRST_SECONDS after the first refusal, and twice as long after each further one, at most for
        LONGEST_SECONDS.
        """
        self.pause_seconds = min(2 * self.pause_seconds or FIRST_SECONDS, LONGEST_SECONDS)
        self._due_at = now + self.pause_seconds
