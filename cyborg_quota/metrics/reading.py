# SPDX-License-Identifier: Apache-2.0
"""Reads what the metrics show of the ledger: one transaction, with a fixed number of statements."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from cyborg_quota.db import history, path_state, schema
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger.enforcers import Enforcers
from cyborg_quota.ledger.headroom import BoundsAt, HeadroomReader
from cyborg_quota.types import ResourceKey
from cyborg_quota.types.capacity import ResourceUse
from cyborg_quota.types.metrics import LedgerMetrics


def read(
    untimed: Database,
    headroom: HeadroomReader,
    enforcers: Enforcers,
    grace: int,
    *,
    project_ids: Collection[str] | None,
    resources: Collection[str],
) -> LedgerMetrics:
    """What the ledger has now. ``project_ids``: the projects to read; None: all.

    ``untimed``: the database without a statement timeout, to read all counters. ``grace``: [quota] expire_grace, in
    microseconds. Limits that are not stored in the ledger are read after the transaction. Raises LimitsUnavailable.
    """

    def work(connection: Connection) -> tuple[LedgerMetrics, PathState, Sequence[PathState], BoundsAt]:
        capacity: dict[ResourceKey, ResourceUse] = {}
        ages: dict[str, float] = {}
        for enforcer in enforcers:  # what inventories have replaces what was measured elsewhere
            uses, ages_of_pods = enforcer.measured(connection)
            capacity.update(uses)
            ages.update(ages_of_pods)
        overdue = history.oldest_overdue(connection, grace).total_seconds()
        revision = schema.checked_revision(connection)
        metrics = LedgerMetrics([], [], capacity, ages, overdue, revision)
        shared, states = path_state.read_states(connection, project_ids)
        return metrics, shared, states, headroom.read_bounds(connection, states, resources)

    metrics, shared, states, row_bounds = untimed.read(work)
    projects, totals = headroom.metrics_of(shared, states, resources, row_bounds)
    return dataclasses.replace(metrics, projects=projects, totals=totals)
