# SPDX-License-Identifier: Apache-2.0
"""The table capacity_changes: the history of providers and inventories.

``record`` runs in the transaction of the change, after ``serialize``. What is in use, here or elsewhere, is not part of
the history: reservations record claims, and ``used_elsewhere`` is a measurement.

A checkpoint records a complete state: a row without a provider, and then one row for each provider and each inventory.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.capacity_types import CapacityChange, CapacityEntry, CapacityValues, InventoryRecord, Provider
from cyborg_quota.db import change_log, inventories, prepared, resource_providers
from cyborg_quota.db.models import capacity_changes
from cyborg_quota.types import CHECKPOINT, Author

_column = capacity_changes.c
CHANGES: Final = change_log.ChangeLog(capacity_changes, change_log.CAPACITY)
generation: Final = CHANGES.generation
serialize: Final = CHANGES.serialize

Key = tuple[str, "str | None"]
"""The UUID of a provider, and a resource; None: the provider itself."""

State = Mapping[Key, tuple[str, CapacityValues]]
"""The name of the provider, and the values of each provider and inventory."""


def provider_values(provider: Provider) -> CapacityValues:
    """What the history has of a provider."""
    return {
        "name": provider.name,
        "parent": provider.parent,
        "can_host": provider.can_host,
        "pod": provider.pod,
    }


def inventory_values(record: InventoryRecord) -> CapacityValues:
    """What the history has of an inventory."""
    return {
        "total": record.total,
        "reserved": record.reserved,
        "min_unit": record.min_unit,
        "max_unit": record.max_unit,
        "step_size": record.step_size,
        "allocation_ratio": str(record.allocation_ratio),
    }


def record(connection: sa.Connection, author: Author, changes: Sequence[CapacityChange]) -> int | None:
    """Add the changes of this transaction to the history, and return their generation. None: there are no changes."""
    if not changes:
        return None
    number = generation(connection)
    rows = [
        {
            **change_log.author_columns(author),
            "generation": number,
            "ordinal": ordinal,
            "action": change.action,
            "provider_uuid": change.uuid,
            "provider": change.provider,
            "resource": change.resource,
            "value_before": _text(change.before),
            "value_after": _text(change.after),
        }
        for ordinal, change in enumerate(changes)
    ]
    prepared.insert_many(connection, capacity_changes, rows)
    return number


def _text(values: CapacityValues | None) -> str | None:
    return None if values is None else json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def read(
    connection: sa.Connection,
    *,
    provider: str | None = None,
    resource: str | None = None,
    since: datetime.datetime | datetime.timedelta | None = None,
    limit: int | None = None,
    before: tuple[int, int] | None = None,
) -> list[CapacityEntry]:
    """The entries that match all given filters, newest first; see ChangeLog.query.

    ``provider``: a UUID or a name, of the past too.
    """
    query = CHANGES.query(since=since, limit=limit, before=before, resource=resource)
    if provider is not None:
        query = query.where(sa.or_(_column.provider == provider, _column.provider_uuid == provider))
    return [_entry(row) for row in connection.execute(query)]


def read_from_last_checkpoint(connection: sa.Connection, before: int | None = None) -> list[CapacityEntry]:
    """The entries from the last checkpoint on, or from the first one; oldest first. ``before``: a generation."""
    return [_entry(row) for row in CHANGES.rows_from_last_checkpoint(connection, before)]


def _entry(row: Any) -> CapacityEntry:
    return CapacityEntry(
        **change_log.common_fields(row),
        uuid=row.provider_uuid,
        provider=row.provider,
        before=_values(row.value_before),
        after=_values(row.value_after),
    )


_ORDER: Final = (
    "name", "parent", "can_host", "pod",
    "total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio",
)  # fmt: skip


def _values(text: str | None) -> CapacityValues | None:
    """The values in the order in which the commands print them."""
    if text is None:
        return None
    values: dict[str, Any] = json.loads(text)
    known: dict[str, Any] = {name: values.pop(name) for name in _ORDER if name in values}
    return {**known, **values}


def read_state(connection: sa.Connection) -> State:
    """All providers and inventories. The caller must exclude concurrent changes, or detect them (``generation``)."""
    state: dict[Key, tuple[str, CapacityValues]] = {}
    uuids = {}
    for provider in resource_providers.list_providers(connection):
        uuids[provider.name] = provider.uuid
        state[provider.uuid, None] = (provider.name, provider_values(provider))
    for one in inventories.read(connection).values():
        # (A provider that was added between the two statements changes the generation.)
        uuid = uuids.get(one.provider, one.provider)
        state[uuid, one.resource] = (one.provider, inventory_values(one))
    return state


def write_checkpoint(
    connection: sa.Connection, author: Author, state: State, *, number: int, operation: str | None = None
) -> int:
    """Add a checkpoint of ``state`` as generation ``number``. Returns the number of its rows."""
    present = sorted(state.items(), key=lambda item: (item[0][1] is not None, item[1][0], item[0][1] or ""))
    values: list[tuple[str | None, str | None, str | None, CapacityValues | None]] = [(None, None, None, None)]
    values += [(uuid, name, resource, value) for (uuid, resource), (name, value) in present]
    rows = [
        {
            **change_log.author_columns(author),
            "generation": number,
            "ordinal": ordinal,
            "action": CHECKPOINT,
            "operation": operation,
            "provider_uuid": uuid,
            "provider": name,
            "resource": resource,
            "value_after": _text(value),
        }
        for ordinal, (uuid, name, resource, value) in enumerate(values)
    ]
    prepared.insert_many(connection, capacity_changes, rows)
    return len(rows)
