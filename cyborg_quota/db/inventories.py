# SPDX-License-Identifier: Apache-2.0
"""The table inventories: claim and give back capacity, change inventories, and find providers that fit.

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
import functools
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from oslo_log import log as logging

from cyborg_quota import units
from cyborg_quota.capacity_types import Inventory, InventoryRecord
from cyborg_quota.db import candidates, clock, paging, resource_providers
from cyborg_quota.db.candidates import Candidate, Order
from cyborg_quota.db.models import inventories
from cyborg_quota.db.models import resource_providers as providers_table
from cyborg_quota.db.prepared import ListStatement, Statement, any_of
from cyborg_quota.types import Page

LOG = logging.getLogger(__name__)

_row = inventories.c
_provider = providers_table.c
ELSEWHERE: Final = sa.func.coalesce(_row.used_elsewhere, 0)

Key = tuple[int, str]
"""The id of a provider, and a resource: the key of an inventory."""

Seek = Callable[[sa.Select[Any], Any], sa.Select[Any]]
"""Changes a query of equally good inventories: see Dialect.seek_in_free_index."""

class InventoryClaim(NamedTuple):
    """What one call takes from one inventory, by claims of the same amount; ``total`` is their sum."""

    inventory_id: int
    amount: int
    total: int


class Place(NamedTuple):
    """An inventory from which a claim may take: its id, and the pod of its provider, read at one moment.

    The id is another one when the provider has changed its pod: see ``renew``.
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


_CLAIM: Final = Statement(claim_update())
_ADOPT: Final = Statement(take_update())


def claim(connection: sa.Connection, change: InventoryClaim) -> bool:
    """Take capacity. False: refused, or the inventory does not exist; the caller must roll back."""
    return _CLAIM(connection, arguments(change)).rowcount == 1


def adopt(connection: sa.Connection, change: InventoryClaim) -> bool:
    """Take capacity that is already in use, whatever the units and the capacity. False: there is no such inventory."""
    return _ADOPT(connection, {"b_inventory": change.inventory_id, "b_total": change.total}).rowcount == 1


_GIVE_BACK: Final = Statement(
    sa.update(inventories)
    .where(_is_row(""), _row.used >= _total(""))
    .values(used=_row.used - _total(""), free=_row.free + _total(""), updated_at=clock.utc_now())
)
_LOCK_IF_UNIT_FITS: Final = Statement(
    sa.update(inventories)
    .where(_is_row(""), fits_units(sa.bindparam("b_amount", type_=_row.total.type)))
    .values(used=_row.used)
)
_EMPTY: Final = Statement(
    sa.update(inventories)
    .where(_is_row(""))
    .values(used=0, free=_row.capacity - ELSEWHERE, updated_at=clock.utc_now())
)


def lock_if_unit_fits(connection: sa.Connection, inventory_id: int, amount: int) -> bool:
    """Lock an inventory if its units allow a claim of ``amount``, whatever is free. False: refused; roll back."""
    return _LOCK_IF_UNIT_FITS(connection, {"b_inventory": inventory_id, "b_amount": amount}).rowcount == 1


def give_back(connection: sa.Connection, amounts: Mapping[Key, int]) -> None:
    """Subtract the amounts of ended reservations. Never refused: a drifted counter, below the amount, becomes 0."""
    ids = ids_of(connection, amounts)
    for key in amounts.keys() - ids.keys():
        name = resource_providers.text_of(connection, key[0])
        LOG.warning("%s has no inventory of %s, to which a claim could give back.", name, key[1])
    for key, inventory_id in sorted(ids.items(), key=lambda item: item[1]):
        if _GIVE_BACK(connection, {"b_inventory": inventory_id, "b_total": amounts[key]}).rowcount == 0:
            name = resource_providers.text_of(connection, key[0])
            LOG.warning("%s: a claim that ended exceeds its use of %s: run `cyborg-quota capacity heal`", name, key[1])
            _EMPTY(connection, {"b_inventory": inventory_id})


_IDS: Final = ListStatement(
    lambda size: sa.select(_row.id, _row.provider_id, _row.resource).where(any_of(_row.provider_id, size))
)


def ids_of(connection: sa.Connection, keys: Iterable[Key]) -> dict[Key, int]:
    """The ids of those of these inventories that exist."""
    wanted = set(keys)
    rows = _IDS.rows(connection, sorted({key[0] for key in wanted}), {})
    return {key: row.id for row in rows if (key := (row.provider_id, row.resource)) in wanted}


