# SPDX-License-Identifier: Apache-2.0
"""New rows of the table reservations: one for each resource of a claim, and adjustments (see maintenance.py)."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock
from cyborg_quota.db.models import reservations
from cyborg_quota.db.prepared import Statement
from cyborg_quota.db.usages import Node
from cyborg_quota.transitions import Freed
from cyborg_quota.types import COMMITTED, MAX_AMOUNT, State

_row = reservations.c
_VARIANTS: Final = {digit: "89ab"[index % 4] for index, digit in enumerate("0123456789abcdef")}


def new_uuid() -> str:
    """A random UUID (RFC 9562, version 4) for a reservation. Takes a third of the time of ``uuid.uuid4()``."""
    bits = os.urandom(16).hex()
    return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{_VARIANTS[bits[16]]}{bits[17:20]}-{bits[20:]}"


class NewReservation(NamedTuple):
    """A row to insert. ``ttl_microseconds`` None: it does not expire (it is inserted as committed).

    ``claim_ordinal`` numbers the rows of a consumer's claim from 1, in the order of their resources; it is None without
    a consumer.
    """

    uuid: str
    usage_id: int
    project_id: str
    resource: str
    delta: int
    consumer: str | None
    group: str | None
    state: State
    ttl_microseconds: int | None
    claim_ordinal: int | None = None
    source: str | None = None
    provider_id: int | None = None


_MAX_ROWS: Final = 64
"""The most rows of one INSERT."""
_ROW_COLUMNS: Final = ("uuid", "usage_id", "resource", "delta", "consumer_id", "group_id", "claim_ordinal")
_ROW_COLUMNS_WITH_SOURCE: Final = (*_ROW_COLUMNS, "source")
"""Used only if a row has a source: most callers pass none, and each parameter costs time."""


def shared_values(state: sa.ColumnElement[Any], *, is_expiring: bool = True) -> dict[str, sa.ColumnElement[Any]]:
    """The values that all rows of an INSERT share, with the parameters ``b_project`` and ``b_ttl``."""
    return {
        "created_at": clock.utc_now(),
        "deleted": sa.false(),
        "project_id": sa.bindparam("b_project", type_=_row.project_id.type),
        "expire": clock.utc_after(sa.bindparam("b_ttl", type_=sa.BigInteger)) if is_expiring else sa.null(),
        "state": state,
        "live": sa.literal_column("1"),
    }


def row_values(index: int, *, has_source: bool = False, has_provider: bool = False) -> dict[str, sa.ColumnElement[Any]]:
    """The values of one row, by its index; ``add_row_values`` adds the parameters, except that of ``provider_id``."""
    columns = _ROW_COLUMNS_WITH_SOURCE if has_source else _ROW_COLUMNS
    if has_provider:
        columns = (*columns, "provider_id")
    return {name: sa.bindparam(f"b_{name}_{index}", type_=_row[name].type) for name in columns}


def have_source(rows: Sequence[NewReservation]) -> bool:
    """Whether any row has a source."""
    return any(row.source is not None for row in rows)


def add_row_values(parameters: dict[str, Any], rows: Sequence[NewReservation], *, has_source: bool = False) -> bool:
    """Add the parameters of ``row_values`` for each row. Returns whether any row has a consumer."""
    has_consumers = False
    if has_source:
        parameters.update({f"b_source_{index}": row.source for index, row in enumerate(rows)})
    for index, row in enumerate(rows):
        parameters[f"b_uuid_{index}"] = row.uuid
        parameters[f"b_usage_id_{index}"] = row.usage_id
        parameters[f"b_resource_{index}"] = row.resource
        parameters[f"b_delta_{index}"] = row.delta
        parameters[f"b_consumer_id_{index}"] = row.consumer
        parameters[f"b_group_id_{index}"] = row.group
        parameters[f"b_claim_ordinal_{index}"] = row.claim_ordinal
        has_consumers = has_consumers or row.consumer is not None
    return has_consumers


def live_rows_of_consumers(size: int) -> sa.Select[Any]:
    """A query for the live reservations of the consumers of the first ``size`` rows."""
    holder = reservations.alias("holder")
    consumers = [row_values(index)["consumer_id"] for index in range(size)]
    return sa.select(sa.literal_column("1")).where(
        holder.c.project_id == sa.bindparam("b_project", type_=_row.project_id.type),
        holder.c.consumer_id == consumers[0] if size == 1 else holder.c.consumer_id.in_(consumers),
        holder.c.live == sa.literal_column("1"),
    )


@functools.cache
def _insert_of(size: int, *, is_expiring: bool, has_source: bool, has_provider: bool) -> Statement:
    shared = shared_values(sa.bindparam("b_state", type_=_row.state.type), is_expiring=is_expiring)
    rows = [{**shared, **row_values(index, has_source=has_source, has_provider=has_provider)} for index in range(size)]
    return Statement(sa.insert(reservations).values(rows if size > 1 else rows[0]))


def _insert_if_free(*, has_source: bool, has_provider: bool = False) -> Statement:
    """INSERT INTO reservations (...) SELECT ... WHERE NOT EXISTS (a live row of the consumer)"""
    shared = shared_values(sa.bindparam("b_state", type_=_row.state.type))
    row = row_values(0, has_source=has_source, has_provider=has_provider)
    values = {**shared, **row, "claim_ordinal": sa.literal_column("1")}
    one = sa.select(sa.literal_column("1").label("one")).subquery("one")
    free = sa.select(*values.values()).select_from(one).where(~live_rows_of_consumers(1).exists())
    return Statement(sa.insert(reservations).from_select(list(values), free))


_INSERT_IF_FREE = _insert_if_free(has_source=False)
_INSERT_IF_FREE_WITH_SOURCE = _insert_if_free(has_source=True)
_INSERT_IF_FREE_WITH_PROVIDER = _insert_if_free(has_source=True, has_provider=True)


def insert_if_free(connection: sa.Connection, row: NewReservation) -> bool:
    """Insert the only row of a claim if its consumer has no live reservation, in one statement.

    False: the consumer has a live reservation, and nothing was inserted.
    """
    # (A third of the time of add_row_values: every single-resource reserve on SQLite runs this INSERT.)
    parameters = {
        "b_project": row.project_id,
        "b_ttl": row.ttl_microseconds,
        "b_state": row.state,
        "b_uuid_0": row.uuid,
        "b_usage_id_0": row.usage_id,
        "b_resource_0": row.resource,
        "b_delta_0": row.delta,
        "b_consumer_id_0": row.consumer,
        "b_group_id_0": row.group,
    }
    if row.provider_id is not None:
        parameters |= {"b_source_0": row.source, "b_provider_id_0": row.provider_id}
        return _INSERT_IF_FREE_WITH_PROVIDER(connection, parameters).rowcount == 1
    if row.source is None:
        return _INSERT_IF_FREE(connection, parameters).rowcount == 1
    parameters["b_source_0"] = row.source
    return _INSERT_IF_FREE_WITH_SOURCE(connection, parameters).rowcount == 1


def insert(connection: sa.Connection, rows: Sequence[NewReservation]) -> None:
    """Insert live rows of one project, one state and one lifetime.

    Raises DBDuplicateEntry if a UUID, or a live reservation of the same consumer, exists.
    """
    first = rows[0]
    shared: dict[str, Any] = {"b_project": first.project_id, "b_state": first.state}
    is_expiring = first.ttl_microseconds is not None
    if is_expiring:
        shared["b_ttl"] = first.ttl_microseconds
    has_source = have_source(rows)
    has_provider = any(row.provider_id is not None for row in rows)
    begin = 0
    while begin < len(rows):
        size = 1
        while size * 2 <= min(len(rows) - begin, _MAX_ROWS):
            size *= 2
        parameters = dict(shared)
        chunk = rows[begin : begin + size]
        add_row_values(parameters, chunk, has_source=has_source)
        if has_provider:
            parameters.update({f"b_provider_id_{index}": row.provider_id for index, row in enumerate(chunk)})
        statement = _insert_of(size, is_expiring=is_expiring, has_source=has_source, has_provider=has_provider)
        statement(connection, parameters)
        begin += size


def insert_adjustments(connection: sa.Connection, node: Node, reductions: Iterable[Freed]) -> None:
    """Insert an adjustment for each of these reservations that reduces the amount it subtracts."""
    _insert_committed(connection, node, [(reduction.amount, reduction.id) for reduction in reductions])


def insert_excess(connection: sa.Connection, node: Node, amount: int) -> None:
    """Insert rows that subtract the amount that exceeds the range of the counters."""
    parts = [MAX_AMOUNT] * (amount // MAX_AMOUNT) + [amount % MAX_AMOUNT]
    _insert_committed(connection, node, [(-part, None) for part in parts if part])


def _insert_committed(connection: sa.Connection, node: Node, rows: Sequence[tuple[int, int | None]]) -> None:
    connection.execute(
        sa.insert(reservations).values(created_at=clock.utc_now(), deleted=sa.false(), state=COMMITTED, live=1),
        [
            {
                "uuid": new_uuid(),
                "usage_id": node.usage_id,
                "project_id": node.project_id,
                "resource": node.resource,
                "delta": delta,
                "adjusts": adjusts,
            }
            for delta, adjusts in rows
        ],
    )
