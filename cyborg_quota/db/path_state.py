# SPDX-License-Identifier: Apache-2.0
"""The path of a project to its root: its counters and limits (``read``), and the usage rows to charge (``read_path``).

Each of them is one statement, and so reads one snapshot, also at READ COMMITTED. The number of rows that it reads
depends on the path, not on the number of projects::

    WITH RECURSIVE path (project_id, distance) AS (...)                 -- the project has distance 0
    SELECT 'path', project_id, parent_id, NULL, NULL, NULL, NULL FROM path
    UNION ALL SELECT 'usage', project_id, resource, pod, used, reserved, subtree FROM quota_usages on the path
    UNION ALL SELECT 'usage', ... of the totals over all projects
    UNION ALL SELECT 'limit', project_id, resource, pod, hard_limit, NULL, NULL FROM project_limits on the path
    UNION ALL SELECT 'limit', ... of the totals
    UNION ALL SELECT 'override', project_id, resource, NULL, hard_limit, generation, ordinal FROM limit_overrides on ...
    UNION ALL SELECT 'default', NULL, resource, NULL, hard_limit, NULL, NULL FROM limit_defaults
    UNION ALL SELECT 'budget', project_id, resource, NULL, NULL, NULL, NULL FROM budgets on the path

``read_path`` reads the ids and the generations of the usage rows in place of their counters. A change of a limit renews
the generation of the usage row that it bounds (charges.py), so that a charge by these limits is refused from then
on: the path can be cached. ``make_rows`` follows the rules in projects.py.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import sqlalchemy as sa

from cyborg_quota.db import calendar, clock, dialects, overrides, projects, usages
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import limit_defaults, limit_overrides, project_limits, quota_usages
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.db.prepared import Statement
from cyborg_quota.db.usages import Node
from cyborg_quota.types import TOTAL, Counters, ResourceKey, UsageKey, grouped
from cyborg_quota.types.limits import RowBound

_FRESH_SECONDS: Final = 60
"""The age at which limits are read again in any case."""


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """A state at one moment. ``project_ids``: the project and its ancestors, leaf first.

    ``project_limits``: the limits of the projects, or the overrides in their place that apply at that moment.
    ``defaults``: the default limits, by resource. Values that are not stored are missing. ``totals`` has the total
    limits, by resource; what they count is in ``counters``, with the project id TOTAL. ``overrides``: the end of the
    override that is in ``project_limits``, and the limit that is set without it. ``bounded``: the rows that
    enforcers bound (budgets). The states of ``read_states`` share these.
    """

    project_ids: Sequence[str]
    counters: Mapping[UsageKey, Counters]
    project_limits: Mapping[UsageKey, int]
    defaults: Mapping[str, int]
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    overrides: Mapping[UsageKey, tuple[datetime.datetime, int | None]] = dataclasses.field(default_factory=dict)
    bounded: Collection[UsageKey] = ()

    @property
    def resources(self) -> list[str]:
        """Every resource that has a default limit, or a limit or a usage row on the path; sorted."""
        keys = [*self.counters, *self.project_limits]
        return sorted({*self.defaults, *(key.resource for key in keys if key.project_id != TOTAL and key.is_whole)})


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by key.

    ``charged``: the rows to charge, where all exist: leaf first, the total over all projects last.

    ``limits`` are the stored limits of these keys (without counters), as of the moment at which the rows were read;
    None: they were not read. ``row_bounds``: what else bounds the rows. ``until``: when an override or a bound on the
    path begins or ends next, in microseconds since 1970 by the database's clock; None: never.
    ``bounds``: what the limit driver has made of the limits for the last charge, with its resources; see
    LimitDriver.is_pure.
    """

    __slots__ = ("bounds", "charged", "fresh_until", "is_known", "limits", "project_ids", "row_bounds", "rows", "until")

    def __init__(
        self,
        project_ids: Sequence[str],
        rows: dict[ResourceKey, tuple[Node, ...]],
        totals: Mapping[str, Node] | None = None,
        *,
        is_known: bool = True,
    ) -> None:
        self.project_ids = tuple(project_ids)
        self.limits: PathState | None = None
        self.bounds: tuple[tuple[str, ...], Any] | None = None
        self.row_bounds: Mapping[UsageKey, RowBound] = {}
        self.until: int | None = None
        self.rows = rows
        self.fresh_until = time.monotonic() + _FRESH_SECONDS
        self.is_known = is_known
        # (A project that was removed may have rows: it must be added again before it is charged.)
        charged = rows if is_known else {}
        self.charged = {key: nodes for key, nodes in charged.items() if len(nodes) == len(self.project_ids)}
        for resource, total in (totals or {}).items():
            if (key := ResourceKey(resource)) in self.charged:
                self.charged[key] += (total,)

    def missing(self, keys: Iterable[ResourceKey]) -> list[ResourceKey]:
        """Those of the keys that cannot be charged yet, because a project along this path has no usage row."""
        return [key for key in keys if key not in self.charged]


