# SPDX-License-Identifier: Apache-2.0
"""The data types of the metrics: immutable, typed, without I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cyborg_quota.types import UNLIMITED, Counters, Headroom, ResourceKey, TotalLimit, UsageRecord
from cyborg_quota.types.capacity import ResourceUse


class ProjectMetrics(NamedTuple):
    """The values of one resource of one project. ``limit`` None: unlimited. ``fits`` None: no limit bounds it.

    ``minimum``, ``promised``: as of Counters; None: 0. ``device_seconds_total``: the meter (db/meters.py).
    ``budget_hours``, ``budget_spent_hours``: of the present period; None: there is no budget. ``budget_seconds_left``:
    see BudgetPeriod.
    """

    project_id: str
    resource: str
    limit: int | None
    used: int
    reserved: int
    subtree: int
    fits: int | None
    minimum: int | None = None
    promised: int | None = None
    device_seconds_total: int = 0
    budget_hours: float | None = None
    budget_spent_hours: float | None = None
    budget_seconds_left: int | None = None

    @classmethod
    def of(cls, record: UsageRecord, now: Counters, at: int) -> ProjectMetrics:
        """The values of a usage row at the second ``at``, without those of a budget."""
        usage, headroom = record.usage, record.headroom or Headroom(0)
        return cls(
            record.project_id,
            record.resource,
            None if usage.limit == UNLIMITED else usage.limit,
            usage.used,
            usage.reserved,
            now.subtree,
            None if headroom.scope == "counter" else headroom.fits,
            record.minimum or None,
            record.promised or None,
            now.used_until(at),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerMetrics:
    """What one read of the ledger found.

    ``projects``: a value for each resource of which a project has a usage row or a limit of its own. ``totals``: the
    total limits, which belong to no project. ``capacity``: what there is and is in use. ``measurement_ages``: of the
    last measurements elsewhere, in seconds, by name. ``oldest_overdue_seconds``: how long ago the reservation that is
    longest overdue became so; 0.0 if none is. ``revision``: the revision of the schema.
    """

    projects: Sequence[ProjectMetrics]
    totals: Sequence[TotalLimit]
    capacity: Mapping[ResourceKey, ResourceUse]
    measurement_ages: Mapping[str, float]
    oldest_overdue_seconds: float
    revision: str
