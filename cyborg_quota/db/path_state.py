# SPDX-License-Identifier: Apache-2.0
"""Read the path, counters and limits of a project and its ancestors in one statement.

One statement reads one snapshot, also at READ COMMITTED, so that all values are from one point in time. The number of
rows that it reads depends on the path, not on the number of projects::

    WITH RECURSIVE path (project_id, distance) AS (...)                 -- the project has distance 0
    SELECT 'path', project_id, NULL, distance, NULL, NULL FROM path
    UNION ALL SELECT 'usage', project_id, resource, used, reserved, subtree FROM quota_usages on the path
    UNION ALL SELECT 'limit', project_id, resource, most, NULL, NULL FROM project_limits on the path
    UNION ALL SELECT 'override', project_id, resource, most, generation, ordinal FROM limit_overrides on the path
    UNION ALL SELECT 'default', NULL, resource, most, NULL, NULL FROM limit_defaults
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota.db import dialects, overrides, projects
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.models import limit_defaults, limit_overrides, project_limits, quota_usages
from cyborg_quota.types import Counters

_PATH: Final = "path"
_USAGE: Final = "usage"
_LIMIT: Final = "limit"
_OVERRIDE: Final = "override"
_DEFAULT: Final = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """A state at one moment. ``project_ids``: the project and the ancestors whose limits apply to it, leaf first.

    ``counters`` and ``overrides`` (the limits of the projects, or the overrides of them that apply at that moment) are
    keyed by (project_id, resource), ``defaults`` (the default limits) by resource; values that are not stored are
    missing.
    """

    project_ids: Sequence[str]
    counters: Mapping[tuple[str, str], Counters]
    overrides: Mapping[tuple[str, str], int]
    defaults: Mapping[str, int]

    @property
    def resources(self) -> list[str]:
        """Every resource that has a default limit, or a limit or a usage row on the path; sorted."""
        return sorted({resource for _, resource in [*self.counters, *self.overrides]} | set(self.defaults))


def read(connection: sa.Connection, project_id: str, origin: str | None) -> PathState:
    """Read the stored state of ``project_id`` and its ancestors, in one statement.

    ``origin`` is the limit driver's: the path ends at the first edge that it ignores (see ProjectPath.limiting).
    """
    statement = _statement(dialects.of(connection))
    values = {"b_project": project_id, "b_origin": origin}
    distances: list[tuple[int, str]] = []
    counters, limits, defaults = {}, {}, {}
    active: list[tuple[overrides.Key, int, int, int]] = []
    for kind, owner, resource, first, second, third in connection.execute(statement, values):
        if kind == _PATH:
            distances.append((first, owner))
        elif kind == _USAGE:
            counters[owner, resource] = Counters(first, second, third)
        elif kind == _LIMIT:
            limits[owner, resource] = first
        elif kind == _OVERRIDE:
            active.append(((owner, resource), first, second, third))
        else:
            defaults[resource] = first
    applied = {**limits, **overrides.latest(active)}
    return PathState([owner for _, owner in sorted(distances)], counters, applied, defaults)


@functools.cache
def _statement(dialect: Dialect) -> sa.CompoundSelect[Any]:
    path = projects.path_cte(for_limits=True)
    usage, limit, default, override = quota_usages.c, project_limits.c, limit_defaults.c, limit_overrides.c

    def on_path(owner: sa.ColumnElement[str], rows: sa.Select[Any]) -> sa.Select[Any]:
        return rows.where(dialect.is_on_path(owner, sa.select(path.c.project_id)))

    return sa.union_all(
        _columns(_PATH, path.c.project_id, None, path.c.distance),
        on_path(
            usage.project_id,
            _columns(_USAGE, usage.project_id, usage.resource, usage.used, usage.reserved, usage.subtree),
        ),
        on_path(limit.project_id, _columns(_LIMIT, limit.project_id, limit.resource, limit.most)),
        on_path(
            override.project_id,
            _columns(
                _OVERRIDE, override.project_id, override.resource, override.most, override.generation, override.ordinal
            ).where(overrides.IS_ACTIVE),
        ),
        _columns(_DEFAULT, None, default.resource, default.most),
    )


def _columns(
    kind: str,
    project_id: sa.ColumnElement[str] | None,
    resource: sa.ColumnElement[str] | None,
    *amounts: sa.ColumnElement[int],
) -> sa.Select[Any]:
    """One branch of the union. A column has the same type in all branches."""
    name = quota_usages.c.project_id.type
    return sa.select(
        sa.literal_column(f"'{kind}'").label("kind"),
        sa.cast(sa.null(), name) if project_id is None else project_id,
        sa.cast(sa.null(), name) if resource is None else resource,
        *(sa.cast(amount, sa.BigInteger) for amount in amounts),
        *(sa.cast(sa.null(), sa.BigInteger) for _ in range(3 - len(amounts))),
    )
