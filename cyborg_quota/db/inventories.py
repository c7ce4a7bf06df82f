# SPDX-License-Identifier: Apache-2.0
"""The table inventories: claim and give back capacity, and change inventories.

A claim is one conditional UPDATE per row, which checks the units and the capacity and takes the amount. A row count of
0 means that the claim was refused, or that the inventory was removed::

    UPDATE inventories SET used = used + :total, free = free - :total
    WHERE id = :id AND free >= :total
      AND (min_unit = :amount OR (min_unit < :amount AND :amount <= max_unit AND :amount % step_size = 0))

``free`` is capacity - used - used_elsewhere, where a ``used_elsewhere`` of NULL counts as 0.

Callers lock inventories in the order of their ids, after reservations and before usage rows.
"""

from __future__ import annotations

import decimal
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota import units
from cyborg_quota.db import clock, paging
from cyborg_quota.db.models import inventories
from cyborg_quota.db.models import resource_providers as providers_table
from cyborg_quota.db.prepared import ListStatement, Statement, any_of
from cyborg_quota.types import InventoryKey, Page
from cyborg_quota.types.capacity import CapacityNotice, Inventory, InventoryRecord

_row = inventories.c
_provider = providers_table.c
ELSEWHERE: Final = sa.func.coalesce(_row.used_elsewhere, 0)


class InventoryClaim(NamedTuple):
    """What one call takes from one inventory, by claims of the same amount; ``total`` is their sum."""

    inventory_id: int
    amount: int
    total: int


class InventoryLocation(NamedTuple):
    """An inventory from which a claim may take: its id, and the pod of its provider, read at one moment.

    The id changes when the provider changes its pod: see ``renew``.
    """

    inventory_id: int
    pod: str | None


def fits_units(amount: sa.ColumnElement[int], row: Any = _row) -> sa.ColumnElement[bool]:
    """The rule of units.violated_unit. (Not "% = 0": PostgreSQL would expect that one row in 200 matches.)"""
    return sa.or_(
        row.min_unit == amount,
        sa.and_(row.min_unit < amount, row.max_unit >= amount, amount % row.step_size < sa.literal_column("1")),
    )


def _is_row(suffix: str) -> sa.ColumnElement[bool]:
    return _row.id == sa.bindparam(f"b_inventory{suffix}", type_=_row.id.type)


def _total(suffix: str) -> sa.BindParameter[int]:
    return sa.bindparam(f"b_total{suffix}", type_=sa.BigInteger)


def take_update(suffix: str = "") -> sa.Update:
    """The UPDATE that takes capacity without a condition: what is in use already, or fits because the row is locked."""
    total = _total(suffix)
    values = {"used": _row.used + total, "free": _row.free - total, "updated_at": clock.utc_now()}
    return sa.update(inventories).where(_is_row(suffix)).values(values)


def claim_update(suffix: str = "") -> sa.Update:
    """The UPDATE of a claim, with ``suffix`` in its parameters' names. ``arguments`` returns the parameters."""
    amount = sa.bindparam(f"b_amount{suffix}", type_=_row.total.type)
    return take_update(suffix).where(_row.free >= _total(suffix), fits_units(amount))


def arguments(change: InventoryClaim, suffix: str = "") -> dict[str, int]:
    """The parameters of ``claim_update``."""
    return {
        f"b_inventory{suffix}": change.inventory_id,
        f"b_amount{suffix}": change.amount,
        f"b_total{suffix}": change.total,
    }


CLAIM: Final = Statement(claim_update())
ADOPT: Final = Statement(take_update())
"""Takes capacity that is already in use, whatever the units and the capacity."""


def take(connection: sa.Connection, change: InventoryClaim, statement: Statement = CLAIM) -> bool:
    """Take capacity. False: refused, or the inventory does not exist; the caller must roll back."""
    return statement(connection, arguments(change)).rowcount == 1


_RETURNED = sa.case((_row.used < _total(""), _row.used), else_=_total(""))
_GIVE_BACK: Final = Statement(
    sa.update(inventories)
    .where(_is_row(""))
    # (``free`` first: MariaDB would compute it from the new value of ``used``.)
    .ordered_values(
        (_row.free, _row.free + _RETURNED), (_row.used, _row.used - _RETURNED), (_row.updated_at, clock.utc_now())
    )
)
_LOCK_IF_UNIT_FITS: Final = Statement(
    sa.update(inventories)
    .where(_is_row(""), fits_units(sa.bindparam("b_amount", type_=_row.total.type)))
    .values(used=_row.used)
)


