# SPDX-License-Identifier: Apache-2.0
"""The tables limit_defaults and project_limits; and what projects hold: their usage, limits and overrides."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import overrides, paging, path_state, projects, reservations, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.db.models import limit_defaults, limit_overrides, project_limits
from cyborg_quota.db.prepared import chunks, insert_many, put
from cyborg_quota.tree import tables as tree
from cyborg_quota.types import TOTAL, LimitRecord, Page, TotalLimit, UsageKey
from cyborg_quota.types.limits import Holding

_OF_PROJECTS: Final = project_limits.c.project_id != TOTAL
"""The limits that are not totals over all projects (totals.py)."""

Condition = tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]
"""The projects of a table, and the condition of a row."""

HOLDING: Final[Sequence[Condition]] = (
    usages.HOLDING,
    (project_limits.c.project_id, _OF_PROJECTS),
    overrides.HOLDING,
)
"""Projects that have usage, a limit, or an override that has not ended."""

COUNTING: Final[Sequence[Condition]] = (usages.COUNTING, *HOLDING[1:])
"""HOLDING, and projects without usage of their own whose usage row is not zero."""

BATCH_PROJECTS: Final = 100
"""How many projects ``holders`` reads, at least."""

_LIMITS: Final = sa.select(
    project_limits.c.project_id, project_limits.c.resource, project_limits.c.pod, project_limits.c.hard_limit
).where(_OF_PROJECTS)


LimitRows = tuple[dict[str, int], dict[UsageKey, int], dict[str, "str | None"]]
"""Defaults by resource, limits of projects (also those per pod), parents by project."""


def read_limits(connection: Connection, project_ids: Collection[str] | None = None) -> LimitRows:
    """All defaults, limits (without overrides) and tree edges, or only those of ``project_ids``."""
    query = sa.select(limit_defaults.c.resource, limit_defaults.c.hard_limit)
    defaults = {row.resource: row.hard_limit for row in connection.execute(query)}
    if project_ids is None:
        return defaults, of_projects(connection), projects.edges(connection)
    limits, parents = {}, {}
    for names in chunks(sorted(project_ids)):
        limits.update(of_projects(connection, names))
        parents.update(projects.edges(connection, names))
    return defaults, limits, parents


def of_projects(connection: Connection, project_ids: Sequence[str] | None = None) -> dict[UsageKey, int]:
    """The limits of these projects (None: of all), also those per pod."""
    query = _LIMITS.where(*paging.among((project_limits.c.project_id, project_ids)))
    return {UsageKey(*key): limit for *key, limit in connection.execute(query)}


def read_page(connection: Connection, page: Page) -> list[LimitRecord]:
    """The defaults, and then the limits of projects, without overrides and those per pod, as the database sorts the
    names. Raises MarkerNotFound.
    """
    records: list[LimitRecord] = []
    name, after = limit_defaults.c.resource, page.after
    if after is None or (after[0] is None and after[1] is not None):  # ((None, None): after all defaults)
        query = sa.select(name, limit_defaults.c.hard_limit).where(*paging.given((name, page.resource)))
        if after is not None:
            paging.require(connection, limit_defaults, name == after[1], after)
            query = query.where(name > after[1])
        rows = connection.execute(query.order_by(name).limit(page.limit))
        records += [LimitRecord(None, row.resource, row.hard_limit) for row in rows]
    rest = dataclasses.replace(page, limit=None if page.limit is None else page.limit - len(records))
    if rest.limit != 0:
        columns = project_limits.c.project_id, project_limits.c.resource
        rows = connection.execute(
            paging.of_rows(connection, _LIMITS, project_limits, columns, rest, condition=project_limits.c.pod == "")
        )
        records += [LimitRecord(row.project_id, row.resource, row.hard_limit) for row in rows]
    return records


def read_in_pods(
    connection: Connection, project_id: str | None, pod: str | None, count: int | None, after: str | None
) -> list[LimitRecord]:
    """The limits per pod. None: of all projects; in all pods.

    ``count``: the maximum number of projects. ``after``: only projects after this one. The database sorts them by
    project, pod and resource.
    """
    limit = project_limits.c
    selected = [limit.pod != "", *paging.given((limit.pod, pod), (limit.project_id, project_id))]
    if after is not None:
        selected.append(limit.project_id > after)
    query = _LIMITS.where(*selected)
    if count is not None:
        # One statement: between two, a project of the page could lose its limits.
        page = paging.first_projects(limit.project_id, after or "", count, sa.and_(*selected)).subquery()
        query = query.join(page, page.c.project_id == limit.project_id)
    rows = connection.execute(query.order_by(limit.project_id, limit.pod, limit.resource))
    return [LimitRecord(row.project_id, row.resource, row.hard_limit, pod=row.pod) for row in rows]


def read_family(connection: Connection, *project_ids: str, new_parent: str | None = None) -> LimitRows:
    """The limits that an enforcement model needs to check the limits of these projects.

    They are those of the projects, their ancestors, their siblings and all their descendants. ``new_parent``: also
    those that the projects would have as ancestors and siblings below this one.
    """
    family: set[str] = set()
    for project_id in project_ids:
        path = path_state.read_path(connection, project_id, []).project_ids
        family |= projects.subtree_edges(connection, project_id).keys() | set(path)
        if len(path) > 1:
            family |= projects.children_of(connection, path[1])
    if new_parent is not None:
        family |= set(path_state.read_path(connection, new_parent, []).project_ids)
        family |= projects.children_of(connection, new_parent)
    return read_limits(connection, family)


def set_default(connection: Connection, resource: str, limit: int | None) -> None:
    """Set the default limit of a resource, or remove it (None)."""
    _set(connection, limit_defaults, {"resource": resource}, limit)


def set_limit(connection: Connection, key: UsageKey, limit: int | None) -> None:
    """Set the limit of a project, or remove it (None)."""
    _set(connection, project_limits, key._asdict(), limit)


def read_totals(connection: Connection) -> list[TotalLimit]:
    """All limits over all projects (see db/charges.py), by resource, with what all projects hold."""
    limit = project_limits.c
    query = sa.select(limit.resource, limit.hard_limit).where(limit.project_id == TOTAL).order_by(limit.resource)
    rows = usages.read(connection, [TOTAL])
    return [TotalLimit.of(resource, limit, rows) for resource, limit in connection.execute(query)]


def set_limits(connection: Connection, limits: Mapping[UsageKey, int | None], known: Collection[UsageKey]) -> None:
    """Set many limits (None: remove) in a few statements. ``known`` are those that already exist."""
    insert_many(
        connection,
        project_limits,
        [
            {**key._asdict(), "hard_limit": limit}
            for key, limit in sorted(limits.items())
            if limit is not None and key not in known
        ],
    )
    for key, limit in sorted(limits.items()):
        if key in known:
            set_limit(connection, key, limit)


def _set(connection: Connection, table: sa.Table, key: Mapping[str, str], limit: int | None) -> None:
    if limit is None:
        connection.execute(sa.delete(table).where(*(table.c[name] == value for name, value in key.items())))
    else:
        put(connection, table, key, {"hard_limit": limit})


def forget_project(connection: Connection, project_id: str) -> bool:
    """Delete a project, its limits and overrides. False: it holds something, and the caller must roll back.

    Enforcer.forget has deleted the rest. The project's row is locked before its usage rows, so that none is inserted
    before this transaction ends. What the project has used stays with its parent. Usage rows without device-seconds are
    deleted. The generations of all its rows are renewed first: a charge that waits for one matches no row, and is
    retried.
    """
    projects.lock_many(connection, [project_id])
    tree.set_parents(connection, {}, {project_id: None})
    is_left = usages.delete_zeros(connection, project_id)
    if is_left or reservations.is_any_live(connection, project_id):
        return False
    for table in (project_limits, limit_overrides):
        connection.execute(sa.delete(table).where(table.c.project_id == project_id))
    projects.delete(connection, project_id)
    return True


# --- what projects hold, whatever the limit driver ---


def is_known(connection: Connection, project_id: str) -> bool:
    """Whether the project is in the tree, has a usage row, or has a limit of its own or an override."""
    if projects.edges(connection, [project_id]) or of_projects(connection, [project_id]):
        return True
    return connection.execute(overrides.of_projects_query([project_id]).limit(1)).first() is not None


def holders(
    connection: Connection, after: str, count: int, which: Sequence[Condition] = HOLDING
) -> tuple[list[str], str | None]:
    """The first ``count`` projects after ``after`` of which a row fulfils a condition of ``which``, sorted.

    Also returns the project after which the next ones begin; None: there are no more. There may be fewer than
    ``count``, or none: it reads ``count`` projects that have rows, and at least BATCH_PROJECTS.

    SELECT project_id FROM (SELECT DISTINCT project_id FROM quota_usages WHERE project_id > :after ORDER BY project_id
    LIMIT :count) UNION SELECT ... (the same of project_limits) UNION SELECT ... (the same of limit_overrides)
    ORDER BY project_id LIMIT :count
    """
    size = max(count, BATCH_PROJECTS)
    parts = [paging.first_projects(column, after, size).subquery() for column, _ in which]
    union = sa.union(*(sa.select(part.c.project_id) for part in parts)).subquery()
    first = sa.select(union.c.project_id).order_by(union.c.project_id).limit(size)
    known = connection.execute(first).scalars().all()
    if not known:
        return [], None
    fulfilling = set(
        connection.execute(
            sa.union(
                *(
                    sa.select(column).where(column > after, column <= known[-1], condition)
                    for column, condition in which
                )
            )
        ).scalars()
    )
    names = [project_id for project_id in known if project_id in fulfilling]
    if len(names) > count:
        return names[:count], names[count - 1]
    return names, known[-1] if len(known) == size else None


def holdings(connection: Connection, project_ids: Collection[str]) -> list[Holding]:
    """The usage, all limits and the numbers of overrides of these projects, sorted by their keys."""
    names = sorted(project_ids)
    own_limits = of_projects(connection, names)
    amounts = _held(connection, names)
    if not all(key.is_whole for key in own_limits):
        parts = _held(connection, names, whole=False)
        amounts |= {key: parts[key] for key in own_limits if key in parts}
    rows = connection.execute(overrides.of_projects_query(names)).all()
    numbers = Counter(UsageKey(row.project_id, row.resource) for row in rows)
    active = {UsageKey(row.project_id, row.resource) for row in rows if row.is_active}
    return [
        Holding(key, *amounts.get(key, (0, 0)), own_limits.get(key), numbers[key], key in active)
        for key in sorted({*amounts, *own_limits, *numbers})
    ]


def held_by_all(connection: Connection, resources: Collection[str]) -> dict[str, int]:
    """used + reserved of all projects, by resource; without those of which nothing is held.

    SELECT resource, SUM(used), SUM(reserved) FROM quota_usages WHERE ... GROUP BY resource
    """
    row = usages.held_query(None).subquery().c
    query = sa.select(row.resource, sa.func.sum(row.used), sa.func.sum(row.reserved)).group_by(row.resource)
    rows = connection.execute(query.where(row.resource.in_(sorted(resources))))
    return {resource: int(used) + int(reserved) for resource, used, reserved in rows}


def _held(connection: Connection, project_ids: Sequence[str], *, whole: bool = True) -> dict[UsageKey, tuple[int, int]]:
    rows = connection.execute(usages.held_query(project_ids, whole=whole))
    return {UsageKey(*key): (used, reserved) for *key, used, reserved in rows}
