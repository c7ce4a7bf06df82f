# SPDX-License-Identifier: Apache-2.0
"""Many projects added and moved in one transaction, with what they hold.

The rules are those of projects.py, and the order in which locks are taken is everybody's: first the rows of
``projects``, by name; then the usage rows, deepest first. What was counted in a moved project's subtree, less what
moves out of it by itself, is its *chunk*: it leaves all the old ancestors' totals, and enters all the new ones'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import clock, projects, usages
from cyborg_quota.db.errors import TransactionMoved
from cyborg_quota.db.models import projects as projects_table
from cyborg_quota.db.models import quota_usages
from cyborg_quota.types import Figures

_CHUNK: Final = 500
Edges = Mapping[str, "str | None"]
_usage = quota_usages.c


def place_all(connection: sa.Connection, added: Edges, moved: Edges) -> None:
    """Add these projects, and move those, which are known. No cycle may come of it: that is the caller's to see.

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
    projects.hold(connection, set(moved).union(*news.values()) - set(added))
    if projects.edges(connection) != before:
        raise TransactionMoved
    touched = set(moved).union(*news.values(), *olds.values()) - set(added)
    _fence(connection, touched, moved, before)
    figures = _figures(connection, touched)
    _move_totals(connection, figures, _chunks(figures, moved, olds), olds, news)
    for project_id, parent_id in sorted(moved.items()):
        projects.set_parent(connection, project_id, parent_id)


def ancestors(project_id: str, edges: Edges) -> list[str]:
    """Everything above a project, nearest first."""
    found: list[str] = []
    parent_id = edges.get(project_id)
    while parent_id is not None and len(found) < projects.MAX_DEPTH:
        found.append(parent_id)
        parent_id = edges.get(parent_id)
    return found


_FENCE = (
    sa.update(quota_usages)
    .where(_usage.project_id == sa.bindparam("b_project"))
    .values(generation=_usage.generation + sa.bindparam("b_moves"))
)


def _fence(connection: sa.Connection, touched: Iterable[str], moved: Collection[str], before: Edges) -> None:
    """Hold every usage row of these projects; a charge that is on its way through a moved one begins again."""
    for project_id in sorted(touched, key=lambda one: (-len(ancestors(one, before)), one)):
        connection.execute(_FENCE, {"b_project": project_id, "b_moves": int(project_id in moved)})


Rows = dict[str, dict[str, Figures]]


def _figures(connection: sa.Connection, project_ids: Iterable[str]) -> Rows:
    """The usage rows of these projects, by project and resource."""
    names = sorted(project_ids)
    found: Rows = {}
    for start in range(0, len(names), _CHUNK):
        for (project_id, resource), figures in usages.read(connection, names[start : start + _CHUNK]).items():
            found.setdefault(project_id, {})[resource] = figures
    return found


def _chunks(figures: Rows, moved: Iterable[str], olds: Mapping[str, list[str]]) -> dict[str, Counter[str]]:
    """What each moved project takes along, by resource."""
    chunks = {
        project_id: Counter({resource: one.subtree for resource, one in figures.get(project_id, {}).items()})
        for project_id in moved
    }
    for project_id, above in olds.items():
        carrier = next((one for one in above if one in chunks), None)
        if carrier is not None:
            chunks[carrier].subtract({name: one.subtree for name, one in figures.get(project_id, {}).items()})
    return chunks


_ADD = (
    sa.update(quota_usages)
    .where(_usage.project_id == sa.bindparam("b_project"), _usage.resource == sa.bindparam("b_resource"))
    .values(subtree=_usage.subtree + sa.bindparam("b_subtree"), updated_at=clock.utc_now())
)


def _move_totals(
    connection: sa.Connection,
    figures: Rows,
    chunks: Mapping[str, Counter[str]],
    olds: Mapping[str, list[str]],
    news: Mapping[str, list[str]],
) -> None:
    changes: Counter[tuple[str, str]] = Counter()
    lacking = set()
    for project_id, chunk in chunks.items():
        for resource, amount in chunk.items():
            for above in olds[project_id]:
                changes[above, resource] -= amount
            for above in news[project_id]:
                changes[above, resource] += amount
                if resource not in figures.get(above, {}):
                    lacking.add((above, resource))
    for project_id, resource in sorted(lacking):
        projects.make_row(connection, project_id, resource)
    for (project_id, resource), amount in sorted(changes.items()):
        if amount:
            connection.execute(_ADD, {"b_project": project_id, "b_resource": resource, "b_subtree": amount})
