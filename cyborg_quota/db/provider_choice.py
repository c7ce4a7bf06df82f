# SPDX-License-Identifier: Apache-2.0
"""Queries with which a server chooses the provider of a claim with ANY in the transaction that claims it.

Both lock the inventory that they choose, and skip those that other transactions have locked: concurrent claims neither
wait for each other nor choose the same inventory. The second query starts at a random provider, so that the choice
among equally good providers is random::

    SELECT provider_id, id, <pod>, free FROM inventories
        WHERE resource = :resource AND free >= :amount AND <the units fit> AND <can host>
        ORDER BY free LIMIT 1 <lock, skip locked rows>
    SELECT provider_id, id, <pod> FROM inventories
        WHERE resource = :resource AND free = <that> AND provider_id >= <random> AND <the units fit> AND <can host>
        ORDER BY provider_id LIMIT 1 <lock, skip locked rows>

The index on (resource, free, provider_id) serves both in their order, so that each locks one row.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db.candidates import Order
from cyborg_quota.db.inventories import can_host, fits_units, pod_of
from cyborg_quota.db.models import inventories

_row = inventories.c


class ProviderChoice(NamedTuple):
    """What a server must choose: the inventory that is the first one in ``order`` (by free units) and fits."""

    resource: str
    amount: int
    order: Order


class ChosenInventory(NamedTuple):
    """The inventory that a server has chosen."""

    provider_id: int
    inventory_id: int


def arguments(choice: ProviderChoice) -> dict[str, Any]:
    """The parameters of both queries."""
    return {"b_choice_resource": choice.resource, "b_choice_amount": choice.amount}


def best_query(order: Order) -> sa.Select[Any]:
    """The provider, the id and the pod of the first inventory that fits. Without the locking clause."""
    by_free = {"least free": _row.free, "most free": _row.free.desc()}[order]
    return _fitting().where(_row.free >= _AMOUNT).order_by(by_free).limit(_ONE)


def equal_query(free: sa.ColumnElement[int], first_provider_id: sa.ColumnElement[int]) -> sa.Select[Any]:
    """The provider, the id and the pod of the next inventory that fits and has ``free`` units. Without the locking
    clause.
    """
    is_equal = (_row.free == free, _row.provider_id >= first_provider_id)
    return _fitting().where(*is_equal).order_by(_row.provider_id).limit(_ONE)


_AMOUNT: Final = sa.bindparam("b_choice_amount", type_=_row.total.type)
_ONE: Final[Any] = sa.literal_column("1")


def _fitting() -> sa.Select[Any]:
    is_resource = _row.resource == sa.bindparam("b_choice_resource", type_=_row.resource.type)
    return sa.select(_row.provider_id, _row.id, pod_of(_row)).where(is_resource, fits_units(_AMOUNT), can_host(_row))
