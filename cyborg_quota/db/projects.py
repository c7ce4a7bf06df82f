# SPDX-License-Identifier: Apache-2.0
"""The table projects: the tree, the path from a project to its root, and concurrency control of moves and charges.

Three rules preserve I9 while the tree changes during charges:

1.  Every usage row has a ``generation``. A move of a project adds one to the generation of each of that project's
    rows (the descendants' edges do not change). The UPDATE of a charge compares the generation of every row on its
    path. A charge with the old path therefore matches no row, and is retried on the new path. For the same reason
    paths can be cached in memory: a stale path cannot charge. The first generation of a row is a random number,
    because after a restore from a backup, or the promotion of a lagging replica, another project's row may get the id.
2.  A transaction that inserts a usage row, changes an edge or removes a project first updates the project's row in
    ``projects`` (``lock_project_rows``). Such transactions exclude each other, so that no usage row can be inserted
    concurrently while its project moves, or after its removal. The update changes a value (generation + 1), because
    Galera certifies writes, not locks.
3.  A project with a usage row for a resource has one at every ancestor too. A missing row therefore means zero.

``origin`` names the limit source that put a project below its parent; it is NULL if an operator did. Counters follow
every edge. Limits follow the edges without an origin, and those with the limit driver's own origin. To change an
origin is a move, even if the parent does not change: a charge that was checked on the old path is retried.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, paging, usages
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import projects, quota_usages
from cyborg_quota.db.prepared import ListStatement, any_of

MAX_DEPTH: Final = 64
"""The greatest depth of the tree. It also ends the walk to the root in a cycle that was made by hand."""

_ROWS_A_STATEMENT: Final = 100


def path_cte(*, for_limits: bool = False) -> sa.CTE:
    """WITH RECURSIVE path (project_id, parent_id, distance): the project ``:b_project`` (distance 0) and its ancestors.

    ``for_limits``: stop at the first edge that has an origin other than ``:b_origin`` (NULL: that has an origin).

    A scalar subquery looks up each parent, because every database executes it through the primary key. (With a join,
    and with table statistics, SQLite first reads the whole table to build a Bloom filter.)
    """
    name = projects.c.project_id.type
    leaf_id = sa.cast(sa.bindparam("b_project"), name)
    leaf = sa.select(
        leaf_id.label("project_id"),
        _parent_of(leaf_id, for_limits=for_limits).label("parent_id"),
        sa.literal_column("0").label("distance"),
    ).cte("path", recursive=True)
    step = sa.select(
        leaf.c.parent_id,
        _parent_of(leaf.c.parent_id, for_limits=for_limits),
        leaf.c.distance + sa.literal_column("1"),
    ).where(leaf.c.parent_id.is_not(None), leaf.c.distance < sa.literal_column(str(MAX_DEPTH)))
    return leaf.union_all(step)


def paths_cte() -> sa.CTE:
    """WITH RECURSIVE path (project_id, parent_id): the projects ``:b_projects`` and all their ancestors, once each.

    As ``path_cte(for_limits=True)``. UNION removes the duplicates, and so ends also in a cycle that was made by hand.
    """
    # (The cast keeps the length, which PostgreSQL compares with that of the recursive part.)
    parent_id = sa.cast(sa.case((_limits_follow(), projects.c.parent_id)), projects.c.parent_id.type)
    leaf = (
        sa.select(projects.c.project_id, parent_id.label("parent_id"))
        .where(projects.c.project_id.in_(sa.bindparam("b_projects", expanding=True)))
        .cte("path", recursive=True)
    )
    step = sa.select(leaf.c.parent_id, _parent_of(leaf.c.parent_id, for_limits=True)).where(
        leaf.c.parent_id.is_not(None)
    )
    return leaf.union(step)


def _parent_of(project_id: sa.ColumnElement[str], *, for_limits: bool) -> sa.ScalarSelect[Any]:
    query = sa.select(projects.c.parent_id).where(projects.c.project_id == project_id)
    if for_limits:
        query = query.where(_limits_follow())
    return query.scalar_subquery()


def _limits_follow() -> sa.ColumnElement[bool]:
    """Whether limits follow the edge of a row: it has no origin, or ``:b_origin``."""
    same_origin = projects.c.origin == sa.bindparam("b_origin", type_=projects.c.origin.type)
    return sa.or_(projects.c.origin.is_(None), same_origin)


@functools.cache
def _path_query(dialect: Dialect) -> sa.CompoundSelect[Any]:
    """The project, its ancestors, and their usage rows, in one statement and thus one snapshot."""
    path = path_cte()
    usage = quota_usages.c
    number = sa.cast(sa.null(), sa.Integer)
    name = sa.cast(sa.null(), usage.resource.type)
    origin = sa.select(projects.c.origin).where(projects.c.project_id == path.c.project_id).scalar_subquery()
    no_origin = sa.cast(sa.null(), projects.c.origin.type)
    rows = sa.select(usage.project_id, number, usage.id, usage.resource, usage.generation, no_origin).where(
        dialect.is_on_path(usage.project_id, sa.select(path.c.project_id)),
        usage.resource.in_(sa.bindparam("b_resources", expanding=True)),
    )
    return sa.union_all(
        sa.select(
            path.c.project_id,
            path.c.distance,
            number.label("id"),
            name.label("resource"),
            number.label("generation"),
            origin.label("origin"),
        ),
        rows,
    )


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by resource.

    ``origins``: for each project of the path, the origin of the edge to its parent (None for the root).
    """

    __slots__ = ("_rows", "origins", "project_ids")

    def __init__(
        self,
        project_ids: Sequence[str],
        rows: dict[str, tuple[usages.Node, ...]],
        origins: Sequence[str | None] | None = None,
    ) -> None:
        self.project_ids = tuple(project_ids)
        self.origins = (None,) * len(self.project_ids) if origins is None else tuple(origins)
        self._rows = rows

    def limiting(self, origin: str | None) -> tuple[str, ...]:
        """The projects whose limits apply: up to the first edge with an origin other than ``origin``."""
        for index, edge_origin in enumerate(self.origins):
            if edge_origin is not None and edge_origin != origin:
                return self.project_ids[: index + 1]
        return self.project_ids

    def nodes(self, resource: str) -> tuple[usages.Node, ...] | None:
        """The rows to charge, leaf first; None if one of them does not exist yet."""
        nodes = self._rows.get(resource, ())
        return nodes if len(nodes) == len(self.project_ids) else None

    @property
    def resources(self) -> list[str]:
        """The resources with usage rows along this path, sorted."""
        return sorted(self._rows)

    def lacking(self, resource: str) -> set[str]:
        """The projects along the path that have no usage row for ``resource``."""
        return set(self.project_ids) - {node.project_id for node in self._rows.get(resource, ())}

    def missing(self, resources: Iterable[str]) -> list[str]:
        """Those of the resources for which a project along this path has no usage row."""
        return [resource for resource in resources if self.nodes(resource) is None]