_PATH: Final = "path"
_USAGE: Final = "usage"
_LIMIT: Final = "limit"
_OVERRIDE: Final = "override"
_DEFAULT: Final = "default"
_BOUND: Final = "bound"
BOUNDED: Final[list[sa.Table]] = []
"""The tables of what bounds usage rows besides limits, with columns project_id and resource. The SQL of an enforcer
adds its table when it is imported."""
_IS_TOTAL: Final[sa.ColumnElement[str]] = sa.literal_column(f"'{TOTAL}'")

_COUNTERS: Final = usages.COUNTERS[:-1]
"""All but the base of the meter."""
_VALUES: Final = tuple(f"value_{number}" for number, _ in enumerate(_COUNTERS, 1))
_FIRST_VALUE: Final = 4
"""Its position in a row: behind the kind, the project, the resource and the pod."""

_ALL_PODS: Final[sa.ColumnElement[str]] = sa.literal_column("''")

Which = Literal["none", "one", "all", "keys"]
"""The pods whose rows are read, besides the rows that count all pods; or keys to charge: resources, and their pods."""
Scope = Literal["project", "projects", "tree"]

Columns = sa.ColumnCollection[str, Any]

MAX_PROJECTS: Final = 500
"""The maximum number of projects of one statement."""


def read(connection: sa.Connection, project_id: str, *, pod: str | None = None) -> PathState:
    """Read the stored state of ``project_id`` and its ancestors, in one statement.

    ``pod``: also the rows of this pod, or ("") of every pod. Their number grows with that of the pods.
    """
    return states_of(*_tree(connection, "project", pod, b_project=project_id), [project_id])[0]


def _tree(
    connection: sa.Connection, scope: Scope, pod: str | None, **projects: Any
) -> tuple[dict[str, str | None], PathState]:
    """The parents, and a state without a path. ``projects``: the parameters that name them."""
    which: Which = "none" if pod is None else "one" if pod else "all"
    parameters = {**projects, "b_pod": pod} if pod else projects
    rows: Any
    if scope == "project":
        rows = _statement(dialects.of(connection), which)(connection, parameters).all()
    else:
        rows = connection.execute(_query(dialects.of(connection), scope, which), parameters).all()
    # (In the rows of the path, the column ``resource`` contains the id of the parent.)
    return {owner: parent_id for kind, owner, parent_id, *_ in rows if kind == _PATH}, _state(rows)


def read_tree(connection: sa.Connection, pod: str | None = None) -> tuple[dict[str, str | None], PathState]:
    """The parents of all projects, and a state with the counters and limits of all, in one statement."""
    return _tree(connection, "tree", pod)


def read_states(
    connection: sa.Connection, project_ids: Collection[str] | None = None, pod: str | None = None
) -> tuple[PathState, list[PathState]]:
    """The state that these projects share, without a path, and their states, sorted, in one statement.

    Each project must have a row in ``projects``; every project with usage rows has one. None: of all projects that have
    a usage row, a limit of their own, or a budget. ``pod``: also the rows of this pod.
    """
    if project_ids is not None and len(project_ids) <= MAX_PROJECTS:
        parents, shared = _tree(connection, "projects", pod, b_projects=list(project_ids))
    else:
        parents, shared = read_tree(connection, pod)
    if project_ids is None:
        keys = [*shared.counters, *shared.project_limits, *shared.bounded]
        project_ids = {key.project_id for key in keys} - {TOTAL}
    return shared, states_of(parents, shared, project_ids)


