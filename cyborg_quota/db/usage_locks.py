# SPDX-License-Identifier: Apache-2.0
"""Locks many usage rows in the order of charges, and renews their generations.

Paths are cached with their limits. Whoever changes a limit therefore renews the generation of the usage row that it
bounds, as the last statement before COMMIT: a charge by the limits that were read before matches no row, and reads them
again (rule 1 in projects.py). The project's row in ``projects`` is locked first, so that no usage row is inserted
between the renewal and the COMMIT; it would be read together with the earlier limit.

A default bounds a row at the root of every path. These rows are renewed in batches, after the COMMIT: what is inserted
after it is read with the new default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import dialects, path_state, projects, usages
from cyborg_quota.db.prepared import ListStatement, chunks
from cyborg_quota.types import TOTAL, UsageKey

Edges = Mapping[str, "str | None"]


def ancestors(project_id: str, edges: Edges) -> list[str]:
    """The ancestors of a project, nearest first."""
    path: list[str] = []
    parent_id = edges.get(project_id)
    while parent_id is not None and len(path) < projects.MAX_DEPTH:
        path.append(parent_id)
        parent_id = edges.get(parent_id)
    return path


def in_lock_order(connection: sa.Connection, rows: Mapping[UsageKey, int], edges: Edges) -> list[Sequence[int]]:
    """The ids of these rows, in lists that ``lock`` locks one after the other. ``edges``: of the projects and above."""
    if dialects.of(connection).update_locks_in_order:
        return list(chunks(sorted(rows.values())))
    by_height: dict[int, list[tuple[UsageKey, int]]] = {}
    for key, usage_id in rows.items():
        height = 1 if key.project_id == TOTAL else -len(ancestors(key.project_id, edges))
        by_height.setdefault(height, []).append((key, usage_id))
    return [
        [usage_id for _, usage_id in part] for _, level in sorted(by_height.items()) for part in chunks(sorted(level))
    ]


@functools.cache
def _lock(dialect: dialects.Dialect) -> ListStatement:
    columns = usages.lock_order_columns(by_id=dialect.update_locks_in_order)
    return ListStatement(lambda size: dialect.lock_in_order(usages.subtrees_query(size), *columns))


def lock(connection: sa.Connection, order: Iterable[Sequence[int]]) -> dict[int, int]:
    """Lock the usage rows with these ids, list by list; each list in the order of the ids or of the names.

    Returns the ``subtree`` of each row, by id, as read under the lock.
    """
    statement = _lock(dialects.of(connection))
    subtrees: dict[int, int] = {}
    for chunk in order:
        subtrees.update(tuple(row) for row in statement.rows(connection, chunk, {}))
    return subtrees


def renew_rows(connection: sa.Connection, rows: Mapping[UsageKey, int], edges: Edges) -> None:
    """Lock these rows in lock order, and renew their generations. ``edges``: of the projects and above."""
    if len(rows) > 1 and not dialects.of(connection).update_locks_in_order:
        lock(connection, in_lock_order(connection, rows, edges))
    usages.bump_generations_of_rows(connection, list(rows.values()))


def renew(connection: sa.Connection, keys: Collection[UsageKey]) -> None:
    """Renew the generations of those of these usage rows that exist. Adds the projects that are not known, as roots.

    (The rows of totals are inserted and removed only in transactions that are serialized with all changes of limits.)
    """
    projects.lock_and_add(connection, {key.project_id for key in keys} - {TOTAL})
    ids = usages.row_ids(connection, {key.project_id for key in keys})
    rows = {key: ids[key] for key in keys if key in ids}
    if not rows:
        return
    edges = projects.edges_above(connection, {key.project_id for key in rows}) if len(rows) > 1 else {}
    renew_rows(connection, rows, edges)


_ROOTS_A_BATCH: Final = 200


def renew_roots(connection: sa.Connection, resource: str, after: str) -> str | None:
    """Renew the rows of a resource of the next roots, by project, from the one after ``after``. Returns the last one.

    None: there are no more.
    """
    rows = path_state.rows_of_roots(connection, [resource], after, _ROOTS_A_BATCH)
    renew_rows(connection, rows, {})
    return list(rows)[-1].project_id if rows else None


def renew_all_roots(write: Callable[[Callable[[sa.Connection], str | None]], str | None], resource: str) -> None:
    """Renew the rows of a resource of all roots, in transactions of ``write`` (Database.write)."""
    after: str | None = ""
    while after is not None:
        after = write(functools.partial(renew_roots, resource=resource, after=after))
