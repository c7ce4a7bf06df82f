# SPDX-License-Identifier: Apache-2.0
"""The charges whose source a Cyborg claims: see Reconciler.claim_source. Does not import Cyborg."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

from cyborg_quota import QuotaEngine, validation
from cyborg_quota.integrations.cyborg.diff import Records
from cyborg_quota.integrations.cyborg.observations import reservations
from cyborg_quota.integrations.cyborg.sorted_rows import Row, SortedRows
from cyborg_quota.types import COMMITTED, RESERVED

_BATCH_ROWS: Final = 5000


class SourceClaim(contextlib.AbstractContextManager["SourceClaim"]):
    """The live charges with the source ``replaced`` whose ARQ is bound, or whose resource is one of ``resources``.

    The constructor reads them, and writes nothing. ``consumers``: how many have such a charge; ``lost``: how many of
    these are not bound ARQs.
    """

    def __init__(self, engine: QuotaEngine, records: Records, replaced: str | None, resources: Collection[str]) -> None:
        self._engine = engine
        self._replaced = replaced
        self._resources = resources
        self._rows = SortedRows()
        try:
            self._read(records)
            self.consumers, self.lost = self._count()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_error: object) -> None:
        self._rows.__exit__()

    def _read(self, records: Records) -> None:
        for attached in records.bound():
            self._rows.add([attached.arq])
        for state in (RESERVED, COMMITTED):
            for row in reservations(self._engine, state):
                if row.source == self._replaced:
                    self._rows.add([row.consumer, row.uuid, row.resource])

    def _claimed(self) -> Iterator[tuple[bool, list[str]]]:
        """Yield, for each consumer with such a charge, whether it is a bound ARQ, and the UUIDs of these charges."""
        for _, group in self._rows.groups():
            is_bound = any(_is_attached(row) for row in group)
            uuids = [row[1] for row in group if not _is_attached(row) and (is_bound or row[2] in self._resources)]
            if uuids:
                yield is_bound, uuids

    def _count(self) -> tuple[int, int]:
        consumers = lost = 0
        for is_bound, _ in self._claimed():
            consumers += 1
            lost += not is_bound
        return consumers, lost

    def set_source(self, source: str) -> int:
        """Set their source; returns the number of charges changed. A charge that has ended since is skipped."""
        count, batch = 0, list[str]()
        for _, uuids in self._claimed():
            batch += uuids
            if len(batch) >= _BATCH_ROWS:
                count += self._set(batch, source)
                batch = []
        return count + self._set(batch, source)

    def _set(self, uuids: list[str], source: str) -> int:
        if not uuids:
            return 0
        return self._engine.set_source(validation.admin_context(), uuids, source, replaced=self._replaced)


def _is_attached(row: Row) -> bool:
    return len(row) == 1
