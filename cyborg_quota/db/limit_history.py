# SPDX-License-Identifier: Apache-2.0
"""The table limit_changes: the history of limits and of the project tree.

``record`` runs in the transaction of the change, after ``limits.serialize_tree_changes``. Each entry has the
generation of the fence row in that transaction, and its number within the transaction. These two numbers order the
history, because only one such transaction can run at a time; the times may come from several clocks.

A checkpoint records a complete state: a row without a project and a resource, and then one row for each default, limit,
edge and override, all with the action ``checkpoint``, the same generation and the value in ``value_after``.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import exceptions, scopes
from cyborg_quota.db import change_log, overrides, prepared, projects, totals
from cyborg_quota.db.models import limit_changes, limit_defaults, project_limits
from cyborg_quota.limit_types import reason_of
from cyborg_quota.types import CHECKPOINT, TOTAL, Author, HistoryEntry, LimitChange, LimitOverride, RecordedChanges

_column = limit_changes.c
CHANGES: Final = change_log.ChangeLog(limit_changes, change_log.LIMITS)
generation: Final = CHANGES.generation


@dataclasses.dataclass(frozen=True, slots=True)
class StoredState:
    """All limits, edges and overrides.

    ``edges``: the parent of each project that has one, and the origin of this edge. ``overrides``: those that have not
    ended, by id.
    """

    defaults: dict[str, int]
    limits: dict[tuple[str, str], int]
    edges: dict[str, tuple[str, str | None]]
    overrides: dict[str, LimitOverride] = dataclasses.field(default_factory=dict)


def record(
    connection: sa.Connection,
    author: Author,
    changes: Sequence[LimitChange],
    *,
    operation: str | None = None,
    origin: str | None = None,
) -> RecordedChanges | None:
    """Add the changes of this transaction to the history. None: there are no changes.

    ``origin``: the limit driver that makes these edges of the tree. The transaction must be serialized with other
    changes. Write the history before locking usage rows, so that charges do not wait for it.
    """
    if not changes:
        return None
    recorded = RecordedChanges(generation(connection), author, operation, changes)
    prepared.insert_many(connection, limit_changes, list(_rows_of(recorded, origin)))
    return recorded


def _rows_of(recorded: RecordedChanges, origin: str | None) -> Iterable[dict[str, Any]]:
    author_columns = change_log.author_columns(recorded.author)
    has_overrides = any(change.override is not None for change in recorded.changes)
    for ordinal, change in enumerate(recorded.changes):
        yield {
            **(_span(change.override) if has_overrides else {}),
            **author_columns,
            "reason": reason_of(recorded.author, change),
            "generation": recorded.generation,
            "ordinal": ordinal,
            "action": change.action,
            "operation": recorded.operation,
            "project_id": change.project_id,
            "resource": None if change.resource is None else scopes.name_of(change.resource, change.pod),
            "value_before": _text(change.before),
            "value_after": _text(change.after),
            "origin": origin if change.resource is None else None,
        }


def _span(one: LimitOverride | None) -> dict[str, str | None]:
    if one is None:
        return {"override_id": None, "starts_at": None, "ends_at": None}
    # (Prepared statements take no dates: see prepared.py.)
    return {
        "override_id": one.id,
        "starts_at": one.starts_at.isoformat(" ", "microseconds"),
        "ends_at": one.until.isoformat(" ", "microseconds"),
    }


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def read(
    connection: sa.Connection,
    *,
    project_id: str | None = None,
    since: datetime.datetime | datetime.timedelta | None = None,
    limit: int | None = None,
    before: tuple[int, int] | None = None,
    resource: str | None = None,
) -> list[HistoryEntry]:
    """The entries that match all given filters, newest first; see ChangeLog.query."""
    query = CHANGES.query(since=since, limit=limit, before=before, resource=resource)
    if project_id is not None:
        query = query.where(_column.project_id == project_id)
    return [_entry(row) for row in connection.execute(query)]


def require_entry(connection: sa.Connection, key: tuple[int, int], project_id: str | None) -> None:
    """Raise MarkerNotFound unless there is this entry (generation, number), of this project if one is given."""
    is_entry = sa.and_(_column.generation == key[0], _column.ordinal == key[1])
    owner = sa.true() if project_id is None else _column.project_id == project_id
    query = sa.select(sa.literal(1)).select_from(limit_changes).where(is_entry, owner)
    if connection.execute(query).first() is None:
        raise exceptions.MarkerNotFound((f"{key[0]}-{key[1]}",))


def read_overrides(connection: sa.Connection, since: datetime.datetime) -> list[HistoryEntry]:
    """The entries of overrides whose span ends after ``since`` (naive UTC), oldest first."""
    is_selected = sa.and_(_column.override_id.is_not(None), _column.ends_at > since)
    query = sa.select(limit_changes).where(is_selected).order_by(_column.generation, _column.ordinal)
    return [_entry(row) for row in connection.execute(query)]


def read_from_last_checkpoint(connection: sa.Connection, before: int | None = None) -> list[HistoryEntry]:
    """The entries from the last checkpoint on, or from the first one; oldest first. ``before``: a generation."""
    return [_entry(row) for row in CHANGES.rows_from_last_checkpoint(connection, before)]


def _entry(row: Any) -> HistoryEntry:
    is_limit = row.resource is not None
    resource, pod = scopes.split(row.resource) if is_limit else (None, None)
    return HistoryEntry(
        **{**change_log.common_fields(row), "resource": resource},
        project_id=row.project_id,
        before=_value(row.value_before, is_limit=is_limit),
        after=_value(row.value_after, is_limit=is_limit),
        origin=row.origin,
        override_id=row.override_id,
        starts_at=row.starts_at,
        until=row.ends_at,
        pod=pod,
    )


def _value(text: str | None, *, is_limit: bool) -> str | int | None:
    return int(text) if is_limit and text is not None else text


def read_state(connection: sa.Connection) -> StoredState:
    """All stored limits and edges. The caller must exclude concurrent changes, or detect them (``generation``)."""
    limit = project_limits.c
    return StoredState(
        defaults=dict(
            tuple(row) for row in connection.execute(sa.select(limit_defaults.c.resource, limit_defaults.c.hard_limit))
        ),
        limits={
            (row.project_id, row.resource): row.hard_limit
            for row in connection.execute(sa.select(limit.project_id, limit.resource, limit.hard_limit))
        }
        | {(TOTAL, one.resource): one.limit for one in totals.read_limits(connection)},
        edges=projects.edges_with_origins(connection),
        overrides={one.id: one for one in overrides.read(connection)[0]},
    )


_CheckpointRow = tuple["str | None", "str | None", "str | int | None", "str | None", "LimitOverride | None"]
"""project_id, resource, value, origin, override"""


def write_checkpoint(
    connection: sa.Connection, author: Author, state: StoredState, *, number: int, operation: str | None = None
) -> int:
    """Add a checkpoint of ``state`` as generation ``number``. Returns the number of its rows."""
    values: list[_CheckpointRow] = [(None, None, None, None, None)]
    values += [(None, resource, most, None, None) for resource, most in sorted(state.defaults.items())]
    values += [(*key, most, None, None) for key, most in sorted(state.limits.items())]
    values += [(child, None, parent, origin, None) for child, (parent, origin) in sorted(state.edges.items())]
    values += [(one.project_id, one.resource, one.limit, None, one) for one in state.overrides.values()]
    rows = [
        {
            **change_log.author_columns(author),
            "generation": number,
            "ordinal": ordinal,
            "action": CHECKPOINT,
            "operation": operation,
            "project_id": project_id,
            "resource": resource,
            "value_after": _text(value),
            "origin": origin,
            "reason": author.reason if override is None else override.reason,
            **_span(override),
        }
        for ordinal, (project_id, resource, value, origin, override) in enumerate(values)
    ]
    prepared.insert_many(connection, limit_changes, rows)
    return len(rows)
