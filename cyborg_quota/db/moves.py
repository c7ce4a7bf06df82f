# SPDX-License-Identifier: Apache-2.0
"""Many projects added and moved in one transaction, with what they hold.

The rules are those of projects.py. The transaction has two parts:

1.  The rows of ``projects`` are locked, by name, and changed; the usage rows that the new ancestors lack are inserted.
    Charges go on: they lock no row of ``projects``, except to insert the first usage row of a resource.
2.  The usage rows of the moved projects, and of the old and new ancestors whose totals change, are locked, in the order
    in which charges lock them; then their counters are read and changed, and the transaction commits. Charges of these
    projects wait meanwhile, so all that can be computed before is computed before, and this part consists of few
    statements: each locks or changes ROWS_A_STATEMENT rows.

What was counted in a moved project's subtree, less what moves out of it by itself, leaves the totals of all its old
ancestors and enters those of all its new ones.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from cyborg_quota.db import clock, projects
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.prepared import ListStatement, any_of

ROWS_A_STATEMENT: Final = 512
"""A power of two (see ListStatement), and less than what makes MariaDB turn the list into a subquery (1,000)."""

_CASES_A_STATEMENT: Final = 128
"""Where each row gets a value of its own, the server compares each row with each value."""

Edges = Mapping[str, "str | None"]
Key = tuple[str, str]
T = TypeVar("T")
_usage = quota_usages.c
_project = projects_table.c


def place_all(connection: sa.Connection, added: Edges, moved: Edges) -> None:
    """Add these projects, and move those, which are known. No cycle may come of it: that is the caller's to see.

    Their edges are the operator's afterwards (origin NULL), also where a project stays below its parent.

    For a transaction that has taken its turn (see limits.take_turns). Raises DBDuplicateEntry for an added project
    that somebody has made known meanwhile, TransactionMoved when an edge has changed meanwhile.
    """
    projects.insert_many(
        connection,
        projects_table,
        [
            {"project_id": project_id, "parent_id": parent_id, "generation": 0}
            for project_id, parent_id in sorted(added.items())
        ],
    )
    if not moved:
        return
    before = projects.edges(connection)
    after = {**before, **moved}
    news = {project_id: ancestors(project_id, after) for project_id in moved}
    olds = {project_id: ancestors(project_id, before) for project_id in moved}
    touched = set(moved).union(*news.values(), *olds.values())
    _lock_projects(connection, set(moved).union(*news.values()) - set(added))
    now = projects.edges(connection)
    if any(now.get(project_id) != before.get(project_id) for project_id in touched):
        raise TransactionMoved
    present = _usage_rows(connection, touched)
    rows = _make_lacking_rows(connection, present, moved, news)
    _set_parents(connection, moved)
    # (A row that was inserted just now holds nothing that could move.)
    plan = _plan(rows, [key for key in present if key[0] in moved], olds, news)
    order = _lock_order(connection, rows, plan, before)
    # From here on, charges of these projects wait.
    subtrees = _lock_usage_rows(connection, order)
    _add_to_subtrees(connection, _totals(plan, subtrees))
    _bump_generations(connection, [part.usage_id for part in plan])


def count_rows(connection: sa.Connection, project_ids: Collection[str]) -> int:
    """How many usage rows these projects have."""
    return len(_usage_rows(connection, project_ids))


def ancestors(project_id: str, edges: Edges) -> list[str]:
    """Everything above a project, nearest first."""
    found: list[str] = []
    parent_id = edges.get(project_id)
    while parent_id is not None and len(found) < projects.MAX_DEPTH:
        found.append(parent_id)
        parent_id = edges.get(parent_id)
    return found


def _pieces(values: Sequence[T], size: int = ROWS_A_STATEMENT) -> Iterable[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


_LOCK_PROJECTS_IN_ORDER = ListStatement(
    lambda size: (
        sa.select(_project.project_id)
        .where(any_of(_project.project_id, size))
        .order_by(sa.collate(_project.project_id, "C"))
        .with_for_update(key_share=True)
    )
)
_CHANGE_PROJECTS = ListStatement(
    lambda size: (
        sa.update(projects_table)
        .where(any_of(_project.project_id, size))
        .values(generation=_project.generation + sa.literal_column("1"), updated_at=clock.utc_now())
    )
)


def _lock_projects(connection: sa.Connection, project_ids: Iterable[str]) -> None:
    """Keep the edges at these projects as they are until the transaction ends: projects.hold, for many.

    PostgreSQL promises no order within an UPDATE, so there the rows are locked by a SELECT before.
    """
    for names in _pieces(sorted(project_ids)):
        if connection.dialect.name == "postgresql":
            _LOCK_PROJECTS_IN_ORDER.rows(connection, names, {})
        if _CHANGE_PROJECTS.changed(connection, names, {}) != len(names):
            raise TransactionMoved


_ROWS_OF = ListStatement(
    lambda size: sa.select(_usage.id, _usage.project_id, _usage.resource).where(any_of(_usage.project_id, size))
)


def _usage_rows(connection: sa.Connection, project_ids: Iterable[str]) -> dict[Key, int]:
    """The ids of all usage rows of these projects, by project and resource."""
    return {
        (row.project_id, row.resource): row.id
        for names in _pieces(sorted(project_ids))
        for row in _ROWS_OF.rows(connection, names, {})
    }


def _make_lacking_rows(
    connection: sa.Connection, rows: Mapping[Key, int], moved: Collection[str], news: Mapping[str, Sequence[str]]
) -> dict[Key, int]:
    """A project that has a usage row has one at every ancestor too: rule 3. (No other can insert them: rule 2.)"""
    needed = {(above, resource) for owner, resource in rows if owner in moved for above in news[owner]}
    zeros = {"reserved": 0, "used": 0, "subtree": 0, "generation": 0}
    lacking = sorted(needed - set(rows))
    projects.insert_many(
        connection, quota_usages, [{"project_id": owner, "resource": name, **zeros} for owner, name in lacking]
    )
    return {**rows, **_usage_rows(connection, {owner for owner, _ in lacking})}


@dataclasses.dataclass(slots=True)
class _Part:
    """A usage row of a moved project, by id, and the rows whose totals change by what it takes along.

    ``carrier`` is the row of the nearest old ancestor that is moved too: it does not take this part along.
    """

    usage_id: int
    carrier: int | None
    leaves: list[int]
    enters: list[int]


def _plan(
    rows: Mapping[Key, int],
    moving: Iterable[Key],
    olds: Mapping[str, Sequence[str]],
    news: Mapping[str, Sequence[str]],
) -> list[_Part]:
    plan = []
    for project_id, resource in moving:
        carrier = next((above for above in olds[project_id] if above in olds), None)
        # The total of an ancestor that is an old and a new one stays the same.
        old, new = set(olds[project_id]), set(news[project_id])
        plan.append(
            _Part(
                rows[project_id, resource],
                None if carrier is None else rows.get((carrier, resource)),
                # (Which exist, unless somebody deleted one by hand; heal makes it anew.)
                [rows[above, resource] for above in old - new if (above, resource) in rows],
                [rows[above, resource] for above in new - old],
            )
        )
    return plan


def _lock_order(
    connection: sa.Connection, rows: Mapping[Key, int], plan: Sequence[_Part], before: Edges
) -> list[list[int]]:
    """The ids of all rows that change, in everybody's lock order; PostgreSQL orders each list by name itself."""
    changing = {part.usage_id for part in plan}.union(*([*part.leaves, *part.enters] for part in plan))
    if connection.dialect.name != "postgresql":
        return [list(some) for some in _pieces(sorted(changing))]
    by_depth: dict[int, list[tuple[str, str, int]]] = {}
    for (project_id, resource), usage_id in rows.items():
        if usage_id in changing:
            by_depth.setdefault(-len(ancestors(project_id, before)), []).append((project_id, resource, usage_id))
    return [
        [usage_id for *_, usage_id in some] for _, level in sorted(by_depth.items()) for some in _pieces(sorted(level))
    ]


