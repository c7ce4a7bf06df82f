# SPDX-License-Identifier: Apache-2.0
"""The table projects: the tree, the path from a project to its root, and concurrency control of moves and charges.

Three rules preserve invariant I9 (concepts.rst) while the tree changes during charges:

1.  Every usage row has a ``generation``. A move of a project changes the generation of each of that project's rows
    (the descendants' edges do not change). The UPDATE of a charge compares the generation of every row on its path. A
    charge with the old path therefore matches no row, and is retried on the new path. For the same reason paths can be
    cached in memory: a stale path cannot charge. Generations are random numbers: see usages.py.
2.  A transaction that inserts a usage row, changes an edge or removes a project first updates the project's row in
    ``projects`` (``lock_many``). Such transactions exclude each other, so that no usage row can be inserted
    concurrently while its project moves, or after its removal. The update changes a value (generation + 1), because
    Galera certifies writes, not locks.
3.  A project with a usage row for a resource has one at every ancestor too. A missing row therefore means zero.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import clock, dialects, paging
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import projects
from cyborg_quota.db.prepared import ListStatement, any_of, case_by_value, chunks, insert_many, update_each
from cyborg_quota.types import TOTAL, grouped

MAX_DEPTH: Final = 64
"""The greatest depth of the tree. It also ends the walk to the root in a cycle that was made by hand."""


Edges = Mapping[str, "str | None"]


def ancestors(project_id: str, edges: Edges) -> list[str]:
    """The ancestors of a project, nearest first."""
    path: list[str] = []
    parent_id = edges.get(project_id)
    while parent_id is not None and len(path) < MAX_DEPTH:
        path.append(parent_id)
        parent_id = edges.get(parent_id)
    return path


def depth(project_id: str, edges: Edges) -> int:
    """The number of ancestors: 0 for a root, -1 for the total over all projects, which is above the roots."""
    return -1 if project_id == TOTAL else len(ancestors(project_id, edges))


def path_cte() -> sa.CTE:
    """WITH RECURSIVE path (project_id, parent_id, distance): the project ``:b_project`` (distance 0) and its ancestors.

    A scalar subquery looks up each parent, because every database executes it through the primary key. (With a join,
    and with table statistics, SQLite first reads the whole table to build a Bloom filter.)
    """
    leaf_id = sa.cast(sa.bindparam("b_project"), projects.c.project_id.type)
    leaf = sa.select(
        leaf_id.label("project_id"),
        _parent_of(leaf_id).label("parent_id"),
        sa.literal_column("0").label("distance"),
    ).cte("path", recursive=True)
    step = sa.select(leaf.c.parent_id, _parent_of(leaf.c.parent_id), leaf.c.distance + sa.literal_column("1")).where(
        leaf.c.parent_id.is_not(None), leaf.c.distance < sa.literal_column(str(MAX_DEPTH))
    )
    return leaf.union_all(step)


def paths_cte() -> sa.CTE:
    """WITH RECURSIVE path (project_id, parent_id): the projects ``:b_projects`` and all their ancestors, once each.

    UNION removes the duplicates, and so ends also in a cycle that was made by hand.
    """
    # (The cast keeps the length, which PostgreSQL compares with that of the recursive part.)
    parent_id = sa.cast(projects.c.parent_id, projects.c.parent_id.type)
    leaf = (
        sa.select(projects.c.project_id, parent_id.label("parent_id"))
        .where(projects.c.project_id.in_(sa.bindparam("b_projects", expanding=True)))
        .cte("path", recursive=True)
    )
    return leaf.union(sa.select(leaf.c.parent_id, _parent_of(leaf.c.parent_id)).where(leaf.c.parent_id.is_not(None)))


def _parent_of(project_id: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
    return sa.select(projects.c.parent_id).where(projects.c.project_id == project_id).scalar_subquery()


_ensure = {"project_id": sa.bindparam("b_project"), "generation": 0, "created_at": clock.utc_now()}


def ensure(connection: sa.Connection, project_id: str) -> None:
    """Insert the project as a root if it does not exist."""
    dialects.of(connection).insert_or_ignore(connection, projects, _ensure, {"b_project": project_id})


def insert(connection: sa.Connection, added: Mapping[str, str | None]) -> None:
    """Insert projects. Raises DBDuplicateEntry if one of them exists."""
    insert_many(
        connection,
        projects,
        [
            {"project_id": project_id, "parent_id": parent_id, "generation": 0}
            for project_id, parent_id in sorted(added.items())
        ],
    )


@functools.cache
def _many_lock(dialect: Dialect) -> ListStatement:
    return ListStatement(
        lambda size: dialect.lock_in_order(
            sa.select(projects.c.project_id).where(any_of(projects.c.project_id, size)), projects.c.project_id
        )
    )


_LOCK_MANY = ListStatement(
    lambda size: (
        sa.update(projects)
        .where(any_of(projects.c.project_id, size))
        .values(generation=projects.c.generation + sa.literal_column("1"), updated_at=clock.utc_now())
    )
)


def lock_many(connection: sa.Connection, project_ids: Iterable[str]) -> None:
    """Lock the rows of these projects until the transaction ends, sorted by id, so that their edges cannot change.

    Raises ConcurrentChange if one of them does not exist. If an UPDATE locks its rows in no known order, a SELECT locks
    them first.
    """
    dialect = dialects.of(connection)
    for names in chunks(sorted(project_ids)):
        if not dialect.update_locks_in_order:
            _many_lock(dialect).rows(connection, names, {})
        if _LOCK_MANY.changed(connection, names, {}) != len(names):
            raise ConcurrentChange


def lock_and_add(connection: sa.Connection, project_ids: Collection[str]) -> None:
    """Like ``lock_many``, but first insert the projects that do not exist, as roots."""
    for names in chunks(sorted(project_ids)):
        for project_id in sorted(set(names) - edges(connection, names).keys()):
            ensure(connection, project_id)
    lock_many(connection, project_ids)


_SET_PARENTS = ListStatement(
    lambda size: (
        sa.update(projects)
        .where(any_of(projects.c.project_id, size))
        .values(parent_id=case_by_value(projects.c.project_id, projects.c.parent_id, size))
    )
)


def set_parents(connection: sa.Connection, moved: Mapping[str, str | None]) -> None:
    """Change edges only. The caller's transaction must lock the projects, and update the totals."""
    update_each(connection, _SET_PARENTS, moved)


