# SPDX-License-Identifier: Apache-2.0
"""Replays the history, and compares the result with what is stored (L1)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from cyborg_quota import QuotaEngine
from cyborg_quota.db import inventories, overrides, projects, resource_providers
from cyborg_quota.db.database import Connection
from cyborg_quota.limits import tables as limits
from cyborg_quota.pods import tables as pods
from cyborg_quota.types import TOTAL, HistoryEntry
from tests import base, hooks

Key = tuple[Any, ...]
State = dict[Key, Any]


class Difference(NamedTuple):
    """``entry``: the id of the first entry that begins with another value; None: the present value is another one."""

    entry: str | None
    key: Key
    recorded: Any
    actual: Any


def differences(engine: QuotaEngine, *, is_purged: bool = False) -> list[Difference]:
    """What the history does not explain. ``is_purged``: it lacks its oldest entries, and what they alone have made."""
    entries = list(reversed(engine.limits.history(base.ADMIN)))
    state: State = {}
    found = []
    for entry in entries:
        key = _key(entry)
        if is_purged:
            state.setdefault(key, _value(entry, entry.before))
        if state.get(key) != _value(entry, entry.before):
            found.append(Difference(entry.id, key, state.get(key), _value(entry, entry.before)))
        state[key] = _value(entry, entry.after)
    present, ended = hooks.database_of(engine).read(lambda connection: (_read(connection), _ended(connection, state)))
    keys = state.keys() if is_purged else state.keys() | present.keys()
    found += [
        Difference(None, key, state.get(key), present.get(key))
        for key in sorted(keys - ended, key=str)
        if state.get(key) != present.get(key)
    ]
    return found


def _key(entry: HistoryEntry) -> Key:
    subject = entry.action.partition(" ")[2]
    if subject == "override":
        return (subject, entry.override_id)
    return (subject, entry.project_id, entry.resource, entry.pod, entry.provider_uuid)


def _value(entry: HistoryEntry, value: Any) -> Any:
    if entry.override_id is not None and value is not None:
        return (entry.project_id, entry.resource, value, entry.starts_at, entry.until)
    return value


def _ended(connection: Connection, state: State) -> set[Key]:
    """The overrides that have ended: they are deleted later."""
    now = overrides.now(connection)
    return {key for key, value in state.items() if key[0] == "override" and value is not None and value[-1] <= now}


def _read(connection: Connection) -> State:
    defaults, own, _ = limits.read_limits(connection)
    state: State = {("limit", None, resource, None, None): limit for resource, limit in defaults.items()}
    for key, limit in own.items():
        state["limit", key.project_id, key.resource, key.pod or None, None] = limit
    for total in limits.read_totals(connection):
        state["limit", TOTAL, total.resource, None, None] = total.limit
    for child, parent in projects.edges(connection).items():
        if parent is not None:
            state["project", child, None, None, None] = parent
    for one in overrides.read(connection)[0]:
        state["override", one.id] = (one.project_id, one.resource, one.limit, one.starts_at, one.until)
    uuids = {}
    for provider in resource_providers.list_providers(connection):
        uuids[provider.name] = provider.uuid
        values = {name: getattr(provider, name) for name in ("name", "parent", "can_host", "pod", "served_by")}
        state["provider", None, None, None, provider.uuid] = values
    for record in inventories.read(connection).values():
        names = ("total", "reserved", "min_unit", "max_unit", "step_size")
        values = {name: getattr(record, name) for name in names} | {"allocation_ratio": str(record.allocation_ratio)}
        state["inventory", None, record.resource, None, uuids[record.provider]] = values
    for stored in pods.list_pods(connection):
        values = dataclasses.asdict(stored.pod)
        state["pod", None, None, values.pop("name"), None] = values
    return state