_PLACES: Final = ListStatement(
    lambda size: (
        sa.select(_row.id, _row.provider_id, _row.resource, _row.free, _provider.pod)
        .select_from(inventories.join(providers_table, _provider.id == _row.provider_id))
        .where(any_of(_row.provider_id, size))
    )
)


def places_of(connection: sa.Connection, keys: Iterable[Key]) -> dict[Key, Place]:
    """Those of these inventories that exist."""
    wanted = set(keys)
    rows = _PLACES.rows(connection, sorted({key[0] for key in wanted}), {})
    return {key: Place(row.id, row.pod) for row in rows if (key := (row.provider_id, row.resource)) in wanted}


# --- Selection of a provider ---


def can_host(table: Any, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether the provider of an inventory can host, and meets these conditions."""
    # A subquery, not a join: MariaDB would begin with all providers, and sort. Not "= 1": PostgreSQL would expect that
    # one row in 200 matches, and sort all that fit instead of reading the index until the first match.
    query = sa.select(_provider.can_host).where(_provider.id == table.provider_id, *conditions)
    return query.scalar_subquery() != sa.literal_column("0")


_MOST_JOINED: Final = 2
"""The most inventories that are joined: the server then begins with the rarer resource. More of them are counted,
because the time to plan a join grows exponentially, and MariaDB joins 61 tables at most."""


def wanted(size: int) -> sa.Subquery:
    """The table of this number of claimed amounts: ``resource``, ``amount``. ``amount_arguments``: its parameters.

    SELECT :b_resource_0 AS resource, :b_amount_0 AS amount UNION ALL VALUES (:b_resource_1, :b_amount_1), ...
    """
    rows = ", ".join([f"(:b_resource_{index}, :b_amount_{index})" for index in range(1, size)])
    text = "SELECT :b_resource_0 AS resource, :b_amount_0 AS amount" + (f" UNION ALL VALUES {rows}" if rows else "")
    columns = (sa.column("resource", sa.String), sa.column("amount", sa.BigInteger))
    return sa.text(text).columns(*columns).subquery("wanted")


def fits_wanted(row: Any, amounts: sa.Subquery) -> sa.ColumnElement[bool]:
    """Whether an inventory is of a wanted resource, and fits its amount."""
    amount = amounts.c.amount
    return sa.and_(row.resource == amounts.c.resource, row.free >= amount, fits_units(amount, row))


def fitting(size: int) -> tuple[list[Any], Any, list[sa.ColumnElement[bool]]]:
    """The inventories of this number of resources of one provider: the tables, their join, and that they all fit.

    The tables are those of the first resources: at most _MOST_JOINED.
    """
    tables = [inventories.alias(f"inventory_{index}") for index in range(min(size, _MOST_JOINED))]
    first = tables[0]
    source: Any = first
    conditions = []
    for index, table in enumerate(tables):
        amount = sa.bindparam(f"b_amount_{index}", type_=_row.total.type)
        if index:
            source = source.join(table, table.c.provider_id == first.c.provider_id)
        is_resource = table.c.resource == sa.bindparam(f"b_resource_{index}", type_=_row.resource.type)
        conditions += [is_resource, table.c.free >= amount, fits_units(amount, table.c)]
    if size > _MOST_JOINED:
        amounts, other = wanted(size), inventories.alias("other")
        of_provider = sa.and_(other.c.provider_id == first.c.provider_id, fits_wanted(other.c, amounts))
        number = sa.select(sa.func.count()).select_from(amounts.join(other, of_provider)).correlate(first)
        conditions.append(number.scalar_subquery() == sa.literal_column(str(size)))
    return tables, source, conditions


def pod_of(table: Any) -> sa.Label[str | None]:
    """The pod of the provider of an inventory."""
    return sa.select(_provider.pod).where(_provider.id == table.provider_id).scalar_subquery().label("pod")


@functools.lru_cache(maxsize=64)
def candidates_statement(
    size: int, order: Order, *, in_pod: bool = False, avoided: int = 0, is_equal: bool = False, seek: Seek | None = None
) -> Statement:
    """The query of ``find_candidates`` for this number of resources. ``candidates_arguments``: its parameters.

    ``in_pod``: only providers of the pod with the name ``b_pod``. ``avoided``: none of the pods with the names
    ``b_avoided_0``, ``b_avoided_1``, ... ``is_equal``: only those with ``b_free`` units, from a random provider on.
    ``seek``: Dialect.seek_in_free_index.
    """
    tables, source, conditions = fitting(size)
    first = tables[0]
    of_pod = [_provider.pod == sa.bindparam("b_pod", type_=_provider.pod.type)] if in_pod else []
    if avoided:
        names = [sa.bindparam(f"b_avoided_{index}", type_=_provider.pod.type) for index in range(avoided)]
        of_pod.append(sa.or_(_provider.pod.is_(None), _provider.pod.not_in(names)))
    conditions.append(can_host(tables[-1].c, *of_pod))  # (last: most providers may lack the second resource)
    if is_equal:
        least, greatest = (sa.select(of(_row.provider_id)).scalar_subquery() for of in (sa.func.min, sa.func.max))
        part = sa.bindparam("b_start", type_=sa.BigInteger) / sa.literal_column(f"{candidates.STARTS}.0")
        start = sa.cast(least + (greatest - least) * part, sa.BigInteger)
        free = sa.bindparam("b_free", type_=_row.free.type)
        conditions += [first.c.free == free, first.c.provider_id >= start]
        order = "provider"
    keys = {"least free": first.c.free, "most free": first.c.free.desc(), "provider": first.c.provider_id}
    columns = [column for table in tables for column in (table.c.id, table.c.free)]
    query = sa.select(first.c.provider_id, *columns, pod_of(first.c)).select_from(source).where(*conditions)
    if is_equal and size == 1 and seek is not None:
        query = seek(query, first)
    return Statement(query.order_by(keys[order]).limit(sa.bindparam("b_limit", type_=sa.Integer)))


def amount_arguments(amounts: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of ``fitting`` and ``wanted``."""
    parameters: dict[str, Any] = {}
    for index, resource in enumerate(candidates.largest_first(amounts)):
        parameters[f"b_resource_{index}"] = resource
        parameters[f"b_amount_{index}"] = amounts[resource]
    return parameters


def candidates_arguments(amounts: Mapping[str, int], limit: int) -> dict[str, Any]:
    """The parameters of ``candidates_statement``."""
    return {"b_limit": limit, **amount_arguments(amounts)}


def to_candidates(rows: Iterable[Any], amounts: Mapping[str, int]) -> list[Candidate]:
    """The rows of ``candidates_statement``, with the resources that it joins."""
    resources = candidates.largest_first(amounts)[:_MOST_JOINED]
    if len(resources) == 1:  # the usual claim, without the loops
        name = resources[0]
        return [Candidate(row[0], {name: row[1]}, {name: row[2]}, row[3]) for row in rows]
    return [
        Candidate(
            provider_id=row[0],
            inventory_ids=dict(zip(resources, row[1:-1:2], strict=True)),
            free=dict(zip(resources, row[2:-1:2], strict=True)),
            pod=row[-1],
        )
        for row in rows
    ]


def is_joined(amounts: Mapping[str, int]) -> bool:
    """Whether ``candidates_statement`` returns the inventories of all these resources."""
    return len(amounts) <= _MOST_JOINED


def _with_all_inventories(
    connection: sa.Connection, found: Sequence[Candidate], amounts: Mapping[str, int]
) -> list[Candidate]:
    """The candidates with the inventories of all resources, of which nothing is free if the pod has changed since.

    An inventory that was removed meanwhile has nothing free either.
    """
    pods = {one.provider_id: one.pod for one in found}
    ids = {provider_id: dict.fromkeys(amounts, 0) for provider_id in pods}
    free = {provider_id: dict.fromkeys(amounts, 0) for provider_id in pods}
    for row in _PLACES.rows(connection, sorted(pods), {}):
        if row.resource in amounts and row.pod == pods[row.provider_id]:
            ids[row.provider_id][row.resource] = row.id
            free[row.provider_id][row.resource] = row.free
    return [one._replace(inventory_ids=ids[one.provider_id], free=free[one.provider_id]) for one in found]


def find_candidates(
    connection: sa.Connection,
    amounts: Mapping[str, int],
    order: Order,
    limit: int,
    pod: str | None = None,
    *,
    avoided: Collection[str] = (),
    seek: Seek | None = None,
) -> list[Candidate]:
    """Up to ``limit`` providers that can host and fit all ``amounts``, in ``order`` of the first resource.

    Where more have as much free as the first one, a second query returns random ones of them. ``pod``: only those of
    this pod; None: all. ``avoided``: none of these pods. The index on (resource, free) serves the first resource, and
    the unique key of the inventories the others. For more than two resources, a further query reads their inventories.
    """
    parameters = candidates_arguments(amounts, limit)
    if pod is not None:
        parameters["b_pod"] = pod
    parameters.update({f"b_avoided_{index}": name for index, name in enumerate(sorted(avoided))})

    def read(bounds: Mapping[str, int]) -> list[Candidate]:
        how = {"in_pod": pod is not None, "is_equal": bool(bounds)}
        statement = candidates_statement(len(amounts), order, **how, avoided=len(avoided), seek=seek)
        return to_candidates(statement(connection, {**parameters, **bounds}), amounts)

    found = candidates.with_random_equals(read({}), read, amounts, order, limit)
    return found if is_joined(amounts) else _with_all_inventories(connection, found, amounts)


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
        "allocation_ratio": str(inventory.allocation_ratio),
        "capacity": capacity,
    }
    update = (
        sa.update(inventories)
        .where(_row.provider_id == provider_id, _row.resource == resource)
        .values(**_ratio(values), free=capacity - _row.used - ELSEWHERE, updated_at=clock.utc_now())
    )
    if connection.execute(update).rowcount == 0:
        key = {"provider_id": provider_id, "resource": resource}
        counters = {"used": 0, "free": capacity, "created_at": clock.utc_now()}
        (new_id,) = _unused_ids(connection, 1)
        connection.execute(sa.insert(inventories).values(id=new_id, **_ratio(values), **key, **counters))


