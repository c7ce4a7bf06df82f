# SPDX-License-Identifier: Apache-2.0
"""The providers among which a claim with ANY chooses: the search for those that can host and fit all its amounts."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import dialects, resource_providers
from cyborg_quota.db.inventories import fits_units
from cyborg_quota.db.models import inventories
from cyborg_quota.db.prepared import Statement

_row = inventories.c

_INDEXES: Final = ("ix_inventories_free", "ix_inventories_provider")
"""The indexes that MariaDB must use. Otherwise it sorts a small table, reads all equally good inventories, or finds the
other resource of a provider by the unique key, which does not have what is free: it then reads each row.
"""

Order = Literal["least free", "most free", "provider"]
"""The order in which ``find_candidates`` searches."""

_STARTS: Final = 2**20
"""The number of different starts among the providers."""


class Candidate(NamedTuple):
    """A provider that fits a claim: its id, by resource the id of the inventory and what is free there, its pod."""

    provider_id: int
    inventory_ids: dict[str, int]
    free: dict[str, int]
    pod: str | None = None


def _largest_first(amounts: Mapping[str, int]) -> list[str]:
    """The resources; the first one is that by which candidates are ordered."""
    return sorted(amounts, key=lambda resource: (-amounts[resource], resource))


_MOST_JOINED: Final = 2
"""The most inventories that are joined: the server then begins with the rarer resource. More of them are counted,
because the time to plan a join grows exponentially, and MariaDB joins 61 tables at most."""


def wanted(size: int) -> sa.Subquery:
    """The table of this number of claimed amounts: ``resource``, ``amount``. ``amount_arguments``: its parameters.

    SELECT :b_resource_0 AS resource, :b_amount_0 AS amount UNION ALL VALUES (:b_resource_1, :b_amount_1), ...

    (UNION ALL SELECT ... for each of them: 1,000 take PostgreSQL more than a second to plan, and SQLite permits 500.)
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
        # (The CASE keeps PostgreSQL from searching the index by units: it would then sort all rows that it finds.)
        fits = sa.case((fits_units(amount, table.c), sa.literal_column("1")), else_=sa.literal_column("0"))
        conditions += [is_resource, table.c.free >= amount, fits != sa.literal_column("0")]
    if size > _MOST_JOINED:
        amounts, other = wanted(size), inventories.alias("other")
        of_provider = sa.and_(other.c.provider_id == first.c.provider_id, fits_wanted(other.c, amounts))
        number = sa.select(sa.func.count()).select_from(amounts.join(other, of_provider)).correlate(first)
        conditions.append(number.scalar_subquery() == sa.literal_column(str(size)))
    return tables, source, conditions


@functools.lru_cache(maxsize=64)
def _statement(
    dialect: dialects.Dialect, size: int, order: Order, *, in_pod: bool, avoided: int, is_equal: bool
) -> Statement:
    """The query of ``find_candidates`` for this number of resources.

    ``in_pod``: only providers of the pod with the name ``b_pod``. ``avoided``: none of the pods with the names
    ``b_avoided_0``, ``b_avoided_1``, ... ``is_equal``: only those with ``b_free`` units, from a random provider on.
    """
    tables, source, conditions = fitting(size)
    first = tables[0]
    # The last table: most providers may lack the second resource.
    conditions.append(resource_providers.hosts(tables[-1].c.provider_id, in_pod=in_pod, avoided=avoided))
    indexes = _INDEXES[:1] if size == 1 and order != "provider" else _INDEXES
    if is_equal:
        least, greatest = (sa.select(of(_row.provider_id)).scalar_subquery() for of in (sa.func.min, sa.func.max))
        part = sa.bindparam("b_start", type_=sa.BigInteger) / sa.literal_column(f"{_STARTS}.0")
        start = sa.cast(least + (greatest - least) * part, sa.BigInteger)
        free = sa.bindparam("b_free", type_=_row.free.type)
        # (They replace ``free >= amount``: without statistics, SQLite would read that range of the index.)
        conditions[1:2] = [first.c.free == free, first.c.provider_id >= start]
        order = "provider"
    keys = {"least free": first.c.free, "most free": first.c.free.desc(), "provider": first.c.provider_id}
    pod = resource_providers.pod_of(first.c.provider_id)
    columns = first.c.provider_id, pod, first.c.resource, first.c.id, first.c.free
    query = sa.select(*columns).select_from(source).where(*conditions).order_by(keys[order])
    query = query.limit(sa.bindparam("b_limit", type_=sa.Integer))
    for table in tables:
        query = dialect.with_indexes(query, table, *indexes)
    if size == 1:
        return Statement(query)
    found = query.subquery("found")
    names = [sa.bindparam(f"b_resource_{index}", type_=_row.resource.type) for index in range(size)]
    of_found = sa.and_(_row.provider_id == found.c.provider_id, _row.resource.in_(names))
    inventory = found.c.provider_id, found.c.pod, _row.resource, _row.id, _row.free
    return Statement(sa.select(*inventory).select_from(found.join(inventories, of_found)))


def amount_arguments(amounts: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of ``fitting`` and ``wanted``."""
    resources = _largest_first(amounts)
    parameters: dict[str, Any] = {f"b_resource_{index}": resource for index, resource in enumerate(resources)}
    return {**parameters, **{f"b_amount_{index}": amounts[resource] for index, resource in enumerate(resources)}}


def find_candidates(
    connection: sa.Connection,
    amounts: Mapping[str, int],
    order: Order,
    limit: int,
    pod: str | None = None,
    *,
    avoided: Collection[str] = (),
) -> list[Candidate]:
    """Up to ``limit`` providers that can host and fit all ``amounts``, in ``order`` of the first resource.

    Where more have as much free as the first one, a second query returns random ones of them. ``pod``: only those of
    this pod; None: all. ``avoided``: none of these pods. The index on (resource, free) serves the first resource, and
    the unique key of the inventories the others.
    """
    parameters = {"b_limit": limit, "b_pod": pod, **amount_arguments(amounts)}
    parameters.update({f"b_avoided_{index}": name for index, name in enumerate(sorted(avoided))})

    def read(bounds: Mapping[str, int]) -> dict[int, Candidate]:
        how = {"in_pod": pod is not None, "is_equal": bool(bounds)}
        statement = _statement(dialects.of(connection), len(amounts), order, avoided=len(avoided), **how)
        found: dict[int, Candidate] = {}
        for row in statement(connection, {**parameters, **bounds}):
            one = found.setdefault(row.provider_id, Candidate(row.provider_id, {}, {}, row.pod))
            one.inventory_ids[row.resource], one.free[row.resource] = row.id, row.free
        return found

    found = read({})
    free = {one.free[_largest_first(amounts)[0]] for one in found.values()}
    if order != "provider" and len(found) == limit and len(free) == 1:
        found = {**read({"b_free": free.pop(), "b_start": random.randrange(_STARTS)}), **found}
    return list(found.values())[:limit]
