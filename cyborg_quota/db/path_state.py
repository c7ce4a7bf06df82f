# SPDX-License-Identifier: Apache-2.0
"""The path of a project to its root: the usage rows to charge (``read_path``), and its counters and limits (``read``).

``read_path`` and ``make_rows`` follow the rules in projects.py. ``read`` is one statement, and so reads one snapshot,
also at READ COMMITTED. The number of rows that it reads depends on the path, not on the number of projects::

    WITH RECURSIVE path (project_id, distance) AS (...)                 -- the project has distance 0
    SELECT 'path', project_id, NULL, distance, NULL, NULL FROM path
    UNION ALL SELECT 'usage', project_id, resource, used, reserved, subtree FROM quota_usages on the path
    UNION ALL SELECT 'limit', project_id, resource, hard_limit, NULL, NULL FROM project_limits on the path
    UNION ALL SELECT 'override', project_id, resource, hard_limit, generation, ordinal FROM limit_overrides on the path
    UNION ALL SELECT 'total', ' total', resource, hard_limit, subtree, NULL FROM limit_totals JOIN quota_usages ...
    UNION ALL SELECT 'default', NULL, resource, hard_limit, NULL, NULL FROM limit_defaults
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, generations, overrides, projects, usages
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import limit_defaults, limit_overrides, limit_totals, project_limits, quota_usages
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, chunks
from cyborg_quota.db.project_path import ProjectPath, Total
from cyborg_quota.scopes import is_scoped, prefix_of
from cyborg_quota.types import TOTAL, Counters

_PATH: Final = "path"
_USAGE: Final = "usage"
_LIMIT: Final = "limit"
_OVERRIDE: Final = "override"
_DEFAULT: Final = "default"
_TOTAL: Final = "total"
_IS_TOTAL: Final[sa.ColumnElement[str]] = sa.literal_column(f"'{TOTAL}'")

Columns = sa.ColumnCollection[str, Any]
IsRead = Callable[[Columns], sa.ColumnElement[bool]]

MAX_PROJECTS: Final = 500
"""The maximum number of projects of one ``read_many`` or ``read_paths``."""


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """A state at one moment. ``project_ids``: the project and its ancestors, leaf first.

    ``counters`` and ``project_limits`` (the limits of the projects, or the overrides in their place that apply at that
    moment) are keyed by (project_id, resource), ``defaults`` (the default limits) by resource; values that are not
    stored are missing. ``totals`` has the total limits that are enforced, by resource; what they count is in
    ``counters``, with the project id TOTAL. The states of ``read_many`` share these mappings.
    """

    project_ids: Sequence[str]
    counters: Mapping[tuple[str, str], Counters]
    project_limits: Mapping[tuple[str, str], int]
    defaults: Mapping[str, int]
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def resources(self) -> list[str]:
        """Every resource that has a default limit, or a limit or a usage row on the path; sorted."""
        of_projects = {resource for owner, resource in [*self.counters, *self.project_limits] if owner != TOTAL}
        return sorted({*self.defaults, *(name for name in of_projects if not is_scoped(name))})


def read(connection: sa.Connection, project_id: str, *, pod: str | None = None) -> PathState:
    """Read the stored state of ``project_id`` and its ancestors, in one statement.

    ``pod``: also the rows of this pod, or ("") of every pod. Their number grows with that of the pods.
    """
    statement = _statement(dialects.of(connection), in_pods=pod is not None)
    return _single_state(statement(connection, _arguments(pod, b_project=project_id)).all())


def read_in_single_statement(
    connection: sa.Connection, project_id: str, pod: str | None
) -> PathState | None:
    """As ``read``, as a transaction of its own. None: see Dialect.read_in_single_statement."""
    dialect = dialects.of(connection)
    statement = _statement(dialect, in_pods=pod is not None)
    rows = dialect.read_in_single_statement(connection, statement, _arguments(pod, b_project=project_id))
    return None if rows is None else _single_state(rows)


def read_limits(connection: sa.Connection, path: Sequence[str], *, pod: str | None = None) -> PathState:
    """The limits of the projects on ``path``, for a charge of it: as ``read``, without their counters."""
    statement = _statement_for_limits(dialects.of(connection), in_pods=pod is not None)
    return _state(path, statement.rows(connection, path, _arguments(pod)))


def _arguments(pod: str | None, **projects: Any) -> dict[str, Any]:
    prefix = prefix_of(pod or None)
    return {**projects, "b_prefix": prefix, "b_chars": len(prefix)}


def _single_state(rows: Sequence[Any]) -> PathState:
    distances = sorted((distance, owner) for kind, owner, _, distance, *_ in rows if kind == _PATH)
    return _state([owner for _, owner in distances], rows)


def read_many(
    connection: sa.Connection, project_ids: Sequence[str], pod: str | None = None
) -> list[PathState]:
    """The states of these projects, in their order, in one statement.

    Each project must have a row in ``projects``; every project with usage rows has one. At most MAX_PROJECTS. ``pod``:
    also the rows of this pod.
    """
    statement = _statement_for_many(dialects.of(connection), in_pods=pod is not None)
    rows = connection.execute(statement, _arguments(pod, b_projects=list(project_ids))).all()
    # (In the rows of the path, the column ``resource`` contains the id of the parent.)
    parents = {row.project_id: row.resource for row in rows if row.kind == _PATH}
    shared = _state([], rows)
    return [dataclasses.replace(shared, project_ids=_path(project_id, parents)) for project_id in project_ids]


def read_tree(connection: sa.Connection) -> tuple[dict[str, str | None], PathState]:
    """The parents of all projects, and a state with the counters and limits of all, in one statement."""
    rows = connection.execute(_statement_for_all()).all()
    return {row.project_id: row.resource for row in rows if row.kind == _PATH}, _state([], rows)


def read_all(connection: sa.Connection) -> list[PathState]:
    """The states of all projects that have a usage row or a limit of their own, sorted, in one statement."""
    parents, shared = read_tree(connection)
    names = {project_id for project_id, _ in [*shared.counters, *shared.project_limits]}
    return [dataclasses.replace(shared, project_ids=_path(project_id, parents)) for project_id in sorted(names)]


def _path(project_id: str, parents: Mapping[str, str | None]) -> list[str]:
    path = [project_id]
    while (parent_id := parents.get(path[-1])) is not None and len(path) <= projects.MAX_DEPTH:
        path.append(parent_id)
    return path


def _state(path: Sequence[str], rows: Sequence[Any]) -> PathState:
    counters, limits, defaults, totals = {}, {}, {}, {}
    active: list[tuple[overrides.Key, int, int, int]] = []
    for kind, owner, resource, first, second, third in rows:
        if kind == _USAGE:
            counters[owner, resource] = Counters(first, second, third)
        elif kind == _LIMIT:
            limits[owner, resource] = first
        elif kind == _OVERRIDE:
            active.append(((owner, resource), first, second, third))
        elif kind == _DEFAULT:
            defaults[resource] = first
        elif kind == _TOTAL:
            totals[resource] = first
            counters[owner, resource] = Counters(subtree=second)
    limits.update(overrides.latest(active))
    return PathState(path, counters, limits, defaults, totals)


@functools.cache
def _statement(dialect: Dialect, *, in_pods: bool) -> Statement:
    path = projects.path_cte()
    is_read = _on_path(path, dialect, in_pods=in_pods)
    return Statement(
        sa.union_all(_columns(_PATH, path.c.project_id, None, path.c.distance), *_counters(is_read), *_limits(is_read))
    )


@functools.cache
def _statement_for_limits(dialect: Dialect, *, in_pods: bool) -> ListStatement:
    def build(size: int) -> sa.Executable:
        return sa.union_all(
            *_limits(lambda key: sa.and_(any_of(key["project_id"], size), _of_pods(key, dialect, in_pods=in_pods)))
        )

    return ListStatement(build)


@functools.cache
def _statement_for_many(dialect: Dialect, *, in_pods: bool) -> sa.CompoundSelect[Any]:
    path = projects.paths_cte()
    is_read = _on_path(path, dialect, in_pods=in_pods)
    return sa.union_all(_columns(_PATH, path.c.project_id, path.c.parent_id), *_counters(is_read), *_limits(is_read))


@functools.cache
def _statement_for_all() -> sa.CompoundSelect[Any]:
    def is_read(key: Columns) -> sa.ColumnElement[bool]:
        return usages.of_pod(None, key["resource"])

    edge = projects_table.c
    return sa.union_all(_columns(_PATH, edge.project_id, edge.parent_id), *_counters(is_read), *_limits(is_read))


def _on_path(path: sa.CTE, dialect: Dialect, *, in_pods: bool) -> IsRead:
    path_ids = sa.select(path.c.project_id)
    return lambda key: sa.and_(
        dialect.is_on_path(key["project_id"], path_ids), _of_pods(key, dialect, in_pods=in_pods)
    )


def _of_pods(key: Columns, dialect: Dialect, *, in_pods: bool) -> sa.ColumnElement[bool]:
    """Rows of all pods; ``in_pods``: also those with scoped names that begin with the parameter ``b_prefix``."""
    is_read = dialect.counts_all_pods(key["resource"])
    if in_pods:
        chars: Any = (sa.literal_column("1"), sa.bindparam("b_chars", type_=sa.Integer))
        is_read |= sa.func.substr(key["resource"], *chars) == sa.bindparam("b_prefix", type_=sa.String)
    return is_read


def _counters(is_read: IsRead) -> list[sa.Select[Any]]:
    """The counters of the rows for which ``is_read`` is true, and the totals."""
    usage = quota_usages.c
    rows = _columns(_USAGE, usage.project_id, usage.resource, usage.used, usage.reserved, usage.subtree)
    return [
        rows.where(is_read(usage)),
        _columns(_TOTAL, usage.project_id, usage.resource, limit_totals.c.hard_limit, usage.subtree)
        .join_from(limit_totals, quota_usages, usage.resource == limit_totals.c.resource)
        .where(usage.project_id == _IS_TOTAL, limit_totals.c.is_enforced == sa.literal_column("1")),
    ]


def _limits(is_read: IsRead) -> list[sa.Select[Any]]:
    """The limits and overrides for which ``is_read`` is true, and the default limits."""
    limit, default, override = project_limits.c, limit_defaults.c, limit_overrides.c
    limits = _columns(_LIMIT, limit.project_id, limit.resource, limit.hard_limit)
    amounts = override.hard_limit, override.generation, override.ordinal
    return [
        limits.where(is_read(limit)),
        _columns(_OVERRIDE, override.project_id, override.resource, *amounts).where(
            is_read(override), overrides.IS_ACTIVE
        ),
        _columns(_DEFAULT, None, default.resource, default.hard_limit),
    ]


def _columns(
    kind: str,
    project_id: sa.ColumnElement[str] | None,
    resource: sa.ColumnElement[str] | None,
    *amounts: sa.ColumnElement[int],
) -> sa.Select[Any]:
    """One branch of the union. A column has the same type in all branches."""
    name = quota_usages.c.project_id.type
    padded = [*amounts, *(sa.null() for _ in range(3 - len(amounts)))]
    return sa.select(
        sa.literal_column(f"'{kind}'").label("kind"),
        (sa.cast(sa.null(), name) if project_id is None else project_id).label("project_id"),
        (sa.cast(sa.null(), name) if resource is None else resource).label("resource"),
        *(
            sa.cast(amount, sa.BigInteger).label(label)
            for label, amount in zip(("value_1", "value_2", "value_3"), padded, strict=True)
        ),
    )


# --- The path, and the usage rows to charge ---


_TOTAL_DEPTH: Final = -1
"""The depth of the row of a total: above the roots, so that it is locked last."""


@functools.cache
def _path_query(dialect: Dialect, *, is_many: bool) -> sa.CompoundSelect[Any]:
    """A project (or ``is_many``: projects), its ancestors, their usage rows and those of the totals, in one snapshot.

    In the rows of the path, which have no id, the column ``resource`` contains the id of the parent.
    """
    path = projects.paths_cte() if is_many else projects.path_cte()
    usage = quota_usages.c
    number = sa.cast(sa.null(), sa.Integer)
    rows = sa.select(
        usage.project_id, usage.id, usage.resource, usage.generation, usage.counted_in_total
    ).where(usage.resource.in_(sa.bindparam("b_resources", expanding=True)))
    return sa.union_all(
        sa.select(
            path.c.project_id,
            number.label("id"),
            path.c.parent_id.label("resource"),
            number.label("generation"),
            number.label("counted_in_total"),
        ),
        rows.where(dialect.is_on_path(usage.project_id, sa.select(path.c.project_id))),
        rows.where(usage.project_id == _IS_TOTAL),
    )


def read_path(connection: sa.Connection, project_id: str, resources: Collection[str]) -> ProjectPath:
    """Read the current path of ``project_id``. An unknown project is a root."""
    query = _path_query(dialects.of(connection), is_many=False)
    paths = _read_paths(connection, query, {"b_project": project_id}, [project_id], resources)
    return paths.get(project_id) or ProjectPath([project_id], {})


def read_paths(
    connection: sa.Connection, project_ids: Sequence[str], resources: Collection[str]
) -> dict[str, ProjectPath]:
    """The current paths of these projects, by project, in one statement. At most MAX_PROJECTS.

    Without the projects that have no row in ``projects``. (Every project with usage rows has one.)
    """
    query = _path_query(dialects.of(connection), is_many=True)
    return _read_paths(connection, query, {"b_projects": list(project_ids)}, project_ids, resources)


def _read_paths(
    connection: sa.Connection,
    query: sa.CompoundSelect[Any],
    parameters: Mapping[str, Any],
    project_ids: Sequence[str],
    resources: Collection[str],
) -> dict[str, ProjectPath]:
    # (Databases do not use the key for an empty list; no resource has an empty name.)
    rows = connection.execute(query, {**parameters, "b_resources": sorted(resources) or [""]}).all()
    edges = {row.project_id: row for row in rows if row.id is None}
    parents = {project_id: edge.resource for project_id, edge in edges.items()}
    totals = {row.resource: _total(row) for row in rows if row.project_id == TOTAL}
    by_project: dict[str, list[Any]] = {}
    for row in rows:
        if row.id is not None and row.project_id != TOTAL:
            by_project.setdefault(row.project_id, []).append(row)
    paths = {}
    for project_id in project_ids:
        if project_id not in edges:
            continue
        path = list(dict.fromkeys(_path(project_id, parents)))
        nodes: dict[str, list[usages.Node]] = {}
        counted = {}
        for depth, owner in zip(range(len(path) - 1, -1, -1), path, strict=True):
            for row in by_project.get(owner, ()):
                nodes.setdefault(row.resource, []).append(
                    usages.Node(row.id, owner, row.resource, row.generation, depth)
                )
                if row.counted_in_total is not None and row.resource in totals:
                    counted[row.resource] = totals[row.resource]._replace(is_counted=True)
        usage_rows = {name: tuple(found) for name, found in nodes.items()}
        paths[project_id] = ProjectPath(path, usage_rows, {**totals, **counted})
    return paths


def _total(row: Any) -> Total:
    return Total(
        usages.Node(row.id, TOTAL, row.resource, row.generation, _TOTAL_DEPTH), row.counted_in_total is not None
    )


_ZERO_ROW: Final = {
    "project_id": sa.bindparam("b_project"),
    "resource": sa.bindparam("b_resource"),
    "reserved": 0,
    "used": 0,
    "subtree": 0,
    "generation": sa.bindparam("b_generation"),
    "created_at": clock.utc_now(),
}
"""The values of a new usage row; ``_zero_row`` returns the parameters."""


def _zero_row(project_id: str, resource: str) -> dict[str, Any]:
    """The parameters of _ZERO_ROW. The first generation is random: see rule 1 in projects.py."""
    return {"b_project": project_id, "b_resource": resource, "b_generation": generations.first()}


def make_row(connection: sa.Connection, project_id: str, resource: str) -> None:
    """Insert a usage row of zeros. The transaction must have locked or added the project (``lock_many``)."""
    dialects.of(connection).insert_or_ignore(connection, quota_usages, _ZERO_ROW, _zero_row(project_id, resource))


def make_rows(connection: sa.Connection, path: ProjectPath, resources: Collection[str]) -> None:
    """Insert the usage rows that are missing along ``path``. Run this in a separate transaction, before count_root.

    It also inserts the project as a root if it does not exist: it may have been removed since ``path`` was read. The
    retry after ConcurrentChange must therefore read the path again.
    """
    leaf = path.project_ids[0]
    lacking = {(project_id, resource) for resource in path.missing(resources) for project_id in path.lacking(resource)}
    # A move of the root, which would change whether a total counts it, waits.
    roots = path.project_ids[-1:] if path.uncounted(resources) else ()
    projects.lock_or_add(connection, {*(project_id for project_id, _ in lacking), *roots}, leaf)
    if read_path(connection, leaf, resources).project_ids != path.project_ids:
        raise ConcurrentChange
    for project_id, resource in sorted(lacking):
        make_row(connection, project_id, resource)


# --- Totals over all projects: see totals.py ---


def read_totals(connection: sa.Connection, resources: Collection[str] | None = None) -> dict[str, Total]:
    """The rows of the totals, by resource."""
    usage = quota_usages.c
    query = sa.select(usage.id, usage.resource, usage.generation, usage.counted_in_total).where(
        usage.project_id == _IS_TOTAL
    )
    if resources is not None:
        query = query.where(usage.resource.in_(sorted(resources)))
    return {row.resource: _total(row) for row in connection.execute(query)}


def read_nodes(connection: sa.Connection, project_id: str, resource: str) -> tuple[usages.Node, ...] | None:
    """The usage row of a project (TOTAL: of the total), and all above it. None if a row does not exist."""
    if project_id == TOTAL:
        return tuple(total.node for total in read_totals(connection, [resource]).values()) or None
    return read_path(connection, project_id, [resource]).nodes(resource)


def next_roots(
    connection: sa.Connection, resource: str, *, is_counted: bool, after: str | None = None, limit: int
) -> list[usages.Node]:
    """Usage rows of roots that the total counts, or does not count; by project, from the one after ``after``.

    In the order of the database, whose collation of names is not always that of the bytes.
    """
    usage, project = quota_usages.c, projects_table.c
    query = (
        sa.select(usage.id, usage.project_id, usage.generation)
        .select_from(sa.outerjoin(quota_usages, projects_table, project.project_id == usage.project_id))
        .where(usage.resource == resource, usage.project_id != TOTAL)
        .order_by(usage.project_id)
        .limit(limit)
    )
    if after is not None:  # (Not always true of the first name: a collation may sort it before that of the total.)
        query = query.where(usage.project_id > after)
    if is_counted:
        query = query.where(usage.counted_in_total.is_not(None))
    else:
        query = query.where(usage.counted_in_total.is_(None), project.parent_id.is_(None))
    return [usages.Node(row.id, row.project_id, resource, row.generation, 0) for row in connection.execute(query)]


def counted_keys(connection: sa.Connection, project_ids: Iterable[str]) -> set[tuple[str, str]]:
    """Those usage rows of these projects that a total counts, by (project_id, resource)."""
    usage = quota_usages.c
    query = sa.select(usage.project_id, usage.resource).where(usage.counted_in_total.is_not(None))
    return {
        (row.project_id, row.resource)
        for names in chunks(sorted(project_ids))
        for row in connection.execute(query.where(usage.project_id.in_(names)))
    }


def delete_closed_total(connection: sa.Connection, resource: str) -> None:
    """Delete the row of a closed total. It must count no root."""
    usage = quota_usages.c
    is_closed = sa.and_(usage.project_id == _IS_TOTAL, usage.counted_in_total.is_(None))
    connection.execute(sa.delete(quota_usages).where(is_closed, usage.resource == resource))