def states_of(parents: projects.Edges, shared: PathState, project_ids: Iterable[str]) -> list[PathState]:
    """The states of these projects, sorted, from what ``read_tree`` returns."""
    paths = ([project_id, *projects.ancestors(project_id, parents)] for project_id in sorted(project_ids))
    return [dataclasses.replace(shared, project_ids=path) for path in paths]


def _state(rows: Sequence[Any]) -> PathState:
    """What the rows have, without a path."""
    counters, limits, defaults, totals = {}, {}, {}, {}
    budgeted = set()
    active: list[tuple[UsageKey, int, int, int, Any]] = []
    for kind, owner, resource, pod, first, second, third, *counted, _, ends_at, _ in rows:
        if kind == _USAGE:
            counters[UsageKey(owner, resource, pod)] = Counters(first, second, third, *counted)
        elif kind == _LIMIT and owner == TOTAL:
            totals[resource] = first
        elif kind == _LIMIT:
            limits[UsageKey(owner, resource, pod)] = first
        elif kind == _OVERRIDE:
            active.append((UsageKey(owner, resource), first, second, third, ends_at))
        elif kind == _DEFAULT:
            defaults[resource] = first
        elif kind == _BOUND:
            budgeted.add(UsageKey(owner, resource))
    planned = {}
    for key, (limit, ends_at) in overrides.latest(active).items():
        planned[key] = clock.moment_of(ends_at), limits.get(key)
        limits[key] = limit
    return PathState((), counters, limits, defaults, totals, planned, budgeted)


@functools.cache
def _statement(dialect: Dialect, which: Which) -> Statement:
    return Statement(_query(dialect, "project", which))


@functools.cache
def _query(dialect: Dialect, scope: Scope, which: Which) -> sa.CompoundSelect[Any]:
    """All that is stored of the projects in ``scope`` and their ancestors, of the totals, and of the default limits.

    In the rows of the path, ``resource`` contains the id of the parent. With the keys to charge, usage rows have ids
    and generations; several projects have no limits, and the overrides of one project include those that begin later.
    """
    is_charged = which == "keys"
    edges, on_path = _path_of(dialect, scope)
    usage, limit, override, default = quota_usages.c, project_limits.c, limit_overrides.c, limit_defaults.c

    def wanted(columns: Columns) -> sa.ColumnElement[bool]:
        pod: sa.ColumnElement[str] | None = columns.get("pod")
        if is_charged:
            is_key: sa.ColumnElement[bool] = columns["resource"].in_(sa.bindparam("b_resources", expanding=True))
            return is_key if pod is None else sa.and_(is_key, pod.in_(sa.bindparam("b_pods", expanding=True)))
        if which == "all" or pod is None:  # (an override has no pod)
            return sa.true()
        return pod.in_([_ALL_PODS, sa.bindparam("b_pod")]) if which == "one" else pod == _ALL_PODS

    def with_totals(rows: sa.Select[Any], columns: Columns) -> list[sa.Select[Any]]:
        """Those on the path, and those of the totals."""
        of_totals = rows.where(columns["project_id"] == _IS_TOTAL, columns["pod"] == _ALL_PODS)
        on_the_path = rows.where(sa.and_(on_path(columns["project_id"]), wanted(columns)))
        return [on_the_path, of_totals.where(wanted(columns)) if is_charged else of_totals]

    counters = usages.NODE if is_charged else _COUNTERS
    rows = _columns(_USAGE, usage.project_id, usage.resource, usage.pod, *counters)
    known = projects_table.alias("known")
    is_known = sa.select(sa.literal_column("1")).where(known.c.project_id == edges.project_id).scalar_subquery()
    branches = [_columns(_PATH, edges.project_id, edges.parent_id, None, is_known), *with_totals(rows, usage)]
    if is_charged and scope != "project":
        return sa.union_all(*branches)
    branches += with_totals(_columns(_LIMIT, limit.project_id, limit.resource, limit.pod, limit.hard_limit), limit)
    defaults = _columns(_DEFAULT, None, default.resource, None, default.hard_limit)
    branches.append(defaults.where(wanted(default)) if is_charged else defaults)
    for table in BOUNDED:
        is_wanted = sa.and_(on_path(table.c.project_id), wanted(table.c))
        branches.append(_columns(_BOUND, table.c.project_id, table.c.resource).where(is_wanted))
    amounts = override.hard_limit, override.generation, override.ordinal
    planned = _columns(_OVERRIDE, override.project_id, override.resource, None, *amounts)
    planned = planned.where(sa.and_(on_path(override.project_id), wanted(override)))
    never = [sa.cast(sa.null(), override.starts_at.type).label(name) for name in ("starts_at", "ends_at", "now")]
    planned = planned.add_columns(override.starts_at, override.ends_at, sa.type_coerce(clock.utc_now(), sa.DateTime()))
    branches = [branch.add_columns(*never) for branch in branches]
    return sa.union_all(*branches, planned.where(overrides.HAS_NOT_ENDED if is_charged else overrides.IS_ACTIVE))


