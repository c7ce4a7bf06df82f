# SPDX-License-Identifier: Apache-2.0
"""Elects one of several processes, such as the exporter of the ledger's metrics.

The elected process holds a lease, which it renews. Each renewal increases the generation of a row (db/leases.py). A
process that sees the same generation for longer than a lease takes it over. Each process measures this time with its
own monotonic clock, and counts its own lease from before the UPDATE: an elected process that is suspended, or cannot
reach the database, knows that it is not elected any more before another can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cyborg_quota.db import leases
from cyborg_quota.db.database import Database

TAKEOVER_FACTOR: Final = 1.5
"""After how many leases without a renewal a process takes the lease over: monotonic clocks differ a little in rate."""


class Election:
    """The candidacy of one process. ``campaign`` must be called more often than once per lease."""

    def __init__(
        self,
        database: Database,
        name: str,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._name = name
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._held: int | None = None
        self._valid_until = 0.0
        self._seen: int | None = None
        self._seen_at = 0.0

    @property
    def is_elected(self) -> bool:
        """Whether this process holds a lease that has not ended."""
        return self._held is not None and self._clock() < self._valid_until

    def campaign(self) -> bool:
        """Renew the lease, or take it if it is vacant or has ended. Returns whether this process holds it.

        Raises DatabaseError. The lease then ends at its time.
        """
        began = self._clock()
        if self._held is not None:
            if self._replace(self._held, self._held + 1, began):
                return True
            self._held = self._seen = None
        return self._try_to_take()

    def _try_to_take(self) -> bool:
        stored = self._database.read(lambda connection: leases.generation(connection, self._name))
        now = self._clock()
        if stored != self._seen:
            self._seen, self._seen_at = stored, now
        is_over = now - self._seen_at > self._lease_seconds * TAKEOVER_FACTOR
        return (stored <= 0 or is_over) and self._replace(stored, abs(stored) + 1, now)

    def _replace(self, seen: int, after: int, began: float) -> bool:
        # An UPDATE whose answer was lost is repeated by the database, and then finds the generation that it has set:
        # this process does not count as elected then, until the lease has ended.
        if not self._database.write(lambda connection: leases.replace(connection, self._name, seen, after)):
            return False
        self._held, self._valid_until = after, began + self._lease_seconds
        return True

    def resign(self) -> None:
        """Make the lease vacant if this process holds it, so that another can take it at once. Raises DatabaseError."""
        held, self._held = self._held, None
        if held is not None:
            self._database.write(lambda connection: leases.replace(connection, self._name, held, -held))
