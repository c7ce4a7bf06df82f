# SPDX-License-Identifier: Apache-2.0
"""The charges whose source a Cyborg claims: see Reconciler.claim_source. Does not import Cyborg."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Final

from cyborg_quota import QuotaEngine, validation
from cyborg_quota.integrations.cyborg.diff import Records
from cyborg_quota.integrations.cyborg.observations import observations

_BATCH_ROWS: Final = 5000


@dataclasses.dataclass
class SourceClaim:
    """The live charges with the source ``replaced`` whose ARQ is bound, or whose resource is one of ``resources``."""

    engine: QuotaEngine
    records: Records
    replaced: str | None
    resources: Collection[str]

    def count(self) -> tuple[int, int]:
        """How many consumers have such a charge, and how many of these are not bound ARQs."""
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

    def _claimed(self) -> Iterator[tuple[bool, list[str]]]:
        """Yield, for each consumer with such a charge, whether it is a bound ARQ, and the UUIDs of these charges."""
        for seen in observations(self.engine, self.records):
            uuids = [
                charge.uuid
                for charge in (*seen.charges, *seen.in_flight)
                if charge.source == self.replaced and (seen.attached is not None or charge.resource in self.resources)
            ]
            if uuids:
                yield seen.attached is not None, uuids

    def _set(self, uuids: list[str], source: str) -> int:
        if not uuids:
            return 0
        return self.engine.set_source(validation.admin_context(), uuids, source, replaced=self.replaced)
