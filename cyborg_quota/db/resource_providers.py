# SPDX-License-Identifier: Apache-2.0
"""The table resource_providers. Its ``generation`` serializes writers of one provider and of its inventories.

    UPDATE resource_providers SET generation = generation + 1 WHERE id = :id AND generation = :expected

A row count of 0 means that the provider was changed or removed concurrently. Every writer runs this statement first, so
that it holds the row of the provider before any of its inventories. A claim neither reads nor writes this table in its
transaction: otherwise writers of the inventories of a busy provider would starve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock, paging
from cyborg_quota.db.models import provider_associations, resource_providers
from cyborg_quota.db.prepared import ListStatement, any_of
from cyborg_quota.types.capacity import Provider

_row = resource_providers.c
_parent = resource_providers.alias("parent")
_pool = resource_providers.alias("pool")
_association = provider_associations.c
_COLUMNS: Final = (
    _row.id, _row.uuid, _row.name, _row.generation, _row.can_host, _parent.c.name.label("parent"), _row.pod,
    _pool.c.name.label("served_by"),
)  # fmt: skip
_WITH_PARENT = (
    resource_providers.outerjoin(_parent, _parent.c.id == _row.parent_id)
    .outerjoin(provider_associations, _association.served_id == _row.id)
    .outerjoin(_pool, _pool.c.id == _association.provider_id)
)


class StoredProvider(NamedTuple):
    """A provider and its id."""

    id: int
    provider: Provider

    @classmethod
    def of(cls, row: Any) -> StoredProvider:
        provider = Provider(
            uuid=row.uuid,
            name=row.name,
            generation=row.generation,
            can_host=bool(row.can_host),
            parent=row.parent,
            pod=row.pod,
            served_by=row.served_by,
        )
        return cls(row.id, provider)


def insert(connection: sa.Connection, provider: Provider, parent_id: int | None) -> None:
    """Insert a provider. Raises DBDuplicateEntry if its name or UUID exists."""
    connection.execute(
        sa.insert(resource_providers).values(
            created_at=clock.utc_now(),
            uuid=provider.uuid,
            name=provider.name,
            generation=provider.generation,
            can_host=int(provider.can_host),
            parent_id=parent_id,
            pod=provider.pod,
        )
    )


_FIND: Final = ListStatement(
    lambda size: (
        sa.select(*_COLUMNS).select_from(_WITH_PARENT).where(sa.or_(any_of(_row.uuid, size), any_of(_row.name, size)))
    )
)


def find(connection: sa.Connection, names: Iterable[str]) -> dict[str, StoredProvider]:
    """The providers with these UUIDs or names, by the given text. A UUID takes precedence over an equal name."""
    wanted = sorted(set(names))
    rows = _FIND.rows(connection, wanted, {})
    by_name = {row.name: StoredProvider.of(row) for row in rows}
    by_uuid = {row.uuid: StoredProvider.of(row) for row in rows}
    return {name: stored for name in wanted if (stored := by_uuid.get(name) or by_name.get(name)) is not None}


def list_providers(connection: sa.Connection, limit: int | None = None, after: str | None = None) -> list[Provider]:
    """At most ``limit`` providers after the one with the name ``after``, by name. Raises MarkerNotFound."""
    query = sa.select(*_COLUMNS).select_from(_WITH_PARENT).order_by(_row.name).limit(limit)
    if after is not None:
        paging.require(connection, resource_providers, _row.name == after, (after,))
        query = query.where(_row.name > after)
    return [StoredProvider.of(row).provider for row in connection.execute(query)]


_ADVANCE = (
    sa.update(resource_providers)
    .where(_row.id == sa.bindparam("b_id"))
    .values(generation=_row.generation + 1, updated_at=clock.utc_now())
)
_LOCK = sa.update(resource_providers).where(_row.id == sa.bindparam("b_id")).values(generation=_row.generation)


def advance(connection: sa.Connection, provider_id: int, expected: int | None) -> bool:
    """Increase the generation, and so lock the provider. False: it is gone, or ``expected`` is outdated.

    ``expected`` None: whatever the generation is.
    """
    update = _ADVANCE if expected is None else _ADVANCE.where(_row.generation == expected)
    return connection.execute(update, {"b_id": provider_id}).rowcount == 1


def lock(connection: sa.Connection, provider_id: int) -> bool:
    """Lock the provider without a change. False: it does not exist."""
    return connection.execute(_LOCK, {"b_id": provider_id}).rowcount == 1


def update(connection: sa.Connection, provider_id: int, provider: Provider) -> None:
    """Set the pod and ``can_host`` of a provider, which the transaction has locked."""
    values = {"pod": provider.pod, "can_host": int(provider.can_host)}
    connection.execute(sa.update(resource_providers).where(_row.id == provider_id).values(values))


def any_with(connection: sa.Connection, **values: object) -> bool:
    """Whether a provider has these values in its columns: the one in which it is nested, or its pod.

    The transaction must have locked what they name, so that none is added.
    """
    return paging.exists(connection, *(_row[name] == value for name, value in values.items()))


def set_served_by(connection: sa.Connection, provider_id: int, pool_id: int | None) -> None:
    """Set the shared pool that serves a provider, which the transaction has locked."""
    connection.execute(sa.delete(provider_associations).where(_association.served_id == provider_id))
    if pool_id is not None:
        connection.execute(sa.insert(provider_associations).values(served_id=provider_id, provider_id=pool_id))


def serves(connection: sa.Connection, provider_id: int) -> bool:
    """Whether the provider serves others. The transaction must have locked it, so that none is added."""
    return paging.exists(connection, _association.provider_id == provider_id)


def delete(connection: sa.Connection, provider_id: int) -> None:
    """Delete a provider, which the transaction has locked, and which has neither inventories nor children."""
    set_served_by(connection, provider_id, None)
    connection.execute(sa.delete(resource_providers).where(_row.id == provider_id))


NAME: Final = _row.name
POD: Final = _row.pod
"""The name and the pod of the provider that ``join`` adds to each row."""


def join(source: sa.FromClause, provider_id: sa.ColumnElement[Any], *, is_outer: bool = False) -> sa.Join:
    """``source`` joined with the provider that each row names."""
    return source.join(resource_providers, _row.id == provider_id, isouter=is_outer)


def names(connection: sa.Connection, provider_ids: Sequence[int]) -> dict[int, str]:
    """The names of these providers, by id."""
    if not provider_ids:
        return {}
    query = sa.select(_row.id, _row.name).where(_row.id.in_(sorted(set(provider_ids))))
    return {row.id: row.name for row in connection.execute(query)}


# Expressions for the search of a provider: see capacity/tables.py.


def hosts(provider_id: sa.ColumnElement[int], *, in_pod: bool, avoided: int) -> sa.ColumnElement[bool]:
    """Whether the provider can host; and, with ``in_pod``, is in the pod ``b_pod``.

    ``avoided``: and is in none of this number of pods, ``b_avoided_0``, ``b_avoided_1``, ...
    """
    conditions = [_row.pod == sa.bindparam("b_pod", type_=_row.pod.type)] if in_pod else []
    if avoided:
        names = [sa.bindparam(f"b_avoided_{index}", type_=_row.pod.type) for index in range(avoided)]
        conditions.append(sa.or_(_row.pod.is_(None), _row.pod.not_in(names)))
    # A subquery, not a join: MariaDB would begin with all providers, and sort. Not "= 1": PostgreSQL would expect that
    # one row in 200 matches, and sort all that fit instead of reading the index until the first match.
    query = sa.select(_row.can_host).where(_row.id == provider_id, *conditions)
    return query.scalar_subquery() != sa.literal_column("0")