def read_path(connection: sa.Connection, project_id: str, resources: Collection[str]) -> ProjectPath:
    """Read the current path of ``project_id``. An unknown project is a root."""
    statement = _path_query(dialects.of(connection))
    rows = connection.execute(statement, {"b_project": project_id, "b_resources": sorted(resources)}).all()
    distances: dict[str, int] = {}
    origins: dict[str, str | None] = {}
    for row in sorted((row for row in rows if row.id is None), key=lambda row: int(row.distance)):
        distances.setdefault(row.project_id, row.distance)
        origins.setdefault(row.project_id, row.origin)
    height = len(distances) - 1
    nodes_by_resource: dict[str, list[usages.Node]] = {}
    for row in sorted((row for row in rows if row.id is not None), key=lambda row: distances[row.project_id]):
        node = usages.Node(row.id, row.project_id, row.resource, row.generation, height - distances[row.project_id])
        nodes_by_resource.setdefault(row.resource, []).append(node)
    rows_by_resource = {name: tuple(nodes) for name, nodes in nodes_by_resource.items()}
    return ProjectPath(list(distances), rows_by_resource, list(origins.values()))


_ROOTS = ListStatement(
    lambda size: (
        sa.select(quota_usages.c.id, quota_usages.c.project_id, quota_usages.c.resource, quota_usages.c.generation)
        .select_from(sa.outerjoin(quota_usages, projects, projects.c.project_id == quota_usages.c.project_id))
        .where(any_of(quota_usages.c.project_id, size), projects.c.parent_id.is_(None))
    )
)


def read_roots(connection: sa.Connection, project_ids: Collection[str]) -> dict[str, ProjectPath]:
    """The paths, by project, of those of these projects that have a usage row and no parent."""
    nodes: dict[str, dict[str, tuple[usages.Node, ...]]] = {}
    for row in _ROOTS.rows(connection, sorted(project_ids), {}):
        node = usages.Node(row.id, row.project_id, row.resource, row.generation, 0)
        nodes.setdefault(row.project_id, {})[row.resource] = (node,)
    return {project_id: ProjectPath([project_id], rows) for project_id, rows in nodes.items()}


_ensure = {"project_id": sa.bindparam("b_project"), "generation": 0, "created_at": clock.utc_now()}


def make_row(connection: sa.Connection, project_id: str, resource: str) -> None:
    """Insert a usage row of zeros. The transaction must have locked or added the project (``lock_project_rows``)."""
    parameters = usages.zero_row(project_id, resource)
    dialects.of(connection).insert_or_ignore(connection, quota_usages, usages.ZERO_ROW, parameters)


