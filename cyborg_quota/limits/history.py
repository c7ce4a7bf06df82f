# SPDX-License-Identifier: Apache-2.0
"""Replays the history of limits: computes the state after its entries, and finds changes that it lacks. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from cyborg_quota import scopes
from cyborg_quota.db.limit_history import StoredState
from cyborg_quota.limits.timeline import shown
from cyborg_quota.types import CHECKPOINT, HistoryDifference, HistoryEntry, LimitOverride

Key = tuple[str | None, str | None]
"""(project_id, resource): the project is None for a default, the resource is None for a place in the tree."""


def replay(entries: Iterable[HistoryEntry]) -> tuple[StoredState, list[HistoryDifference]]:
    """The state after these entries, oldest first, and the entries whose value before is not the replayed one.

    A checkpoint replaces the state. Such a difference means that another change was not recorded.
    """
    state = StoredState({}, {}, {})
    differences = []
    for entry in entries:
        if entry.action == CHECKPOINT and entry.project_id is None and entry.resource is None:
            state = StoredState({}, {}, {})
            continue
        key = (entry.project_id, None if entry.resource is None else scopes.name_of(entry.resource, entry.pod))
        recorded = _get(state, key, entry.override_id)
        if entry.action != CHECKPOINT and recorded != entry.before:
            names = (entry.project_id, entry.resource)
            differences.append(HistoryDifference(entry.id, *names, recorded, entry.before, entry.pod))
        _set(state, key, entry)
    return state, differences


def _get(state: StoredState, key: Key, override_id: str | None) -> str | int | None:
    project_id, resource = key
    if override_id is not None:
        override = state.overrides.get(override_id)
        return None if override is None else override.limit
    if resource is None:
        return state.edges.get(str(project_id), (None, None))[0]
    if project_id is None:
        return state.defaults.get(resource)
    return state.limits.get((project_id, resource))


def _set(state: StoredState, key: Key, entry: HistoryEntry) -> None:
    project_id, resource = key
    if entry.override_id is not None:
        _put(state.overrides, entry.override_id, None if entry.after is None else _override(entry, entry.override_id))
    elif resource is None:
        _put(state.edges, project_id, None if entry.after is None else (entry.after, entry.origin))
    elif project_id is None:
        _put(state.defaults, resource, entry.after)
    else:
        _put(state.limits, (project_id, resource), entry.after)


def _override(entry: HistoryEntry, override_id: str) -> LimitOverride:
    generation, number = override_id.split("-")
    assert entry.starts_at is not None and entry.until is not None, f"entry {entry.id} has no span"
    return LimitOverride(
        made=(int(generation), int(number)),
        project_id=str(entry.project_id),
        resource=str(entry.resource),
        limit=int(entry.after or 0),
        starts_at=entry.starts_at,
        until=entry.until,
        reason=entry.reason,
    )


def _put(values: dict[Any, Any], name: Any, value: Any) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def past_overrides(entries: Iterable[HistoryEntry]) -> list[LimitOverride]:
    """The overrides of these entries, which are oldest first, in the order in which they were made.

    No override begins before it was made, whatever its start. A cancelled one ends when it was cancelled; one that was
    cancelled before its start is left out.
    """
    found: dict[str, LimitOverride] = {}
    for entry in entries:
        if entry.override_id is None:
            continue
        if entry.after is not None:
            one = _override(entry, entry.override_id)
            if entry.action != CHECKPOINT and entry.at is not None:
                one = dataclasses.replace(one, starts_at=max(one.starts_at, entry.at))
            found.setdefault(entry.override_id, one)
        elif entry.override_id in found and entry.at is not None:
            one = found[entry.override_id]
            found[entry.override_id] = dataclasses.replace(one, until=min(one.until, entry.at))
    return sorted((one for one in found.values() if one.starts_at < one.until), key=lambda one: one.made)


def compare(replayed: StoredState, present: StoredState, now: datetime.datetime) -> list[HistoryDifference]:
    """The differences between the replayed and the present state, sorted: defaults, limits, edges, overrides.

    Overrides that ended until ``now``, the time of the database (naive UTC), are left out: they are deleted later.
    """
    differences = []
    for resource, recorded, actual in _unequal(replayed.defaults, present.defaults):
        differences.append(HistoryDifference(None, None, resource, recorded, actual))
    for (project_id, resource), recorded, actual in _unequal(replayed.limits, present.limits):
        name, pod = scopes.split(resource)
        differences.append(HistoryDifference(None, project_id, name, recorded, actual, pod))
    for project_id, recorded, actual in _unequal(replayed.edges, present.edges):
        differences.append(HistoryDifference(None, project_id, None, _edge(recorded), _edge(actual)))
    recorded_overrides, present_overrides = (
        {override_id: _text(one) for override_id, one in state.overrides.items() if one.until > now}
        for state in (replayed, present)
    )
    for override_id, recorded, actual in _unequal(recorded_overrides, present_overrides):
        one = replayed.overrides.get(override_id) or present.overrides[override_id]
        differences.append(HistoryDifference(None, one.project_id, one.resource, recorded, actual))
    return differences


def _text(one: LimitOverride) -> str:
    return f"{one.limit} from {shown(one.starts_at)} until {shown(one.until)} (override {one.id})"


def _unequal(replayed: Mapping[Any, Any], present: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
    return [
        (key, replayed.get(key), present.get(key))
        for key in sorted(replayed.keys() | present.keys())
        if replayed.get(key) != present.get(key)
    ]


def _edge(edge: tuple[str, str | None] | None) -> str | None:
    """The text of an edge: its parent, and its origin if a limit driver made it."""
    if edge is None:
        return None
    parent_id, origin = edge
    return parent_id if origin is None else f"{parent_id} (origin {origin})"