def lock_if_unit_fits(connection: sa.Connection, inventory_id: int, amount: int) -> bool:
    """Lock an inventory if its units allow a claim of ``amount``, whatever is free. False: refused; roll back."""
    return _LOCK_IF_UNIT_FITS(connection, {"b_inventory": inventory_id, "b_amount": amount}).rowcount == 1


def give_back(connection: sa.Connection, amounts: Mapping[InventoryKey, int]) -> None:
    """Subtract the amounts of ended reservations. Never refused: a drifted counter, below the amount, becomes 0."""
    for key, inventory_id in ids_of(connection, amounts).items():
        _GIVE_BACK(connection, {"b_inventory": inventory_id, "b_total": amounts[key]})


_LOCATIONS: Final = ListStatement(
    lambda size: (
        sa.select(_row.id, _row.provider_id, _row.resource, _provider.pod)
        .select_from(inventories.join(providers_table, _provider.id == _row.provider_id))
        .where(any_of(_row.provider_id, size))
    )
)


def locations_of(connection: sa.Connection, keys: Iterable[InventoryKey]) -> dict[InventoryKey, InventoryLocation]:
    """Those of these inventories that exist."""
    wanted = set(keys)
    rows = _LOCATIONS.rows(connection, sorted({key.provider_id for key in wanted}), {})
    locations = {InventoryKey(row.provider_id, row.resource): InventoryLocation(row.id, row.pod) for row in rows}
    return {key: location for key, location in locations.items() if key in wanted}


def ids_of(connection: sa.Connection, keys: Iterable[InventoryKey]) -> dict[InventoryKey, int]:
    """The ids of those of these inventories that exist, in the order in which they are locked."""
    ids = {key: location.inventory_id for key, location in locations_of(connection, keys).items()}
    return dict(sorted(ids.items(), key=lambda item: item[1]))


# --- Administration: the transaction must have locked the provider (resource_providers.advance) ---


def set_inventory(connection: sa.Connection, provider_id: int, resource: str, inventory: Inventory) -> None:
    """Insert or replace an inventory. What is used stays, also where it exceeds the new capacity (C4)."""
    capacity = units.capacity_of(inventory)
    values = {
        "total": inventory.total,
        "reserved": inventory.reserved,
        "min_unit": inventory.min_unit,
        "max_unit": units.max_unit_of(inventory),
        "step_size": inventory.step_size,
        # (As a text, which SQLite needs and the others convert exactly.)
        "allocation_ratio": sa.literal(str(inventory.allocation_ratio), sa.String),
        "capacity": capacity,
    }
    update = (
        sa.update(inventories)
        .where(_row.provider_id == provider_id, _row.resource == resource)
        .values(**values, free=capacity - _row.used - ELSEWHERE, updated_at=clock.utc_now())
    )
    if connection.execute(update).rowcount == 0:
        key = {"provider_id": provider_id, "resource": resource}
        counters = {"used": 0, "free": capacity, "created_at": clock.utc_now()}
        (new_id,) = _unused_ids(connection, 1)
        connection.execute(sa.insert(inventories).values(id=new_id, **values, **key, **counters))


def _unused_ids(connection: sa.Connection, count: int) -> list[int]:
    """Random ids: an id that was given before a restore from a backup is not given to another row.

    A process that keeps such an id (ProviderCache) then finds no row, and reads the provider again.
    """
    while True:
        ids = {2**20 + secrets.randbits(30) for _ in range(count)}
        if len(ids) == count and not paging.exists(connection, _row.id.in_(ids)):
            return sorted(ids)


def set_used_elsewhere(connection: sa.Connection, provider_id: int, resource: str, amount: int) -> None:
    """Set what is used elsewhere of a resource, if there is an inventory of it."""
    connection.execute(
        sa.update(inventories)
        .where(_row.provider_id == provider_id, _row.resource == resource)
        .values(used_elsewhere=amount, free=_row.capacity - _row.used - amount, updated_at=clock.utc_now())
    )


def delete_unused(connection: sa.Connection, provider_id: int, resource: str | None = None) -> None:
    """Delete the inventory of a resource, or all inventories of the provider, except those that have claims (C5)."""
    conditions = paging.given((_row.provider_id, provider_id), (_row.used, 0), (_row.resource, resource))
    connection.execute(sa.delete(inventories).where(*conditions))


