# SPDX-License-Identifier: Apache-2.0
"""The capacity report: for each resource what exists and what is promised, and which projects could not be served."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cyborg_quota.db import inventories, path_state
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.limits import tables as limit_tables
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types import TOTAL, UNLIMITED, Counters, TotalLimit, UsageKey
from cyborg_quota.types.capacity import InventoryRecord, NotServed, ResourceReport

_EMPTY: Final = Counters()


def read(
    untimed: Database, limits: LimitDriver, resources: Collection[str], *, has_inventory: bool = False
) -> list[ResourceReport]:
    """The reports of all resources with an inventory, and of those of ``resources`` that limits promise; sorted.

    ``has_inventory``: only those of ``resources`` that have an inventory.
    Reads all inventories, usage rows and limits; its cost grows with the size of the cloud. ``untimed``: the database
    without a statement timeout. Raises LimitsUnavailable.
    """
    records = list(untimed.read(inventories.read).values())
    if has_inventory:
        records = [record for record in records if record.resource in resources]
        resources = ()
        if not records:
            return []
    states = untimed.read(lambda connection: _tops(connection, limits))
    names = sorted({record.resource for record in records}.union(resources))
    promised = limits.limits(states, names)
    counters = {key: state.counters.get(key, _EMPTY) for state in states[:1] for key in promised}
    usage = {
        key: counter.subtree if limits.bounds_subtree else counter.used + counter.reserved
        for key, counter in counters.items()
    }
    totals = {total.resource: total for total in untimed.read(limit_tables.read_totals)}
    reports = [
        _report(name, [record for record in records if record.resource == name], promised, usage, totals.get(name))
        for name in names
    ]
    return [report for report in reports if report.providers or report.promised > 0]


def _tops(connection: Connection, limits: LimitDriver) -> list[PathState]:
    """The states of the projects whose limits no other limit includes. They share the counters of all projects."""
    parents, shared = path_state.read_tree(connection)
    tops = {key.project_id for key in shared.counters} - {TOTAL}
    if limits.bounds_subtree or isinstance(limits, DatabaseLimitDriver):
        tops |= parents.keys() | {key.project_id for key in shared.project_limits}
    if limits.bounds_subtree:
        tops = {project_id for project_id in tops if parents.get(project_id) is None}
    return path_state.states_of(parents, shared, tops)


def _report(
    resource: str,
    records: Sequence[InventoryRecord],
    limits: Mapping[UsageKey, int],
    usage: Mapping[UsageKey, int],
    total: TotalLimit | None,
) -> ResourceReport:
    free = [max(record.free, 0) for record in records]
    own = {key: limit for key, limit in limits.items() if key[1] == resource}
    sum_of_limits = UNLIMITED if UNLIMITED in own.values() else sum(own.values())
    total_limit = UNLIMITED if total is None else total.limit
    return ResourceReport(
        resource=resource,
        providers=len(records),
        total=sum(record.total for record in records),
        reserved=sum(record.reserved for record in records),
        capacity=sum(record.capacity for record in records),
        used=sum(record.used for record in records),
        used_elsewhere=sum(record.used_elsewhere for record in records),
        free=sum(free),
        largest_free=max(free, default=0),
        promised=min((limit for limit in (sum_of_limits, total_limit) if limit != UNLIMITED), default=UNLIMITED),
        not_served=tuple(_not_served(resource, own, usage, sum(free), total)),
    )


def _not_served(
    resource: str, limits: Mapping[UsageKey, int], usage: Mapping[UsageKey, int], free: int, total: TotalLimit | None
) -> list[NotServed]:
    """The projects with a limit whose remaining amount is not free. An unlimited project was promised no number.

    What remains below a total limit is the most that remains to any project.
    """
    maximum = None if total is None or total.limit == UNLIMITED else max(total.limit - total.held, 0)
    not_served = []
    for key, limit in limits.items():
        remaining = limit - usage[key] if maximum is None else min(limit - usage[key], maximum)
        if limit != UNLIMITED and remaining > free:
            not_served.append(NotServed(resource, key[0], limit, usage[key], remaining, remaining - free))
    return sorted(not_served, key=lambda row: (-row.missing, row.project_id))