def _by_key(column: sa.ColumnElement[Any], value: sa.ColumnElement[Any], size: int) -> sa.Case[Any]:
    """CASE column WHEN :b_0 THEN :b_value_0 ...; a list that is filled up repeats its last pair."""
    return sa.case(
        {
            sa.bindparam(f"b_{index}", type_=column.type): sa.bindparam(f"b_value_{index}", type_=value.type)
            for index in range(size)
        },
        value=column,
    )


def _update_each(connection: sa.Connection, statement: ListStatement, values: Mapping[Any, Any]) -> None:
    keys = sorted(values)
    for some in _pieces(keys, _CASES_A_STATEMENT):
        filled = [*some, *[some[-1]] * (_CASES_A_STATEMENT - len(some))]
        parameters = {f"b_value_{index}": values[key] for index, key in enumerate(filled)}
        statement.changed(connection, some, parameters)


_SET_PARENTS = ListStatement(
    lambda size: (
        sa.update(projects_table)
        .where(any_of(_project.project_id, size))
        .values(parent_id=_by_key(_project.project_id, _project.parent_id, size), origin=sa.null())
    )
)


def _set_parents(connection: sa.Connection, moved: Edges) -> None:
    _update_each(connection, _SET_PARENTS, moved)


def _locking(*order: sa.ColumnElement[Any]) -> ListStatement:
    return ListStatement(
        lambda size: (
            sa.select(_usage.id, _usage.subtree)
            .where(any_of(_usage.id, size))
            .order_by(*order)
            .with_for_update(key_share=True)
        )
    )


