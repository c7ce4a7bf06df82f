# SPDX-License-Identifier: Apache-2.0
"""projects: the tree, the way from a project to its root, and what keeps a move and a charge apart.

Three rules make I9 hold while the tree changes under running charges:

1.  Every usage row has a ``generation``. A move of a project adds one to the generation of each of that project's
    rows (the descendants' edges stay as they are). A charge names the generation of every row on its path, so one
    that was on its way with the old path finds no row, and starts again on the new one. That also makes it safe to
    keep paths in memory: a stale one cannot charge. The first generation of a row is a random number: after a restore
    from a backup, or the promotion of a replica that lagged, an id may be given to another project's row.
2.  A usage row is made, an edge is changed, and a project is removed only by a transaction that has first changed the
    project's row here (``hold``). These exclude each other, so no usage row can appear unseen while its project moves,
    or after it is gone. The change is a real one (generation + 1): Galera certifies writes, not locks.
3.  A project that has a usage row for a resource has one at every ancestor too. A missing row therefore means zero.

``origin`` names the source of limits that put a project below its parent; it is NULL where an operator did. Counters
follow every edge. Limits follow the edges of no origin, and those of the limit driver's own origin. To change an
origin is a move (also where the parent stays the same): a charge that was checked on the old path starts again.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from cyborg_quota.db import clock, usages
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.db.models import projects, quota_usages
from cyborg_quota.db.prepared import Statement

MAX_DEPTH: Final = 64
"""No walk to a root is longer: what keeps a cycle made by hand from hanging us."""

_ROWS_A_STATEMENT: Final = 100


def path_cte(*, for_limits: bool = False) -> sa.CTE:
    """WITH RECURSIVE path (project_id, parent_id, distance): the project ``:b_project`` (distance 0) and its ancestors.

    ``for_limits``: up to the first edge of another origin than ``:b_origin`` (NULL: than none).

    Each parent is looked up by a scalar subquery, which no database executes but by the primary key. (With a join,
    SQLite that knows the size of the table reads all of it first, to make a Bloom filter.)
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


def _parent_of(project_id: sa.ColumnElement[str], *, for_limits: bool) -> sa.ScalarSelect[Any]:
    query = sa.select(projects.c.parent_id).where(projects.c.project_id == project_id)
    if for_limits:
        own = projects.c.origin == sa.bindparam("b_origin", type_=projects.c.origin.type)
        query = query.where(sa.or_(projects.c.origin.is_(None), own))
    return query.scalar_subquery()


def is_on_path(owner: sa.ColumnElement[str], path: sa.CTE, *, is_postgresql: bool) -> sa.ColumnElement[bool]:
    """``owner IN (SELECT project_id FROM path)``, written so that each database looks the rows up by index.

    PostgreSQL expects a hundred rows of any recursive CTE, and would rather read a whole table of a few ten thousand
    rows; of an array it expects ten. (Its planner is the only one that takes an array.)
    """
    found = sa.select(path.c.project_id)
    if is_postgresql:
        return owner == sa.any_(sa.func.array(found.scalar_subquery(), type_=sa.ARRAY(owner.type)))
    return owner.in_(found)


