# SPDX-License-Identifier: Apache-2.0
"""What is free at providers, for headrooms: each is one statement, which the index ix_inventories_free serves.

Equal inventories are counted by the database: the nodes of a cloud have few different sizes and units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from cyborg_quota.capacity_types import FreeInventories
from cyborg_quota.db.inventories import fits_units
from cyborg_quota.db.models import inventories, resource_providers
from cyborg_quota.pod_types import ResourceUse

_row = inventories.c
_provider = resource_providers.c
_COUNT = sa.func.count().label("number")


def read(
    connection: sa.Connection, resources: Collection[str], provider_id: int | None, pod: str | None = None
) -> dict[str, dict[str | None, list[FreeInventories]]]:
    """The inventories that have something free, by resource and pod (None: in none).

    Of one provider, or of all that can host (None); ``pod``: only those of this pod.

    SELECT resource, pod, free, min_unit, max_unit, step_size, count(*) FROM inventories JOIN resource_providers
    WHERE resource IN (...) AND free > 0 AND can_host = 1 GROUP BY resource, pod, free, min_unit, max_unit, step_size
    """
    columns = (_row.resource, _provider.pod, _row.free, _row.min_unit, _row.max_unit, _row.step_size)
    conditions = [_row.resource.in_(sorted(resources)), _row.free > 0, *_which(_row, provider_id, pod)]
    source = inventories.join(resource_providers, _provider.id == _row.provider_id)
    query = sa.select(*columns, _COUNT).select_from(source).where(*conditions).group_by(*columns)
    found: dict[str, dict[str | None, list[FreeInventories]]] = {resource: {} for resource in resources}
    for resource, in_pod, *values in connection.execute(query):
        found[resource].setdefault(in_pod, []).append(FreeInventories(*values))
    return found


def _which(row: Any, provider_id: int | None, pod: str | None) -> list[sa.ColumnElement[bool]]:
    conditions = [_provider.can_host == 1] if provider_id is None else [row.provider_id == provider_id]
    return conditions if pod is None else [*conditions, _provider.pod == pod]


def read_bundles(
    connection: sa.Connection, bundle: Mapping[str, int], provider_id: int | None, pod: str | None = None
) -> dict[str | None, list[tuple[tuple[int, ...], int]]]:
    """What is free, in the order of ``bundle``, at the providers that fit it once; and the number of such providers.

    By pod. ``provider_id``, ``pod``: as in ``read``.
    """
    tables = [inventories.alias(f"inventory_{index}") for index in range(len(bundle))]
    first = tables[0]
    source: Any = first.join(resource_providers, _provider.id == first.c.provider_id)
    conditions = _which(first.c, provider_id, pod)
    for table, (resource, number) in zip(tables, bundle.items(), strict=True):
        amount = sa.literal(number, sa.Integer)
        if table is not first:
            source = source.join(table, table.c.provider_id == first.c.provider_id)
        conditions += [table.c.resource == resource, table.c.free >= amount, fits_units(amount, table.c)]
    columns = [_provider.pod, *(table.c.free for table in tables)]
    query = sa.select(*columns, _COUNT).select_from(source).where(*conditions).group_by(*columns)
    found: dict[str | None, list[tuple[tuple[int, ...], int]]] = {}
    for in_pod, *free, number in connection.execute(query):
        found.setdefault(in_pod, []).append((tuple(free), number))
    return found


def sums_by_pod(connection: sa.Connection) -> dict[tuple[str, str], ResourceUse]:
    """What all inventories have and use, by resource and pod. The pod of a provider without one is ""."""
    pod = sa.func.coalesce(_provider.pod, "")
    query = (
        sa.select(_row.resource, pod, sa.func.sum(_row.capacity), sa.func.sum(_row.capacity - _row.free))
        .select_from(inventories.join(resource_providers, _provider.id == _row.provider_id))
        .group_by(_row.resource, pod)
    )
    return {
        (resource, name): ResourceUse(int(capacity), int(used))
        for resource, name, capacity, used in connection.execute(query)
    }


def sums_of_pods(connection: sa.Connection, names: Iterable[str]) -> dict[str, dict[str, ResourceUse]]:
    """What the inventories of the providers of these pods have and use, by pod and resource."""
    query = (
        sa.select(
            _provider.pod,
            _row.resource,
            sa.func.sum(_row.capacity),
            sa.func.sum(_row.capacity - _row.free),
        )
        .select_from(inventories.join(resource_providers, _provider.id == _row.provider_id))
        .where(_provider.pod.in_(sorted(set(names))))
        .group_by(_provider.pod, _row.resource)
    )
    measured: dict[str, dict[str, ResourceUse]] = {}
    for pod, resource, capacity, used in connection.execute(query):
        measured.setdefault(pod, {})[resource] = ResourceUse(int(capacity), int(used))
    return measured