def _unused_ids(connection: sa.Connection, count: int) -> list[int]:
    """Random ids: one that was given before a restore from a backup is not given to another row.

    A process that keeps such an id (ledger/provider_cache.py) then finds no row, and reads the provider again.
    """
    while True:
        ids = {2**20 + secrets.randbits(30) for _ in range(count)}
        is_used = connection.execute(sa.select(_row.id).where(_row.id.in_(ids)).limit(1)).first() is not None
        if len(ids) == count and not is_used:
            return sorted(ids)


def _ratio(values: dict[str, Any]) -> dict[str, Any]:
    """The values with allocation_ratio as a text, which SQLite needs and the others convert exactly."""
    return {**values, "allocation_ratio": sa.literal(values["allocation_ratio"], sa.String)}


def set_used_elsewhere(connection: sa.Connection, provider_id: int, amounts: Mapping[str, int]) -> None:
    """Set what is used elsewhere, by resource. Like a claim, it does not change the generation of the provider."""
    ids = ids_of(connection, [(provider_id, resource) for resource in amounts])
    for (_, resource), inventory_id in sorted(ids.items(), key=lambda item: item[1]):
        amount = amounts[resource]
        connection.execute(
            sa.update(inventories)
            .where(_row.id == inventory_id)
            .values(used_elsewhere=amount, free=_row.capacity - _row.used - amount, updated_at=clock.utc_now())
        )