def _path_of(dialect: Dialect, scope: Scope) -> tuple[Any, Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]]]:
    """The columns of the edges of the path, and the condition that a project is on it."""
    if scope == "tree":
        return projects_table.c, lambda _project_id: sa.true()
    path = projects.path_cte() if scope == "project" else projects.paths_cte()
    path_ids = sa.select(path.c.project_id)
    return path.c, lambda project_id: dialect.is_on_path(project_id, path_ids)


def _columns(
    kind: str,
    project_id: sa.ColumnElement[str] | None,
    resource: sa.ColumnElement[str] | None,
    pod: sa.ColumnElement[str] | None = None,
    *amounts: sa.ColumnElement[int],
) -> sa.Select[Any]:
    """One branch of the union. A column has the same type in all branches."""
    name = quota_usages.c.project_id.type
    padded = [*amounts, *(sa.null() for _ in range(len(_VALUES) - len(amounts)))]
    return sa.select(
        sa.literal_column(f"'{kind}'").label("kind"),
        (sa.cast(sa.null(), name) if project_id is None else project_id).label("project_id"),
        (sa.cast(sa.null(), name) if resource is None else resource).label("resource"),
        (sa.cast(sa.null(), name) if pod is None else pod).label("pod"),
        *(sa.cast(amount, sa.BigInteger).label(label) for label, amount in zip(_VALUES, padded, strict=True)),
    )


# --- The path to charge ---


_TOTAL_DEPTH: Final = -1
"""The depth of the row of a total: above the roots, so that it is locked last."""