def _path_query(*, is_postgresql: bool) -> sa.CompoundSelect[Any]:
    """The project and its ancestors, and their usage rows. One statement: one moment."""
    path = path_cte()
    usage = quota_usages.c
    number = sa.cast(sa.null(), sa.Integer)
    name = sa.cast(sa.null(), usage.resource.type)
    origin = sa.select(projects.c.origin).where(projects.c.project_id == path.c.project_id).scalar_subquery()
    no_origin = sa.cast(sa.null(), projects.c.origin.type)
    rows = sa.select(usage.project_id, number, usage.id, usage.resource, usage.generation, no_origin).where(
        is_on_path(usage.project_id, path, is_postgresql=is_postgresql),
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


_PATH: Final = {is_postgresql: _path_query(is_postgresql=is_postgresql) for is_postgresql in (False, True)}


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by resource.

    ``origins`` has the origin of the edge above each project of the path (None for the root).
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
        """The projects whose limits apply: up to the first edge of another origin than None and ``origin``."""
        for index, found in enumerate(self.origins):
            if found is not None and found != origin:
                return self.project_ids[: index + 1]
        return self.project_ids

    def nodes(self, resource: str) -> tuple[usages.Node, ...] | None:
        """The rows to charge, leaf first; None when one of them has yet to be made."""
        nodes = self._rows.get(resource, ())
        return nodes if len(nodes) == len(self.project_ids) else None

    @property
    def resources(self) -> list[str]:
        """What it knows rows of."""
        return sorted(self._rows)

    def lacking(self, resource: str) -> set[str]:
        """The projects along the path that have no row for it."""
        return set(self.project_ids) - {node.project_id for node in self._rows.get(resource, ())}

    def missing(self, resources: Iterable[str]) -> list[str]:
        """The resources that have no full set of rows along this path."""
        return [resource for resource in resources if self.nodes(resource) is None]


def read_path(connection: sa.Connection, project_id: str, resources: Collection[str]) -> ProjectPath:
    """Where ``project_id`` stands in the tree now. A project nobody placed is a root."""
    statement = _PATH[connection.dialect.name == "postgresql"]
    rows = connection.execute(statement, {"b_project": project_id, "b_resources": sorted(resources)}).all()
    distances: dict[str, int] = {}
    origins: dict[str, str | None] = {}
    for row in sorted((row for row in rows if row.id is None), key=lambda row: int(row.distance)):
        distances.setdefault(row.project_id, row.distance)
        origins.setdefault(row.project_id, row.origin)
    height = len(distances) - 1
    found: dict[str, list[usages.Node]] = {}
    for row in sorted((row for row in rows if row.id is not None), key=lambda row: distances[row.project_id]):
        node = usages.Node(row.id, row.project_id, row.resource, row.generation, height - distances[row.project_id])
        found.setdefault(row.resource, []).append(node)
    return ProjectPath(list(distances), {name: tuple(nodes) for name, nodes in found.items()}, list(origins.values()))


_ensure = {"project_id": sa.bindparam("b_project"), "generation": 0, "created_at": clock.utc_now()}
_new_usage = {
    "project_id": sa.bindparam("b_project"),
    "resource": sa.bindparam("b_resource"),
    "reserved": 0,
    "used": 0,
    "subtree": 0,
    "generation": sa.bindparam("b_generation"),
    "created_at": clock.utc_now(),
}
_GENERATION_BITS: Final = 30
"""Leaves room for a billion moves in the column's 32 bits."""


def insert_or_ignore(connection: sa.Connection, table: sa.Table, values: dict[str, Any], params: Any) -> None:
    """INSERT that does nothing where the row exists, in the dialect's own words. Its row count says nothing."""
    statement: Any
    if connection.dialect.name in ("mysql", "mariadb"):
        key = next(iter(table.primary_key.columns)).name
        statement = mysql.insert(table).values(values)
        statement = statement.on_duplicate_key_update({key: table.c[key]})
    elif connection.dialect.name == "postgresql":
        statement = postgresql.insert(table).values(values).on_conflict_do_nothing()
    else:
        statement = sqlite.insert(table).values(values).on_conflict_do_nothing()
    connection.execute(statement, params)


def insert_many(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """INSERT of rows with the same columns, as of now (``created_at``), a hundred to a statement.

    (A driver's own executemany sends one at a time. And SQLAlchemy would compile each such statement anew.)
    """
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        chunk = rows[start : start + _ROWS_A_STATEMENT]
        parameters = {f"b_{name}_{index}": value for index, row in enumerate(chunk) for name, value in row.items()}
        _insert_of(table, tuple(chunk[0]), len(chunk))(connection, parameters)


@functools.lru_cache(maxsize=32)
def _insert_of(table: sa.Table, names: tuple[str, ...], size: int) -> Statement:
    return Statement(
        sa.insert(table).values(
            [
                {
                    "created_at": clock.utc_now(),
                    **{name: sa.bindparam(f"b_{name}_{index}", type_=table.c[name].type) for name in names},
                }
                for index in range(size)
            ]
        )
    )


def make_row(connection: sa.Connection, project_id: str, resource: str) -> None:
    """Make a usage row, of zeros. For a transaction that holds the project, or has added it."""
    insert_or_ignore(
        connection,
        quota_usages,
        _new_usage,
        {"b_project": project_id, "b_resource": resource, "b_generation": secrets.randbits(_GENERATION_BITS)},
    )


def ensure(connection: sa.Connection, project_id: str) -> None:
    """Make the project known, as a root, if it is not."""
    insert_or_ignore(connection, projects, _ensure, {"b_project": project_id})


_HOLD = (
    sa.update(projects)
    .where(projects.c.project_id == sa.bindparam("b_project"))
    .values(generation=projects.c.generation + 1, updated_at=clock.utc_now())
)


def hold(connection: sa.Connection, project_ids: Iterable[str]) -> None:
    """Keep the edges at these projects still until the transaction ends. Always in the same order."""
    for project_id in sorted(set(project_ids)):
        if connection.execute(_HOLD, {"b_project": project_id}).rowcount != 1:
            raise TransactionMoved


def _hold_or_add(connection: sa.Connection, project_ids: Iterable[str], leaf: str) -> None:
    """The same, in the same order. ``leaf`` is added, as a root, if it is not known."""
    for project_id in sorted(project_ids):
        if connection.execute(_HOLD, {"b_project": project_id}).rowcount == 1:
            continue
        if project_id != leaf:
            raise TransactionMoved
        ensure(connection, leaf)
        hold(connection, [leaf])


def make_rows(connection: sa.Connection, path: ProjectPath, resources: Collection[str]) -> None:
    """Make the usage rows that ``way`` lacks. A transaction of its own.

    It also makes the project known, as a root, if it is not: it may have been removed since ``way`` was read. The
    retry after TransactionMoved must therefore read the path again.
    """
    leaf = path.project_ids[0]
    lacking = {(project_id, resource) for resource in path.missing(resources) for project_id in path.lacking(resource)}
    _hold_or_add(connection, {project_id for project_id, _ in lacking}, leaf)
    if read_path(connection, leaf, resources).project_ids != path.project_ids:
        raise TransactionMoved
    for project_id, resource in sorted(lacking):
        make_row(connection, project_id, resource)


_BUMP = (
    sa.update(quota_usages)
    .where(quota_usages.c.project_id == sa.bindparam("b_project"))
    .values(generation=quota_usages.c.generation + 1)
)
_OWN_ROWS = sa.select(quota_usages.c.resource, quota_usages.c.subtree).where(
    quota_usages.c.project_id == sa.bindparam("b_project")
)
_SET_PARENT = (
    sa.update(projects)
    .where(projects.c.project_id == sa.bindparam("b_project"))
    .values(parent_id=sa.bindparam("b_parent"), origin=sa.bindparam("b_origin"))
)


def resources_of(connection: sa.Connection, project_id: str) -> list[str]:
    """The resources the project has usage rows for."""
    return sorted(row.resource for row in connection.execute(_OWN_ROWS, {"b_project": project_id}))


def move(connection: sa.Connection, project_id: str, parent_id: str | None, origin: str | None = None) -> None:
    """Put a known project, with all that is below it, under a known parent (None: make it a root).

    ``origin``: the source of limits that says so; None: an operator does.
    What the subtree holds leaves the old ancestors' totals and enters the new ones' in the same transaction. Raises
    ValueError when the parent lies below the project; TransactionMoved when rows along the new path have yet to be
    made (the caller makes them, and comes again) or when the tree changed meanwhile.
    """
    resources = resources_of(connection, project_id)
    goal = read_path(connection, parent_id, resources).project_ids if parent_id is not None else ()
    hold(connection, {project_id, *goal})
    old = read_path(connection, project_id, resources)
    connection.execute(_BUMP, {"b_project": project_id})
    held = {row.resource: row.subtree for row in connection.execute(_OWN_ROWS, {"b_project": project_id})}
    changes = []
    new = read_path(connection, parent_id, held) if parent_id is not None else None
    if project_id in goal or (new is not None and project_id in new.project_ids):
        raise ValueError(f"{parent_id!r} lies below {project_id!r}")
    if (new.project_ids if new is not None else ()) != tuple(goal) or set(held) != set(resources):
        raise TransactionMoved
    if new is not None and new.missing(held):
        raise TransactionMoved
    for resource, subtree in held.items():
        leaving = (old.nodes(resource) or ())[1:]
        entering = (new.nodes(resource) or ()) if new is not None else ()
        changes += [usages.Change(node, subtree=-subtree) for node in leaving]
        changes += [usages.Change(node, subtree=subtree) for node in entering]
    for change in usages.merge(changes):
        if change.subtree and not usages.charge(connection, change):
            raise TransactionMoved
    set_parent(connection, project_id, parent_id, origin)


def set_parent(connection: sa.Connection, project_id: str, parent_id: str | None, origin: str | None = None) -> None:
    """Change an edge, and nothing else. For a transaction that holds the project and moves the totals."""
    connection.execute(_SET_PARENT, {"b_project": project_id, "b_parent": parent_id, "b_origin": origin})


_EDGES = sa.select(projects.c.project_id, projects.c.parent_id)


def edges(connection: sa.Connection, project_ids: Collection[str] | None = None) -> dict[str, str | None]:
    """Parent by project: the whole tree, or (``project_ids``) of those of these projects that are known."""
    query = _EDGES if project_ids is None else _EDGES.where(projects.c.project_id.in_(sorted(project_ids)))
    return dict(sorted((row.project_id, row.parent_id) for row in connection.execute(query)))


_LIMITING_EDGES = sa.select(
    projects.c.project_id, sa.case((projects.c.origin.is_(None), projects.c.parent_id)).label("parent_id")
)


def limiting_edges(connection: sa.Connection, project_ids: Collection[str] | None = None) -> dict[str, str | None]:
    """The same, with None where a source of limits made the edge: for limits that an operator sets here."""
    query = _LIMITING_EDGES
    if project_ids is not None:
        query = query.where(projects.c.project_id.in_(sorted(project_ids)))
    return dict(sorted((row.project_id, row.parent_id) for row in connection.execute(query)))


_MARKED = sa.select(projects.c.project_id, projects.c.parent_id).where(
    projects.c.parent_id.is_not(None), projects.c.origin.is_not(None)
)


def marked_edges(connection: sa.Connection, origin: str | None = None, limit: int | None = None) -> dict[str, str]:
    """Parent by project, sorted, for the edges that ``origin`` made (None: that any did); at most ``limit``."""
    query = _MARKED if origin is None else _MARKED.where(projects.c.origin == origin)
    rows = connection.execute(query.order_by(projects.c.project_id).limit(limit))
    return {row.project_id: row.parent_id for row in rows}


_COUNT_BY_ORIGIN = (
    sa.select(projects.c.origin, sa.func.count().label("edges"))
    .where(projects.c.parent_id.is_not(None), projects.c.origin.is_not(None))
    .group_by(projects.c.origin)
)


def count_by_origin(connection: sa.Connection) -> dict[str, int]:
    """How many edges each source of limits made."""
    return {row.origin: row.edges for row in connection.execute(_COUNT_BY_ORIGIN)}


_CHILDREN = sa.select(projects.c.project_id).where(
    projects.c.parent_id == sa.bindparam("b_project"), projects.c.origin.is_(None)
)


def children_of(connection: sa.Connection, project_id: str) -> set[str]:
    """The projects that an operator put directly below."""
    return set(connection.execute(_CHILDREN, {"b_project": project_id}).scalars())


def subtree_of(connection: sa.Connection, project_id: str) -> set[str]:
    """The project and all that operators put below it; one query for each level of each branch that has children."""
    found = {project_id}
    level = [project_id]
    while level:
        some, level = level[:_ROWS_A_STATEMENT], level[_ROWS_A_STATEMENT:]
        below = sa.select(projects.c.project_id).where(projects.c.parent_id.in_(some), projects.c.origin.is_(None))
        new = set(connection.execute(below).scalars()) - found  # (a cycle made by hand must end)
        found |= new
        level += sorted(new)
    return found


_PARENT = sa.select(projects.c.parent_id).where(
    projects.c.project_id == sa.bindparam("b_project"), projects.c.origin.is_(None)
)


def parent_of(connection: sa.Connection, project_id: str) -> str | None:
    """The project that an operator put above; None for a root, and for a project nobody placed."""
    return connection.execute(_PARENT, {"b_project": project_id}).scalar_one_or_none()