_LOCK_BY_ID = _locking(_usage.id)
_LOCK_BY_NAME = _locking(sa.collate(_usage.project_id, "C"), sa.collate(_usage.resource, "C"))


def _lock_usage_rows(connection: sa.Connection, order: Iterable[Sequence[int]]) -> dict[int, int]:
    """Lock these rows. Returns the subtree of each, by id, as it is once the row is locked."""
    lock = _LOCK_BY_NAME if connection.dialect.name == "postgresql" else _LOCK_BY_ID
    subtrees: dict[int, int] = {}
    for some in order:
        subtrees.update(tuple(row) for row in lock.rows(connection, some, {}))
    return subtrees


def _totals(plan: Sequence[_Part], subtrees: Mapping[int, int]) -> dict[int, int]:
    """What the moves change in the totals, by the id of the row."""
    amounts = Counter({part.usage_id: subtrees[part.usage_id] for part in plan})
    for part in plan:
        if part.carrier is not None:
            amounts[part.carrier] -= subtrees[part.usage_id]
    changes: Counter[int] = Counter()
    for part in plan:
        amount = amounts[part.usage_id]
        if amount:
            for usage_id in part.leaves:
                changes[usage_id] -= amount
            for usage_id in part.enters:
                changes[usage_id] += amount
    return {usage_id: amount for usage_id, amount in changes.items() if amount}


_ADD = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(subtree=_usage.subtree + _by_key(_usage.id, _usage.subtree, size), updated_at=clock.utc_now())
    )
)


def _add_to_subtrees(connection: sa.Connection, amounts: Mapping[int, int]) -> None:
    _update_each(connection, _ADD, amounts)


_BUMP = ListStatement(
    lambda size: (
        sa.update(quota_usages)
        .where(any_of(_usage.id, size))
        .values(generation=_usage.generation + sa.literal_column("1"))
    )
)


def _bump_generations(connection: sa.Connection, usage_ids: Sequence[int]) -> None:
    """A charge that is on its way through one of these rows begins again, on its new path: rule 1."""
    for some in _pieces(sorted(usage_ids)):
        _BUMP.changed(connection, some, {})