def read_path(connection: sa.Connection, project_id: str, keys: Collection[ResourceKey]) -> ProjectPath:
    """Read the current path of ``project_id``, and its limits of these keys. An unknown project is a root."""
    rows = _path_rows(connection, "project", {"b_project": project_id}, keys)
    path = _paths([project_id], rows)[project_id]
    planned = [row for row in rows if row[0] == _OVERRIDE]
    boundaries = [moment for *_, starts_at, ends_at, now in planned for moment in (starts_at, ends_at) if moment > now]
    in_force = [row for row in rows if row[0] in {_LIMIT, _DEFAULT, _BOUND}]
    in_force += [row for row in planned if row[-3] <= row[-1]]
    path.limits = dataclasses.replace(_state(in_force), project_ids=path.project_ids)
    if boundaries:
        path.until = (min(boundaries) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    return path


def read_paths(
    connection: sa.Connection, project_ids: Sequence[str], keys: Collection[ResourceKey]
) -> dict[str, ProjectPath]:
    """The current paths of these projects, by project, in one statement, without limits. At most MAX_PROJECTS.

    Without the projects that have no row in ``projects``. (Every project with usage rows has one.)
    """
    return _paths(project_ids, _path_rows(connection, "projects", {"b_projects": list(project_ids)}, keys))


def _path_rows(
    connection: sa.Connection, scope: Scope, names: Mapping[str, Any], keys: Collection[ResourceKey]
) -> Sequence[Any]:
    resources, pods = usages.parts_of(keys)
    names = {**names, "b_resources": resources, "b_pods": pods}
    return connection.execute(_query(dialects.of(connection), scope, "keys"), names).all()


def _paths(project_ids: Sequence[str], rows: Sequence[Any]) -> dict[str, ProjectPath]:
    parents = {row.project_id: row.resource for row in rows if row.kind == _PATH}
    known = {row.project_id for row in rows if row.kind == _PATH and row.value_1}
    by_project = grouped((row for row in rows if row.kind == _USAGE), lambda row: row.project_id)
    totals = {row.resource: _node(row, _TOTAL_DEPTH) for row in by_project.get(TOTAL, ())}
    paths = {}
    for project_id in project_ids:
        if project_id not in parents:
            continue
        path = list(dict.fromkeys([project_id, *projects.ancestors(project_id, parents)]))
        nodes: dict[ResourceKey, list[usages.Node]] = {}
        for depth, owner in zip(range(len(path) - 1, -1, -1), path, strict=True):
            for row in by_project.get(owner, ()):
                nodes.setdefault(ResourceKey(row.resource, row.pod), []).append(_node(row, depth))
        by_key = {key: tuple(path_nodes) for key, path_nodes in nodes.items()}
        paths[project_id] = ProjectPath(path, by_key, totals, is_known=project_id in known)
    return paths


def _node(row: Any, depth: int) -> usages.Node:
    usage_id, generation, *others = row[_FIRST_VALUE : _FIRST_VALUE + len(usages.NODE)]
    return usages.Node(usage_id, row.project_id, row.resource, generation, depth, row.pod, *others)


_ZERO_ROW: Final = {
    "project_id": sa.bindparam("b_project"),
    "resource": sa.bindparam("b_resource"),
    "pod": sa.bindparam("b_pod"),
    "reserved": 0,
    "used": 0,
    "subtree": 0,
    "month_ends": sa.bindparam("b_ends"),
    "generation": sa.bindparam("b_generation"),
    "created_at": clock.utc_now(),
}
"""The values of a new usage row."""


def rows_of_roots(connection: sa.Connection, resource: str) -> dict[UsageKey, int]:
    """The ids of the usage rows of all roots."""
    usage, project = quota_usages.c, projects_table.c
    source = sa.outerjoin(quota_usages, projects_table, project.project_id == usage.project_id)
    is_of_root = usages.COUNTS_WHOLE, project.parent_id.is_(None), usage.project_id != TOTAL
    query = sa.select(usage.project_id, usage.id).select_from(source).where(*is_of_root, usage.resource == resource)
    return {UsageKey(row.project_id, resource): row.id for row in connection.execute(query)}


def make_row(connection: sa.Connection, key: UsageKey) -> None:
    """Insert a usage row of zeros, if there is none. The transaction must have locked or added the project
    (``lock_many``); for a total, it must be serialized with changes of the tree.
    """
    parameters = {f"b_{name}": value for name, value in key._asdict().items()}
    parameters = {"b_project": parameters.pop("b_project_id"), **parameters, "b_generation": usages.new_generation()}
    parameters["b_ends"] = calendar.end_of_month(clock.read_second(connection))
    dialects.of(connection).insert_or_ignore(connection, quota_usages, _ZERO_ROW, parameters)


def make_rows(connection: sa.Connection, project_id: str, keys: Collection[ResourceKey]) -> None:
    """Insert the usage rows that are missing along the path of a project. Run this in a separate transaction.

    It also inserts the project as a root if it does not exist. Raises ConcurrentChange if the path has changed.
    """
    path = read_path(connection, project_id, keys)
    lacking = {
        UsageKey(project_id, *key)
        for key in path.missing(keys)
        for project_id in {*path.project_ids} - {node.project_id for node in path.rows.get(key, ())}
    }
    unknown = () if path.is_known else (project_id,)
    projects.lock_and_add(connection, {key.project_id for key in lacking}.union(unknown))
    if read_path(connection, project_id, keys).project_ids != path.project_ids:
        raise ConcurrentChange
    for key in sorted(lacking):
        make_row(connection, key)


def read_nodes(connection: sa.Connection, key: UsageKey) -> tuple[usages.Node, ...] | None:
    """The usage row with this key, and all above it. None if a row does not exist."""
    if key.project_id == TOTAL:
        usage = quota_usages.c
        query = sa.select(usage.id, usage.project_id, usage.resource, usage.generation)
        is_row = usage.project_id == TOTAL, usages.COUNTS_WHOLE, usage.resource == key.resource
        rows = connection.execute(query.where(*is_row))
        return tuple(usages.Node(*row, _TOTAL_DEPTH) for row in rows) or None
    return read_path(connection, key.project_id, [key.resource_key]).charged.get(key.resource_key)