def lock_unused(connection: sa.Connection, provider_id: int) -> bool:
    """Lock all inventories of the provider against claims. False: one of them has claims (C5).

    The UPDATE changes the rows, because Galera does not compare rows that a transaction has only locked.
    """
    ids = connection.execute(sa.select(_row.id).where(_row.provider_id == provider_id).order_by(_row.id)).scalars()
    for inventory_id in ids.all():
        touch = sa.update(inventories).where(_row.id == inventory_id, _row.used == 0)
        if connection.execute(touch.values(updated_at=clock.utc_now())).rowcount == 0:
            return False
    return True


def renew(connection: sa.Connection, provider_id: int) -> None:
    """Give the inventories of a provider, which have no claims, new ids, because its pod changes.

    A claim that has read the old ids, and the old pod with them, is then refused, and reads again.
    """
    rows = connection.execute(sa.select(inventories).where(_row.provider_id == provider_id).order_by(_row.id))
    values = [dict(row) for row in rows.mappings()]
    for value, new_id in zip(values, _unused_ids(connection, len(values)), strict=True):
        value["id"] = new_id
    connection.execute(sa.delete(inventories).where(_row.provider_id == provider_id))
    if values:
        connection.execute(sa.insert(inventories), values)


_WITH_PROVIDER: Final = inventories.join(providers_table, _provider.id == _row.provider_id)
_RECORDS = sa.select(
    _provider.name,
    _row.resource,
    _row.total,
    _row.reserved,
    _row.min_unit,
    _row.max_unit,
    _row.step_size,
    _row.allocation_ratio,
    _row.capacity,
    _row.used,
    ELSEWHERE.label("used_elsewhere"),
    _provider.generation,
    _row.provider_id,
).select_from(_WITH_PROVIDER)
_WHOLE_LIST: Final = Page()


def read(
    connection: sa.Connection,
    provider_ids: Collection[int] | None = None,
    resources: Collection[str] | None = None,
    page: Page = _WHOLE_LIST,
) -> dict[InventoryKey, InventoryRecord]:
    """The inventories, by provider name and resource. One statement, thus one snapshot with the generations.

    ``page``: its marker is (name of the provider, resource). Raises MarkerNotFound.
    """
    query = paging.of_rows(connection, _RECORDS, _WITH_PROVIDER, (_provider.name, _row.resource), page)
    query = query.where(*paging.among((_row.provider_id, provider_ids), (_row.resource, resources)))
    return {
        InventoryKey(row.provider_id, row.resource): InventoryRecord(
            provider=row.name,
            resource=row.resource,
            total=row.total,
            reserved=row.reserved,
            min_unit=row.min_unit,
            max_unit=row.max_unit,
            step_size=row.step_size,
            allocation_ratio=decimal.Decimal(str(row.allocation_ratio)).normalize() + 0,
            capacity=row.capacity,
            used=row.used,
            generation=row.generation,
            used_elsewhere=row.used_elsewhere,
        )
        for row in connection.execute(query)
    }


# --- Notices ---

_LEVEL = sa.func.coalesce(_row.notified_level, 0)
_IN_USE = _row.capacity - _row.free
_IS_ABOVE_LOWEST = sa.and_(
    _row.capacity >= sa.bindparam("b_least", type_=sa.BigInteger),
    sa.bindparam("b_lowest", type_=sa.BigInteger) * _row.capacity <= _IN_USE * 100,
)
_LEVELS = (
    sa.select(
        _row.id,
        _provider.name,
        _row.resource,
        _row.capacity,
        _IN_USE.label("used"),
        _LEVEL.label("level"),
    )
    .select_from(_WITH_PROVIDER)
    .where(sa.or_(_row.notified_level != 0, _row.free < 0, _IS_ABOVE_LOWEST))
    .order_by(_provider.name, _row.resource)
)
_SET_LEVEL_IF = (
    sa.update(inventories)
    .where(_row.id == sa.bindparam("b_id"), sa.bindparam("b_before") == _LEVEL)
    .values(notified_level=sa.bindparam("b_now"))
)


def read_notified_levels(
    connection: sa.Connection, lowest: int, least_capacity: int
) -> list[tuple[int, CapacityNotice]]:
    """The ids of the inventories that were reported, or are to be reported (thresholds.level), and their last level.

    By provider name and resource. ``lowest``: the lowest threshold in percent. ``least_capacity``: smaller inventories
    have no thresholds.
    """
    rows = connection.execute(_LEVELS, {"b_lowest": lowest, "b_least": least_capacity})
    return [
        (row.id, CapacityNotice(row.name, row.resource, row.capacity, row.used, row.level, row.level)) for row in rows
    ]


def claim_notified_level(connection: sa.Connection, inventory_id: int, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    return connection.execute(_SET_LEVEL_IF, {"b_id": inventory_id, "b_before": before, "b_now": now}).rowcount == 1
