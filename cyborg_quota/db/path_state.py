# SPDX-License-Identifier: Apache-2.0
"""The path of a project to its root: the usage rows to charge (``read_path``), and its counters and limits (``read``).

``read_path`` and ``make_rows`` follow the rules in projects.py. ``read`` is one statement, and so reads one snapshot,
also at READ COMMITTED. The number of rows that it reads depends on the path, not on the number of projects::

    WITH RECURSIVE path (project_id, distance) AS (...)                 -- the project has distance 0
    SELECT 'path', project_id, NULL, NULL, distance, NULL, NULL FROM path
    UNION ALL SELECT 'usage', project_id, resource, pod, used, reserved, subtree FROM quota_usages on the path
    UNION ALL SELECT 'limit', project_id, resource, pod, hard_limit, NULL, NULL FROM project_limits on the path
    UNION ALL SELECT 'override', project_id, resource, NULL, hard_limit, generation, ordinal FROM limit_overrides on ...
    UNION ALL SELECT 'total', ' total', resource, NULL, hard_limit, subtree, NULL FROM limit_totals JOIN ...
    UNION ALL SELECT 'default', NULL, resource, NULL, hard_limit, NULL, NULL FROM limit_defaults
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, generations, overrides, projects, usages
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import limit_defaults, limit_overrides, limit_totals, project_limits, quota_usages
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, chunks
from cyborg_quota.db.project_path import ProjectPath, Total
from cyborg_quota.types import TOTAL, Counters, ResourceKey, UsageKey

_PATH: Final = "path"
_USAGE: Final = "usage"
_LIMIT: Final = "limit"
_OVERRIDE: Final = "override"
_DEFAULT: Final = "default"
_TOTAL: Final = "total"
_IS_TOTAL: Final[sa.ColumnElement[str]] = sa.literal_column(f"'{TOTAL}'")

Which = Literal["none", "one", "all"]
"""The pods whose rows are read, besides the rows that count all pods."""

Columns = sa.ColumnCollection[str, Any]
IsRead = Callable[[Columns], sa.ColumnElement[bool]]

MAX_PROJECTS: Final = 500
"""The maximum number of projects of one ``read_many`` or ``read_paths``."""


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """A state at one moment. ``project_ids``: the project and its ancestors, leaf first.

    ``project_limits``: the limits of the projects, or the overrides in their place that apply at that moment.
    ``defaults``: the default limits, by resource. Values that are not stored are missing. ``totals`` has the total
    limits that are enforced, by resource; what they count is in ``counters``, with the project id TOTAL. The states of
    ``read_many`` share these mappings.
    """

    project_ids: Sequence[str]
    counters: Mapping[UsageKey, Counters]
    project_limits: Mapping[UsageKey, int]
    defaults: Mapping[str, int]
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def resources(self) -> list[str]:
        """Every resource that has a default limit, or a limit or a usage row on the path; sorted."""
        keys = [*self.counters, *self.project_limits]
        return sorted({*self.defaults, *(key.resource for key in keys if key.project_id != TOTAL and not key.pod)})


def read(connection: sa.Connection, project_id: str, *, pod: str | None = None) -> PathState:
    """Read the stored state of ``project_id`` and its ancestors, in one statement.

    ``pod``: also the rows of this pod, or ("") of every pod. Their number grows with that of the pods.
    """
    statement = _statement(dialects.of(connection), _which(pod))
    return _single_state(statement(connection, _arguments(pod, b_project=project_id)).all())


def read_in_single_statement(
    connection: sa.Connection, project_id: str, pod: str | None
) -> PathState | None:
    """As ``read``, as a transaction of its own. None: see Dialect.read_in_single_statement."""
    dialect = dialects.of(connection)
    statement = _statement(dialect, _which(pod))
    rows = dialect.read_in_single_statement(connection, statement, _arguments(pod, b_project=project_id))
    return None if rows is None else _single_state(rows)


def read_limits(connection: sa.Connection, path: Sequence[str], *, pod: str | None = None) -> PathState:
    """The limits of the projects on ``path``, and the totals: as ``read``, without the counters of the projects."""
    statement = _statement_for_limits(_which(pod))
    return _state(path, statement.rows(connection, path, _arguments(pod)))


def _which(pod: str | None) -> Which:
    return "none" if pod is None else "one" if pod else "all"


def _arguments(pod: str | None, **projects: Any) -> dict[str, Any]:
    return {**projects, "b_pod": pod} if pod else projects


def _single_state(rows: Sequence[Any]) -> PathState:
    distances = sorted((distance, owner) for kind, owner, _, _, distance, *_ in rows if kind == _PATH)
    return _state([owner for _, owner in distances], rows)


def read_many(
    connection: sa.Connection, project_ids: Sequence[str], pod: str | None = None
) -> list[PathState]:
    """The states of these projects, in their order, in one statement.

    Each project must have a row in ``projects``; every project with usage rows has one. At most MAX_PROJECTS. ``pod``:
    also the rows of this pod.
    """
    statement = _statement_for_many(dialects.of(connection), _which(pod))
    rows = connection.execute(statement, _arguments(pod, b_projects=list(project_ids))).all()
    # (In the rows of the path, the column ``resource`` contains the id of the parent.)
    parents = {row.project_id: row.resource for row in rows if row.kind == _PATH}
    shared = _state([], rows)
    return [dataclasses.replace(shared, project_ids=_path(project_id, parents)) for project_id in project_ids]


def read_tree(connection: sa.Connection, pod: str | None = None) -> tuple[dict[str, str | None], PathState]:
    """The parents of all projects, and a state with the counters and limits of all, in one statement."""
    rows = connection.execute(_statement_for_all(_which(pod)), _arguments(pod)).all()
    return {row.project_id: row.resource for row in rows if row.kind == _PATH}, _state([], rows)


def read_states(
    connection: sa.Connection, project_ids: Collection[str] | None = None, pod: str | None = None
) -> list[PathState]:
    """The states of these projects, sorted, in one statement; as ``read_many``, but of any number.

    None: of all projects that have a usage row or a limit of their own.
    """
    if project_ids is not None and len(project_ids) <= MAX_PROJECTS:
        return read_many(connection, sorted(project_ids), pod)
    parents, shared = read_tree(connection, pod)
    if project_ids is None:
        project_ids = {key.project_id for key in [*shared.counters, *shared.project_limits]} - {TOTAL}
    return states_of(shared, parents, project_ids)


def states_of(shared: PathState, parents: Mapping[str, str | None], project_ids: Iterable[str]) -> list[PathState]:
    """The states of these projects, sorted, from what ``read_tree`` returns."""
    return [dataclasses.replace(shared, project_ids=_path(project_id, parents)) for project_id in sorted(project_ids)]


def _path(project_id: str, parents: Mapping[str, str | None]) -> list[str]:
    path = [project_id]
    while (parent_id := parents.get(path[-1])) is not None and len(path) <= projects.MAX_DEPTH:
        path.append(parent_id)
    return path


def _state(path: Sequence[str], rows: Sequence[Any]) -> PathState:
    counters, limits, defaults, totals = {}, {}, {}, {}
    active: list[tuple[UsageKey, int, int, int]] = []
    for kind, owner, resource, pod, first, second, third in rows:
        if kind == _USAGE:
            counters[UsageKey(owner, resource, pod)] = Counters(first, second, third)
        elif kind == _LIMIT:
            limits[UsageKey(owner, resource, pod)] = first
        elif kind == _OVERRIDE:
            active.append((UsageKey(owner, resource), first, second, third))
        elif kind == _DEFAULT:
            defaults[resource] = first
        elif kind == _TOTAL:
            totals[resource] = first
            counters[UsageKey(owner, resource)] = Counters(subtree=second)
    limits.update(overrides.latest(active))
    return PathState(path, counters, limits, defaults, totals)


@functools.cache
def _statement(dialect: Dialect, which: Which) -> Statement:
    path = projects.path_cte()
    is_read = _on_path(path, dialect, which)
    distances = _columns(_PATH, path.c.project_id, None, None, path.c.distance)
    return Statement(sa.union_all(distances, _counters(is_read), *_limits(is_read)))


@functools.cache
def _statement_for_limits(which: Which) -> ListStatement:
    def build(size: int) -> sa.Executable:
        return sa.union_all(*_limits(lambda key: sa.and_(any_of(key["project_id"], size), _of_pods(key, which))))

    return ListStatement(build)


@functools.cache
def _statement_for_many(dialect: Dialect, which: Which) -> sa.CompoundSelect[Any]:
    path = projects.paths_cte()
    is_read = _on_path(path, dialect, which)
    return sa.union_all(_columns(_PATH, path.c.project_id, path.c.parent_id), _counters(is_read), *_limits(is_read))


@functools.cache
def _statement_for_all(which: Which) -> sa.CompoundSelect[Any]:
    def is_read(key: Columns) -> sa.ColumnElement[bool]:
        return _of_pods(key, which)

    edge = projects_table.c
    return sa.union_all(_columns(_PATH, edge.project_id, edge.parent_id), _counters(is_read), *_limits(is_read))


def _on_path(path: sa.CTE, dialect: Dialect, which: Which) -> IsRead:
    path_ids = sa.select(path.c.project_id)
    return lambda key: sa.and_(dialect.is_on_path(key["project_id"], path_ids), _of_pods(key, which))


def _of_pods(key: Columns, which: Which) -> sa.ColumnElement[bool]:
    """The rows that count all pods; and those of the pod ``b_pod`` ("one"), or of each pod ("all")."""
    if which == "all" or "pod" not in key:  # (an override has no pod)
        return sa.true()
    pod: sa.ColumnElement[str] = key["pod"]
    all_pods: sa.ColumnElement[str] = sa.literal_column("''")
    return pod.in_([all_pods, sa.bindparam("b_pod")]) if which == "one" else pod == all_pods


def _counters(is_read: IsRead) -> sa.Select[Any]:
    """The counters of the rows for which ``is_read`` is true."""
    usage = quota_usages.c
    rows = _columns(_USAGE, usage.project_id, usage.resource, usage.pod, usage.used, usage.reserved, usage.subtree)
    return rows.where(is_read(usage))


def _limits(is_read: IsRead) -> list[sa.Select[Any]]:
    """The limits and overrides for which ``is_read`` is true, the totals and the default limits."""
    limit, default, override, usage = project_limits.c, limit_defaults.c, limit_overrides.c, quota_usages.c
    limits = _columns(_LIMIT, limit.project_id, limit.resource, limit.pod, limit.hard_limit)
    amounts = override.hard_limit, override.generation, override.ordinal
    return [
        limits.where(is_read(limit)),
        _columns(_OVERRIDE, override.project_id, override.resource, None, *amounts).where(
            is_read(override), overrides.IS_ACTIVE
        ),
        _columns(_TOTAL, usage.project_id, usage.resource, None, limit_totals.c.hard_limit, usage.subtree)
        .join_from(limit_totals, quota_usages, usage.resource == limit_totals.c.resource)
        .where(usage.project_id == _IS_TOTAL, usages.COUNTS_ALL_PODS)
        .where(limit_totals.c.is_enforced == sa.literal_column("1")),
        _columns(_DEFAULT, None, default.resource, None, default.hard_limit),
    ]


def _columns(
    kind: str,
    project_id: sa.ColumnElement[str] | None,
    resource: sa.ColumnElement[str] | None,
    pod: sa.ColumnElement[str] | None = None,
    *amounts: sa.ColumnElement[int],
) -> sa.Select[Any]:
    """One branch of the union. A column has the same type in all branches."""
    name = quota_usages.c.project_id.type
    padded = [*amounts, *(sa.null() for _ in range(3 - len(amounts)))]
    return sa.select(
        sa.literal_column(f"'{kind}'").label("kind"),
        (sa.cast(sa.null(), name) if project_id is None else project_id).label("project_id"),
        (sa.cast(sa.null(), name) if resource is None else resource).label("resource"),
        (sa.cast(sa.null(), name) if pod is None else pod).label("pod"),
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
        usage.project_id, usage.id, usage.resource, usage.pod, usage.generation, usage.counted_in_total
    ).where(
        usage.pod.in_(sa.bindparam("b_pods", expanding=True)),
        usage.resource.in_(sa.bindparam("b_resources", expanding=True)),
    )
    return sa.union_all(
        sa.select(
            path.c.project_id,
            number.label("id"),
            path.c.parent_id.label("resource"),
            sa.cast(sa.null(), usage.pod.type).label("pod"),
            number.label("generation"),
            number.label("counted_in_total"),
        ),
        rows.where(dialect.is_on_path(usage.project_id, sa.select(path.c.project_id))),
        rows.where(usage.project_id == _IS_TOTAL),
    )


def read_path(connection: sa.Connection, project_id: str, keys: Collection[ResourceKey]) -> ProjectPath:
    """Read the current path of ``project_id``. An unknown project is a root."""
    query = _path_query(dialects.of(connection), is_many=False)
    paths = _read_paths(connection, query, {"b_project": project_id}, [project_id], keys)
    return paths.get(project_id) or ProjectPath([project_id], {})


def read_paths(
    connection: sa.Connection, project_ids: Sequence[str], keys: Collection[ResourceKey]
) -> dict[str, ProjectPath]:
    """The current paths of these projects, by project, in one statement. At most MAX_PROJECTS.

    Without the projects that have no row in ``projects``. (Every project with usage rows has one.)
    """
    query = _path_query(dialects.of(connection), is_many=True)
    return _read_paths(connection, query, {"b_projects": list(project_ids)}, project_ids, keys)


def _read_paths(
    connection: sa.Connection,
    query: sa.CompoundSelect[Any],
    parameters: Mapping[str, Any],
    project_ids: Sequence[str],
    keys: Collection[ResourceKey],
) -> dict[str, ProjectPath]:
    # (Databases do not use the index for an empty list.)
    names = {"b_resources": usages.resources_of(keys), "b_pods": usages.pods_of(keys)}
    rows = connection.execute(query, {**parameters, **names}).all()
    edges = {row.project_id: row for row in rows if row.id is None}
    parents = {project_id: edge.resource for project_id, edge in edges.items()}
    totals = {ResourceKey(row.resource): _total(row) for row in rows if row.project_id == TOTAL}
    by_project: dict[str, list[Any]] = {}
    for row in rows:
        if row.id is not None and row.project_id != TOTAL:
            by_project.setdefault(row.project_id, []).append(row)
    paths = {}
    for project_id in project_ids:
        if project_id not in edges:
            continue
        path = list(dict.fromkeys(_path(project_id, parents)))
        nodes: dict[ResourceKey, list[usages.Node]] = {}
        counted = {}
        for depth, owner in zip(range(len(path) - 1, -1, -1), path, strict=True):
            for row in by_project.get(owner, ()):
                key = ResourceKey(row.resource, row.pod)
                nodes.setdefault(key, []).append(
                    usages.Node(row.id, owner, row.resource, row.generation, depth, row.pod)
                )
                if row.counted_in_total is not None and key in totals:
                    counted[key] = totals[key]._replace(is_counted=True)
        usage_rows = {key: tuple(found) for key, found in nodes.items()}
        paths[project_id] = ProjectPath(path, usage_rows, {**totals, **counted})
    return paths


def _total(row: Any) -> Total:
    return Total(
        usages.Node(row.id, TOTAL, row.resource, row.generation, _TOTAL_DEPTH), row.counted_in_total is not None
    )


_ZERO_ROW: Final = {
    "project_id": sa.bindparam("b_project"),
    "resource": sa.bindparam("b_resource"),
    "pod": sa.bindparam("b_pod"),
    "reserved": 0,
    "used": 0,
    "subtree": 0,
    "generation": sa.bindparam("b_generation"),
    "created_at": clock.utc_now(),
}
"""The values of a new usage row; ``_zero_row`` returns the parameters."""


def _zero_row(key: UsageKey) -> dict[str, Any]:
    """The parameters of _ZERO_ROW. The first generation is random: see rule 1 in projects.py."""
    project_id, resource, pod = key
    return {"b_project": project_id, "b_resource": resource, "b_pod": pod, "b_generation": generations.first()}


def make_row(connection: sa.Connection, key: UsageKey) -> None:
    """Insert a usage row of zeros. The transaction must have locked or added the project (``lock_many``)."""
    dialects.of(connection).insert_or_ignore(connection, quota_usages, _ZERO_ROW, _zero_row(key))


def make_rows(connection: sa.Connection, path: ProjectPath, keys: Collection[ResourceKey]) -> None:
    """Insert the usage rows that are missing along ``path``. Run this in a separate transaction, before count_root.

    It also inserts the project as a root if it does not exist: it may have been removed since ``path`` was read. The
    retry after ConcurrentChange must therefore read the path again.
    """
    leaf = path.project_ids[0]
    lacking = {UsageKey(project_id, *key) for key in path.missing(keys) for project_id in path.lacking(key)}
    # A move of the root, which would change whether a total counts it, waits.
    roots = path.project_ids[-1:] if path.uncounted(keys) else ()
    projects.lock_or_add(connection, {*(key.project_id for key in lacking), *roots}, leaf)
    if read_path(connection, leaf, keys).project_ids != path.project_ids:
        raise ConcurrentChange
    for key in sorted(lacking):
        make_row(connection, key)


# --- Totals over all projects: see totals.py ---


def read_totals(connection: sa.Connection, resources: Collection[str] | None = None) -> dict[str, Total]:
    """The rows of the totals, by resource."""
    usage = quota_usages.c
    query = sa.select(usage.id, usage.resource, usage.generation, usage.counted_in_total).where(
        usage.project_id == _IS_TOTAL, usages.COUNTS_ALL_PODS
    )
    if resources is not None:
        query = query.where(usage.resource.in_(sorted(resources)))
    return {row.resource: _total(row) for row in connection.execute(query)}


def read_nodes(connection: sa.Connection, key: UsageKey) -> tuple[usages.Node, ...] | None:
    """The usage row with this key, and all above it. None if a row does not exist."""
    if key.project_id == TOTAL:
        return tuple(total.node for total in read_totals(connection, [key.resource]).values()) or None
    return read_path(connection, key.project_id, [key.resource_key]).nodes(key.resource_key)


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
        .where(usages.COUNTS_ALL_PODS, usage.resource == resource, usage.project_id != TOTAL)
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


def counted_keys(connection: sa.Connection, project_ids: Iterable[str]) -> set[UsageKey]:
    """Those usage rows of these projects that a total counts."""
    usage = quota_usages.c
    query = sa.select(usage.project_id, usage.resource).where(usage.counted_in_total.is_not(None))
    return {
        UsageKey(row.project_id, row.resource)
        for names in chunks(sorted(project_ids))
        for row in connection.execute(query.where(usage.project_id.in_(names)))
    }


def delete_closed_total(connection: sa.Connection, resource: str) -> None:
    """Delete the row of a closed total. It must count no root."""
    is_closed = quota_usages.c.counted_in_total.is_(None)
    connection.execute(sa.delete(quota_usages).where(usages.of_total(resource), is_closed))