def delete(connection: sa.Connection, project_id: str) -> None:
    """Delete the project's row. The transaction must have locked it, and deleted its usage rows."""
    connection.execute(sa.delete(projects).where(projects.c.project_id == project_id))


_EDGES = sa.select(projects.c.project_id, projects.c.parent_id)


def edges(connection: sa.Connection, project_ids: Collection[str] | None = None) -> dict[str, str | None]:
    """Parent by project, sorted: of the whole tree, or of those of ``project_ids`` that exist."""
    query = _EDGES if project_ids is None else _EDGES.where(projects.c.project_id.in_(sorted(project_ids)))
    return dict(sorted((row.project_id, row.parent_id) for row in connection.execute(query)))


def edges_above(connection: sa.Connection, project_ids: Iterable[str]) -> dict[str, str | None]:
    """The parents of these projects and of all their ancestors; without projects that do not exist."""
    path = paths_cte()
    query = sa.select(path.c.project_id, path.c.parent_id)
    parents: dict[str, str | None] = {}
    for names in chunks(sorted(project_ids)):
        rows = connection.execute(query, {"b_projects": list(names)})
        parents.update((row.project_id, row.parent_id) for row in rows)
    return parents


def edges_page(connection: sa.Connection, limit: int | None, after: str | None) -> list[tuple[str, str | None]]:
    """(project_id, parent_id) of at most ``limit`` projects after ``after``, as the database sorts them.

    Raises MarkerNotFound.
    """
    name = projects.c.project_id
    query = _EDGES.order_by(name).limit(limit)
    if after is not None:
        paging.require(connection, projects, name == after, (after,))
        query = query.where(name > after)
    return [(row.project_id, row.parent_id) for row in connection.execute(query)]


def children_of(connection: sa.Connection, project_id: str) -> set[str]:
    """The children of the project."""
    query = sa.select(projects.c.project_id).where(projects.c.parent_id == project_id)
    return set(connection.execute(query).scalars())


def subtree_edges(connection: sa.Connection, project_id: str) -> dict[str, str | None]:
    """The parent of the project and of each descendant. An unknown project is a root.

    WITH RECURSIVE subtree AS (SELECT project_id, parent_id FROM projects WHERE parent_id = :project
    UNION SELECT projects.project_id, projects.parent_id FROM subtree JOIN projects ON projects.parent_id =
    subtree.project_id) SELECT project_id, parent_id FROM subtree
    """
    subtree = _EDGES.where(projects.c.parent_id == project_id).cte("subtree", recursive=True)
    below = _EDGES.where(projects.c.parent_id == subtree.c.project_id)
    query = sa.select(subtree.union(below))  # (UNION ends also in a cycle that was made by hand)
    parents: dict[str, str | None] = {row.project_id: row.parent_id for row in connection.execute(query)}
    return {**parents, project_id: parent_of(connection, project_id)}


