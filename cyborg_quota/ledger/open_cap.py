# SPDX-License-Identifier: Apache-2.0
"""The cap on open reservations ([quota] max_open_reservations): a part of each reserve, resize and transfer."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import dialects, reservations, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.types import UNLIMITED, Claim, Counters

_MAX_REFUSALS: Final = 10_000
"""The most refusals that an OpenCap stores. It forgets them all when there are more."""

_REFUSAL_SECONDS: Final = 60.0
"""After this time, the bound is tried again without counting: counting is slow, and the usage may have fallen."""


class OpenCap:
    """The cap on the open reservations of one resource of one project ([quota] max_open_reservations).

    Positive deltas: each open reservation adds at least 1 to ``reserved``, so ``reserved <= cap/2`` means at most cap/2
    of them. The UPDATE that charges checks this bound, at no extra cost. Above it, a reserve counts the open
    reservations in its own transaction, after it has locked the usage row of the project, so that no other reserve can
    run in between. Negative deltas add nothing to ``reserved``: they are always counted, and limited to the other half.
    Thus concurrent reserves cannot exceed the cap. Shared by threads.
    """

    def __init__(self, cap: int) -> None:
        """``cap``: the maximum number of open reservations of one resource of one project; UNLIMITED: no cap."""
        if cap != UNLIMITED and cap < 1:
            raise exceptions.ConfigurationError(
                f"[quota] max_open_reservations = {cap}: must be at least 1, or -1 for unlimited."
            )
        self._cap = cap
        self._bound = cap // 2
        # When (project_id, resource) was last refused by the bound: its reserves count without trying the bound first.
        self._refused_at: dict[tuple[str, str], float] = {}

    def to_count(self, project_id: str, claims: Iterable[Claim], request: Mapping[str, int]) -> set[str]:
        """The resources of which this reserve must count the open reservations."""
        if self._cap == UNLIMITED:
            return set()
        resources = {resource for claim in claims for resource, delta in claim.deltas.items() if delta < 0}
        for resource, amount in request.items():
            since = self._refused_at.get((project_id, resource))
            is_above_bound = since is not None and time.monotonic() - since < _REFUSAL_SECONDS
            if amount > self._bound or is_above_bound:
                resources.add(resource)
        return resources

    def bound_reserved(self, project_id: str, changes: Iterable[usages.Change], counted: Collection[str]) -> None:
        """Bound ``reserved`` in the changes of the project's own rows, except for the names in ``counted``."""
        if self._cap == UNLIMITED:
            return
        for change in changes:
            if change.node.project_id == project_id and change.node.resource not in counted:
                change.max_reserved = self._bound - change.reserved

    def charge_and_count(
        self,
        connection: Connection,
        changes: Sequence[usages.Change],
        counted_rows: Sequence[usages.Node],
        claims: Sequence[Claim],
    ) -> bool:
        """Charge every row, in lock order, and count the open reservations of ``counted_rows`` (at least one).

        The reservations are counted before the ancestors' rows are locked, except where all rows are locked by id.
        False: the UPDATE of a row matched no row. Raises TooManyOpenReservations. After either, the caller must roll
        back.
        """
        dialect = dialects.of(connection)
        leaf = counted_rows[0].project_id
        leaf_changes = [change for change in changes if change.node.project_id == leaf]
        charged = {change.node.resource for change in leaf_changes}
        # A resource with only negative deltas may have no change; its row must be locked while it is counted.
        leaf_changes += [usages.Change(node) for node in counted_rows if node.resource not in charged]
        ancestor_changes = [change for change in changes if change.node.project_id != leaf]
        if dialect.locks_by_id:
            # Rows of ancestors may have smaller ids, and are locked before.
            leaf_changes, ancestor_changes = leaf_changes + ancestor_changes, []
        if not dialect.charge_all(connection, leaf_changes):
            return False
        self.check(connection, counted_rows, claims)
        return dialect.charge_all(connection, ancestor_changes)

    def record_refusal(self, project_id: str, counters: Mapping[str, Counters], request: Mapping[str, int]) -> None:
        """After a refusal: store the resources whose ``reserved`` exceeds the bound, so that their reserves count."""
        if self._cap == UNLIMITED:
            return
        for resource, amount in request.items():
            if counters.get(resource, Counters()).reserved + amount > self._bound:
                if len(self._refused_at) >= _MAX_REFUSALS:
                    self._refused_at.clear()
                self._refused_at[project_id, resource] = time.monotonic()

    def check(self, connection: Connection, nodes: Sequence[usages.Node], claims: Sequence[Claim]) -> None:
        """Count the open reservations of these usage rows, including those that this transaction has inserted.

        The transaction must have locked the rows. Raises TooManyOpenReservations.
        """
        for node in nodes if self._cap != UNLIMITED else ():
            is_over = reservations.count_open(connection, node.usage_id) > self._cap
            if not is_over and any(claim.deltas.get(node.resource, 0) < 0 for claim in claims):
                is_over = reservations.count_open_negative(connection, node.usage_id) > self._cap - self._bound
            if is_over:
                raise exceptions.TooManyOpenReservations(node.project_id, node.resource, self._cap)


NO_CAP: Final = OpenCap(UNLIMITED)
"""For reservations that are inserted as committed: they are never open."""