def ensure(connection: sa.Connection, project_id: str) -> None:
    """Insert the project as a root if it does not exist."""
    dialects.of(connection).insert_or_ignore(connection, projects, _ensure, {"b_project": project_id})


_LOCK = (
    sa.update(projects)
    .where(projects.c.project_id == sa.bindparam("b_project"))
    .values(generation=projects.c.generation + 1, updated_at=clock.utc_now())
)


def lock_project_rows(connection: sa.Connection, project_ids: Iterable[str]) -> None:
    """Lock the rows of these projects until the transaction ends, sorted by id, so that their edges cannot change.

    Raises ConcurrentChange if one of them does not exist.
    """
    for project_id in sorted(set(project_ids)):
        if connection.execute(_LOCK, {"b_project": project_id}).rowcount != 1:
            raise ConcurrentChange


def _lock_or_add(connection: sa.Connection, project_ids: Iterable[str], leaf: str) -> None:
    """Like ``lock_project_rows``, in the same order, but insert ``leaf`` as a root if it does not exist."""
    for project_id in sorted(project_ids):
        if connection.execute(_LOCK, {"b_project": project_id}).rowcount == 1:
            continue
        if project_id != leaf:
            raise ConcurrentChange
        ensure(connection, leaf)
        lock_project_rows(connection, [leaf])


def make_rows(connection: sa.Connection, path: ProjectPath, resources: Collection[str]) -> None:
    """Insert the usage rows that are missing along ``path``. Run this in a separate transaction.

    It also inserts the project as a root if it does not exist: it may have been removed since ``path`` was read. The
    retry after ConcurrentChange must therefore read the path again.
    """
    leaf = path.project_ids[0]
    lacking = {(project_id, resource) for resource in path.missing(resources) for project_id in path.lacking(resource)}
    _lock_or_add(connection, {project_id for project_id, _ in lacking}, leaf)
    if read_path(connection, leaf, resources).project_ids != path.project_ids:
        raise ConcurrentChange
    for project_id, resource in sorted(lacking):
        make_row(connection, project_id, resource)


_SET_PARENT = (
    sa.update(projects)
    .where(projects.c.project_id == sa.bindparam("b_project"))
    .values(parent_id=sa.bindparam("b_parent"), origin=sa.bindparam("b_origin"))
)


def resources_of(connection: sa.Connection, project_id: str) -> list[str]:
    """The resources for which the project has usage rows, sorted."""
    return sorted(usages.read_subtrees(connection, project_id))


def move(connection: sa.Connection, project_id: str, parent_id: str | None, origin: str | None = None) -> None:
    """Move an existing project and its subtree below an existing parent (None: make it a root).

    ``origin`` is the limit source that requests the move; None for an operator. The same transaction subtracts the
    subtree's usage from the totals of the old ancestors, and adds it to those of the new ones. Raises ValueError if
    the parent is below the project; ConcurrentChange if usage rows along the new path are missing (the caller inserts
    them, and retries), or if the tree changed concurrently.
    """
    resources = resources_of(connection, project_id)
    goal = read_path(connection, parent_id, resources).project_ids if parent_id is not None else ()
    lock_project_rows(connection, {project_id, *goal})
    old = read_path(connection, project_id, resources)
    usages.bump_generations(connection, project_id)
    held = usages.read_subtrees(connection, project_id)
    changes = []
    new = read_path(connection, parent_id, held) if parent_id is not None else None
    if project_id in goal or (new is not None and project_id in new.project_ids):
        raise ValueError(f"{parent_id!r} is below {project_id!r}")
    if (new.project_ids if new is not None else ()) != tuple(goal) or set(held) != set(resources):
        raise ConcurrentChange
    if new is not None and new.missing(held):
        raise ConcurrentChange
    for resource, subtree in held.items():
        leaving = (old.nodes(resource) or ())[1:]
        entering = (new.nodes(resource) or ()) if new is not None else ()
        changes += [usages.Change(node, subtree=-subtree) for node in leaving]
        changes += [usages.Change(node, subtree=subtree) for node in entering]
    for change in usages.merge(changes):
        if change.subtree and not usages.charge(connection, change):
            raise ConcurrentChange
    set_parent(connection, project_id, parent_id, origin)


def set_parent(connection: sa.Connection, project_id: str, parent_id: str | None, origin: str | None = None) -> None:
    """Change an edge only. The caller's transaction must lock the project and update the totals."""
    connection.execute(_SET_PARENT, {"b_project": project_id, "b_parent": parent_id, "b_origin": origin})


def delete(connection: sa.Connection, project_id: str) -> None:
    """Delete the project's row. The transaction must have locked it, and deleted its usage rows."""
    connection.execute(sa.delete(projects).where(projects.c.project_id == project_id))