def subtree_page(
    connection: sa.Connection, top: str, count: int, after: str | None
) -> tuple[list[tuple[int, str]], bool]:
    """(depth, project_id) of the first projects of a subtree after ``after``. Parents come before their children.

    Siblings are in the order of the database. Also returns whether more follow. At most ``count``; there may be fewer,
    so that three statements suffice, whatever the tree looks like, and the rows that they read depend on ``count``
    only. Raises MarkerNotFound.
    """
    path, page = [top], [(0, top)]
    if after is not None:
        above = [after, *ancestors(after, edges_above(connection, [after]))]
        if top not in above:
            raise exceptions.MarkerNotFound((after, None))
        path, page = above[above.index(top) :: -1], []
    siblings = connection.execute(_next_below(dialects.of(connection), path, count + 1)).all()[: count + 1]
    # How many projects below each of these are read. Those further on are less often of this page. (A walk has two
    # steps for each, and MariaDB makes 1,000 in one recursion.)
    maximum = {row.project_id: max(1, min(count, 2 * count // index)) for index, row in enumerate(siblings, 1)}
    below = grouped(connection.execute(_walk(maximum)) if maximum else (), lambda row: row.start)
    for row in siblings:
        descendants = below.get(row.project_id, [])
        page.append((row.depth, row.project_id))
        page += [(row.depth + depth, name) for _, depth, name in descendants[: maximum[row.project_id]]]
        if len(page) > count or len(descendants) > maximum[row.project_id]:
            return page[:count], True
    return page, False


def _next_below(dialect: Dialect, path: Sequence[str], count: int) -> sa.CompoundSelect[Any]:
    """At each level of the path from the leaf up: the first children of the project, after the one on the path.

    SELECT depth, project_id FROM (SELECT 2 AS depth, project_id FROM projects WHERE parent_id = :leaf
    ORDER BY project_id LIMIT :count) UNION ALL SELECT ... (SELECT 1 AS depth, project_id FROM projects
    WHERE parent_id = :top AND project_id > :leaf ORDER BY ... LIMIT :count) ORDER BY depth DESC, project_id
    """
    name = projects.c.project_id
    levels = [
        sa.select(sa.literal_column(str(depth)).label("depth"), name)
        .where(dialect.is_first_of_index(projects.c.parent_id, parent), name > after)
        .order_by(projects.c.parent_id, name)
        .limit(count)
        .subquery()
        for depth, (parent, after) in enumerate(zip(path, [*path[1:], ""], strict=True), 1)
    ]
    union = sa.union_all(*(sa.select(level.c.depth, level.c.project_id) for level in levels))
    return union.order_by(union.selected_columns.depth.desc(), union.selected_columns.project_id)


def _walk(maximum: Mapping[str, int]) -> sa.Select[Any]:
    """(start, depth, project_id): the first descendants of each of these projects, one more than ``maximum``.

    A recursion with one row for each step of each walk: down to the first child of a project, or else to its next
    sibling, or else up. So each walk reads twice as many rows as it finds projects (MariaDB: those of the siblings
    before, too). ``following`` is the project to which the next step goes; NULL: up.
    """
    child, sibling = projects.alias("child"), projects.alias("sibling")

    def first_child(parent: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
        query = sa.select(child.c.project_id).where(child.c.parent_id == parent)
        return query.order_by(child.c.parent_id, child.c.project_id).limit(1).scalar_subquery()

    name = projects.c.project_id
    start = (
        sa.select(
            name.label("start"),
            name.label("project_id"),
            sa.cast(sa.null(), name.type).label("parent_id"),
            first_child(name).label("following"),
            sa.literal_column("1").label("depth"),
            sa.case({key: count + 1 for key, count in maximum.items()}, value=name).label("missing"),
            sa.literal_column("0").label("step"),
        )
        .where(name.in_(maximum))
        .cte("walk", recursive=True)
    )
    at = start.c
    is_down = at.following.is_not(None)
    after = sa.select(sibling.c.project_id).where(
        sibling.c.parent_id == at.parent_id, sibling.c.project_id > at.project_id
    )
    after = after.order_by(sibling.c.parent_id, sibling.c.project_id).limit(1)
    one: sa.ColumnElement[int] = sa.literal_column("1")
    step = sa.select(
        at.start,
        sa.case((is_down, at.following), else_=at.parent_id),
        sa.case((is_down, at.project_id), else_=_parent_of(at.parent_id)),
        sa.case((is_down, first_child(at.following)), else_=after.scalar_subquery()),
        sa.case((is_down, at.depth + one), else_=at.depth - one),
        sa.case((is_down, at.missing - one), else_=at.missing),
        at.step + one,
    ).where(at.missing > sa.literal_column("0"), sa.or_(is_down, at.depth > one))
    walk = start.union_all(step)
    query = sa.select(walk.c.start, walk.c.depth, walk.c.following)
    return query.where(walk.c.following.is_not(None), walk.c.missing > 0).order_by(walk.c.start, walk.c.step)


def parent_of(connection: sa.Connection, project_id: str) -> str | None:
    """The parent; None for a root and for an unknown project."""
    query = sa.select(projects.c.parent_id).where(projects.c.project_id == project_id)
    return connection.execute(query).scalar_one_or_none()
