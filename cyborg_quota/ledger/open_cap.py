# SPDX-License-Identifier: Apache-2.0
"""The most reservations of one resource that a project may have open, and how that is kept without counting them.

An open reservation of a positive delta adds at least 1 to ``reserved``. While that is no more than half of the cap,
there are no more such reservations than that, and the UPDATE that charges proves it: the half is one more upper bound,
of a counter that it changes anyway. Beyond it a reserve counts, in its own transaction, while it holds the
project's usage row: no other reserve can come between. A negative delta adds nothing to ``reserved``; its reserve
counts always, and such may fill the other half. So, whoever races, there are never more open than the cap.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import open_count, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.types import UNLIMITED, Claim, Counters

_MAX_REMEMBERED: Final = 10_000
_REMEMBERED_SECONDS: Final = 60.0
"""Then the quick way is tried again: a flood ends, and what is counted for ever is slow for ever."""


class OpenCap:
    """Bounds what is charged, and counts where the bound does not prove enough. Shared by threads."""

    def __init__(self, most: int) -> None:
        """``most`` reservations of one resource of one project; UNLIMITED: no cap."""
        if most != UNLIMITED and most < 1:
            raise exceptions.ConfigurationError(
                f"[quota] max_open_reservations = {most}: with none, nothing could be reserved. -1 is unlimited."
            )
        self._most = most
        self._proven = most // 2
        # Whose reserved was found to be beyond the half, and when: they need not try the quick way first.
        self._beyond: dict[tuple[str, str], float] = {}

    def to_count(self, project_id: str, claims: Iterable[Claim], request: Mapping[str, int]) -> set[str]:
        """The resources whose open reservations must be counted by this reserve."""
        if self._most == UNLIMITED:
            return set()
        found = {resource for claim in claims for resource, delta in claim.deltas.items() if delta < 0}
        for resource, amount in request.items():
            since = self._beyond.get((project_id, resource))
            is_beyond = since is not None and time.monotonic() - since < _REMEMBERED_SECONDS
            if amount > self._proven or is_beyond:
                found.add(resource)
        return found

    def bound(self, project_id: str, changes: Iterable[usages.Change], counted: Collection[str]) -> None:
        """Let the charge of a project's own row pass only where it proves that the cap holds, or is counted."""
        if self._most == UNLIMITED:
            return
        for change in changes:
            if change.node.project_id == project_id and change.node.resource not in counted:
                change.max_reserved = self._proven - change.reserved

    def charge(
        self,
        connection: Connection,
        changes: Sequence[usages.Change],
        counted: Sequence[usages.Node],
        claims: Sequence[Claim],
    ) -> bool:
        """Charge every row, in lock order; count against the project's own, before any row above is held if it may be.

        False: a row refused. Raises TooManyOpenReservations. What was written must be rolled back after either.
        """
        if not counted:
            return usages.charge_all(connection, changes)
        leaf = counted[0].project_id
        own = [change for change in changes if change.node.project_id == leaf]
        charged = {change.node.resource for change in own}
        # A resource that is only given back is not charged; its row is held all the same while it is counted.
        own += [usages.Change(node) for node in counted if node.resource not in charged]
        above = [change for change in changes if change.node.project_id != leaf]
        if usages.locks_by_id(connection):
            # Those above may have smaller ids, and are taken before.
            own, above = own + above, []
        if not usages.charge_all(connection, own):
            return False
        self._check(connection, counted, claims)
        return usages.charge_all(connection, above)

    def look(self, project_id: str, own: Mapping[str, Counters], request: Mapping[str, int]) -> None:
        """After a refusal: remember for which resources the quick way proves nothing any more."""
        if self._most == UNLIMITED:
            return
        for resource, amount in request.items():
            now = own.get(resource, Counters())
            if now.reserved + amount > self._proven:
                if len(self._beyond) >= _MAX_REMEMBERED:
                    self._beyond.clear()
                self._beyond[project_id, resource] = time.monotonic()

    def _check(self, connection: Connection, nodes: Sequence[usages.Node], claims: Sequence[Claim]) -> None:
        """Count the open reservations of these usage rows, which the transaction holds, its own among them.

        Raises TooManyOpenReservations.
        """
        for node in nodes:
            is_over = open_count.count(connection, node.usage_id) > self._most
            if not is_over and any(claim.deltas.get(node.resource, 0) < 0 for claim in claims):
                is_over = open_count.count_negative(connection, node.usage_id) > self._most - self._proven
            if is_over:
                raise exceptions.TooManyOpenReservations(node.project_id, node.resource, self._most)