def delete_unused(connection: sa.Connection, provider_id: int, resource: str | None = None) -> None:
    """Delete the inventory of a resource, or all inventories of the provider, except those that have claims (C5)."""
    conditions = [_row.provider_id == provider_id, _row.used == 0]
    if resource is not None:
        conditions.append(_row.resource == resource)
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
) -> dict[Key, InventoryRecord]:
    """The inventories, by provider name and resource. One statement, thus one snapshot with the generations.

    ``page``: its marker is (name of the provider, resource). Raises MarkerNotFound.
    """
    query = paging.of_rows(connection, _RECORDS, _WITH_PROVIDER, (_provider.name, _row.resource), page)
    if provider_ids is not None:
        query = query.where(_row.provider_id.in_(sorted(provider_ids)))
    if resources is not None:
        query = query.where(_row.resource.in_(sorted(resources)))
    return {
        (row.provider_id, row.resource): InventoryRecord(
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


class NotifiedInventory(NamedTuple):
    """What is in use of an inventory, here and elsewhere, and the level that was last reported."""

    id: int
    provider: str
    resource: str
    capacity: int
    used: int
    level: int


def read_notified_levels(connection: sa.Connection, lowest: int, least_capacity: int) -> list[NotifiedInventory]:
    """The inventories that were reported, or are to be reported (thresholds.level), by provider name and resource.

    ``lowest``: the lowest threshold in percent. ``least_capacity``: smaller inventories have no thresholds.
    """
    rows = connection.execute(_LEVELS, {"b_lowest": lowest, "b_least": least_capacity})
    return [NotifiedInventory(*row) for row in rows]


def claim_notified_level(connection: sa.Connection, inventory_id: int, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    return connection.execute(_SET_LEVEL_IF, {"b_id": inventory_id, "b_before": before, "b_now": now}).rowcount == 1
