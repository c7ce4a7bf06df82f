# SPDX-License-Identifier: Apache-2.0
"""What is free at providers, for headrooms, and whether what is in use is counted correctly (C1).

Each headroom is one statement, which the index ix_inventories_free serves. Equal inventories are counted by the
database: the nodes of a cloud have few different sizes and units.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from cyborg_quota.capacity.candidates import amount_arguments, fits_wanted, fitting, wanted
from cyborg_quota.db import clock, paging, reservations
from cyborg_quota.db import resource_providers as providers
from cyborg_quota.db.inventories import ELSEWHERE
from cyborg_quota.db.models import inventories, resource_providers
from cyborg_quota.db.prepared import Statement
from cyborg_quota.pods import tables as pods
from cyborg_quota.types import InventoryKey, ResourceKey
from cyborg_quota.types.capacity import CapacityDrift, FreeInventories, ResourceUse

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


def count_bundles(
    connection: sa.Connection, bundle: Mapping[str, int], provider_id: int | None, pod: str | None = None
) -> dict[str | None, int]:
    """How many bundles fit, each of them at one provider, by pod. ``provider_id``, ``pod``: as in ``read``.

    SELECT pod, sum(bundles) FROM (
        SELECT provider_id, min(free / amount) AS bundles FROM wanted JOIN inventories ON <it fits the amount>
        GROUP BY provider_id HAVING count(*) = <size of the bundle>
    ) AS at_provider JOIN resource_providers GROUP BY pod
    """
    amounts = wanted(len(bundle))
    amount = amounts.c.amount
    # (MariaDB divides decimals: the dividend is a multiple, so that no quotient is rounded up.)
    bundles = sa.func.min((_row.free - _row.free % amount) // amount).label("bundles")
    query = sa.select(_row.provider_id, bundles).select_from(amounts.join(inventories, fits_wanted(_row, amounts)))
    query = query.where(*paging.given((_row.provider_id, provider_id)))
    at_provider = query.group_by(_row.provider_id).having(sa.func.count() == len(bundle)).subquery("at_provider")
    by_pod = (
        sa.select(_provider.pod, sa.func.sum(at_provider.c.bundles))
        .select_from(at_provider.join(resource_providers, _provider.id == at_provider.c.provider_id))
        .where(*_which(at_provider.c, provider_id, pod))
        .group_by(_provider.pod)
    )
    return {in_pod: int(number) for in_pod, number in connection.execute(by_pod, amount_arguments(bundle))}


_FREE_OR_0 = sa.case((_row.free > 0, _row.free), else_=sa.literal_column("0"))


def sums_by_resource(connection: sa.Connection) -> dict[str, tuple[int, int]]:
    """The capacity of all providers together, and what is free of it, by resource.

    A provider whose use exceeds its capacity has nothing free.
    """
    query = sa.select(_row.resource, sa.func.sum(_row.capacity), sa.func.sum(_FREE_OR_0)).group_by(_row.resource)
    return {resource: (int(capacity), int(free)) for resource, capacity, free in connection.execute(query)}


def sums(connection: sa.Connection, names: Iterable[str] | None = None) -> dict[ResourceKey, ResourceUse]:
    """What the inventories of the providers of these pods have and use. None: of all; "" is that without a pod."""
    pod = sa.func.coalesce(_provider.pod, "")
    query = (
        sa.select(_row.resource, pod, sa.func.sum(_row.capacity), sa.func.sum(_row.capacity - _row.free))
        .select_from(inventories.join(resource_providers, _provider.id == _row.provider_id))
        .group_by(_row.resource, pod)
    )
    if names is not None:
        query = query.where(_provider.pod.in_(sorted(set(names))))
    return {
        ResourceKey(resource, name): ResourceUse(int(capacity), int(used))
        for resource, name, capacity, used in connection.execute(query)
    }


def measured(connection: sa.Connection) -> tuple[dict[ResourceKey, ResourceUse], dict[str, float]]:
    """What all inventories have and use, and what was measured of pods without; and the ages of the measurements."""
    found = pods.list_usages(connection)
    elsewhere = {ResourceKey(resource, one.pod): use for one in found for resource, use in (one.usage or {}).items()}
    ages = {one.pod: one.unmeasured_seconds for one in found if one.unmeasured_seconds is not None}
    return {**elsewhere, **sums(connection)}, ages


# --- Audit and repair ---


def _audit_query() -> sa.CompoundSelect[Any]:
    """Compare counters with sums in one statement, and find reservations whose inventory does not exist."""
    sums = reservations.claimed_sums()
    is_same = sa.and_(sums.c.provider_id == _row.provider_id, sums.c.resource == _row.resource)
    expected = sa.func.coalesce(sums.c.expected, 0)
    drifted = (
        sa.select(_row.provider_id, _row.resource, _row.used.label("used"), expected.label("expected"))
        .select_from(sa.outerjoin(inventories, sums, is_same))
        .where(sa.or_(_row.used != expected, _row.free != _row.capacity - _row.used - ELSEWHERE))
    )
    missing = (
        sa.select(sums.c.provider_id, sums.c.resource, sa.null(), sums.c.expected)
        .select_from(sa.outerjoin(sums, inventories, is_same))
        .where(_row.id.is_(None))
    )
    return sa.union_all(drifted, missing)


_AUDIT = _audit_query()


def audit(connection: sa.Connection) -> dict[InventoryKey, CapacityDrift]:
    """Every inventory whose counters differ from its reservations (C1)."""
    rows = connection.execute(_AUDIT).all()
    names = providers.names(connection, [row.provider_id for row in rows])
    return {
        InventoryKey(row.provider_id, row.resource): CapacityDrift(
            provider=names.get(row.provider_id, str(row.provider_id)),
            resource=row.resource,
            recorded=row.used,
            expected=int(row.expected),
        )
        for row in sorted(rows, key=lambda row: (row.provider_id, row.resource))
    }


def drifted(connection: sa.Connection, provider_ids: Collection[int]) -> set[InventoryKey]:
    """The inventories of these providers whose column ``free`` does not follow from their other counters."""
    is_wrong = _row.free != _row.capacity - _row.used - ELSEWHERE
    query = sa.select(_row.provider_id, _row.resource).where(_row.provider_id.in_(sorted(provider_ids)), is_wrong)
    return {InventoryKey(*row) for row in connection.execute(query)}


def recount(connection: sa.Connection, key: InventoryKey) -> tuple[int, int] | None:
    """Set the counters of one inventory to the sum of its reservations. Returns ``used`` before and after.

    The first statement locks the row; the second one then sees all that the transactions which held it have committed.
    None: there is no such inventory.
    """
    provider_id, resource = key
    is_row = sa.and_(_row.provider_id == provider_id, _row.resource == resource)
    if connection.execute(sa.update(inventories).where(is_row).values(used=_row.used)).rowcount == 0:
        return None
    used = int(connection.execute(reservations.claimed_query(provider_id, resource)).scalar_one())
    before = int(connection.execute(sa.select(_row.used).where(is_row)).scalar_one())
    connection.execute(
        sa.update(inventories)
        .where(is_row)
        .values(used=used, free=_row.capacity - used - ELSEWHERE, updated_at=clock.utc_now())
    )
    return before, used


def pods_that_fit(connection: sa.Connection, amounts: Mapping[str, int]) -> set[str]:
    """The pods with a provider that can host and fits all ``amounts``."""
    rows = _pods_statement(len(amounts))(connection, amount_arguments(amounts))
    return {row.pod for row in rows if row.pod is not None}


@functools.lru_cache(maxsize=16)
def _pods_statement(size: int) -> Statement:
    tables, source, conditions = fitting(size)
    joined = source.join(resource_providers, resource_providers.c.id == tables[0].c.provider_id)
    conditions.append(resource_providers.c.can_host == sa.literal_column("1"))
    return Statement(sa.select(resource_providers.c.pod).distinct().select_from(joined).where(*conditions))