_EDGES = sa.select(projects.c.project_id, projects.c.parent_id)


def edges(connection: sa.Connection, project_ids: Collection[str] | None = None) -> dict[str, str | None]:
    """Parent by project, sorted: of the whole tree, or of those of ``project_ids`` that exist."""
    query = _EDGES if project_ids is None else _EDGES.where(projects.c.project_id.in_(sorted(project_ids)))
    return dict(sorted((row.project_id, row.parent_id) for row in connection.execute(query)))


_LIMITING_EDGES = sa.select(
    projects.c.project_id, sa.case((projects.c.origin.is_(None), projects.c.parent_id)).label("parent_id")
)


def limiting_edges(connection: sa.Connection, project_ids: Collection[str] | None = None) -> dict[str, str | None]:
    """Like ``edges``, with None for an edge that a limit source made: for limits that are set by operators."""
    query = _LIMITING_EDGES
    if project_ids is not None:
        query = query.where(projects.c.project_id.in_(sorted(project_ids)))
    return dict(sorted((row.project_id, row.parent_id) for row in connection.execute(query)))


def limiting_edges_page(
    connection: sa.Connection, limit: int | None, after: str | None
) -> list[tuple[str, str | None]]:
    """(project_id, parent_id) of at most ``limit`` projects after ``after``, as the database sorts them.

    The parents are those of ``limiting_edges``. Raises MarkerNotFound.
    """
    name = projects.c.project_id
    query = _LIMITING_EDGES.order_by(name).limit(limit)
    if after is not None:
        paging.require(connection, projects, name == after, (after,))
        query = query.where(name > after)
    return [(row.project_id, row.parent_id) for row in connection.execute(query)]


_MARKED = sa.select(projects.c.project_id, projects.c.parent_id).where(
    projects.c.parent_id.is_not(None), projects.c.origin.is_not(None)
)


def marked_edges(connection: sa.Connection, origin: str | None = None, limit: int | None = None) -> dict[str, str]:
    """Parent by project, sorted, of the edges with this origin (None: with any origin); at most ``limit``."""
    query = _MARKED if origin is None else _MARKED.where(projects.c.origin == origin)
    rows = connection.execute(query.order_by(projects.c.project_id).limit(limit))
    return {row.project_id: row.parent_id for row in rows}


_COUNT_BY_ORIGIN = (
    sa.select(projects.c.origin, sa.func.count().label("edges"))
    .where(projects.c.parent_id.is_not(None), projects.c.origin.is_not(None))
    .group_by(projects.c.origin)
)


def count_by_origin(connection: sa.Connection) -> dict[str, int]:
    """The number of edges by origin."""
    return {row.origin: row.edges for row in connection.execute(_COUNT_BY_ORIGIN)}


_CHILDREN = sa.select(projects.c.project_id).where(
    projects.c.parent_id == sa.bindparam("b_project"), projects.c.origin.is_(None)
)


def children_of(connection: sa.Connection, project_id: str) -> set[str]:
    """The children of the project, by edges that operators made."""
    return set(connection.execute(_CHILDREN, {"b_project": project_id}).scalars())


def list_children(
    connection: sa.Connection, project_id: str, origin: str | None, after: str, count: int
) -> list[str]:
    """The first children with an id greater than ``after``, sorted; by edges of operators or of ``origin``.

    Sorted by an expression: to sort by the column, SQLite would read all projects by their ids, and skip those with
    another parent (12,947 steps for a page of 5 children among 20,000 projects).
    """
    followed = sa.or_(projects.c.origin.is_(None), projects.c.origin == origin)
    query = sa.select(projects.c.project_id).where(
        projects.c.parent_id == project_id, projects.c.project_id > after, followed
    )
    return list(connection.execute(query.order_by(projects.c.project_id.concat("")).limit(count)).scalars())


def subtree_of(connection: sa.Connection, project_id: str) -> set[str]:
    """The project and its descendants, by edges that operators made. Runs one query per level and 100 projects."""
    subtree = {project_id}
    level = [project_id]
    while level:
        chunk, level = level[:_ROWS_A_STATEMENT], level[_ROWS_A_STATEMENT:]
        below = sa.select(projects.c.project_id).where(projects.c.parent_id.in_(chunk), projects.c.origin.is_(None))
        new = set(connection.execute(below).scalars()) - subtree  # (ends also in a cycle that was made by hand)
        subtree |= new
        level += sorted(new)
    return subtree


_PARENT = sa.select(projects.c.parent_id).where(
    projects.c.project_id == sa.bindparam("b_project"), projects.c.origin.is_(None)
)


def parent_of(connection: sa.Connection, project_id: str) -> str | None:
    """The parent, by an edge that an operator made; None for a root and for an unknown project."""
    return connection.execute(_PARENT, {"b_project": project_id}).scalar_one_or_none()
