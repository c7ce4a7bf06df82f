# SPDX-License-Identifier: Apache-2.0
"""Pages of tables that are sorted by two columns, such as project and resource. The database selects the rows::

    SELECT ... WHERE project_id >= :project AND (project_id > :project OR resource > :resource)
    ORDER BY project_id, resource LIMIT :limit

The first condition lets each database use the unique index.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.types import Marker, Page


def of_rows(
    connection: sa.Connection,
    query: sa.Select[Any],
    source: sa.FromClause,
    columns: tuple[sa.ColumnElement[str], sa.ColumnElement[str]],
    page: Page,
    *,
    condition: sa.ColumnElement[bool] | None = None,
) -> sa.Select[Any]:
    """Restrict ``query`` to a page of ``source``, sorted by its owner and resource, ``columns``. Raises MarkerNotFound.

    The owner is a project or a provider. ``condition``: only the rows with it, of which each key has one.
    """
    owner, resource = columns
    query = query.order_by(owner, resource).limit(page.limit).where(*given((resource, page.resource)))
    query = query if condition is None else query.where(condition)
    if page.after is None or page.after[0] is None:
        return query
    after_owner, after_resource = page.after
    is_marker = sa.and_(owner == after_owner, sa.true() if condition is None else condition)
    if after_resource is not None:
        is_marker = sa.and_(is_marker, resource == after_resource)
    require(connection, source, is_marker, page.after)
    return query.where(*follows(columns, page.after))


def follows(
    columns: tuple[sa.ColumnElement[str], sa.ColumnElement[str]], position: Marker | None
) -> list[sa.ColumnElement[bool]]:
    """The conditions of the rows after this position, which need not be a row; None: of all rows.

    ``columns``: the owner and the resource, by which the rows are sorted.
    """
    owner, resource = columns
    after_owner, after_resource = position or (None, None)
    if after_owner is None:
        return []
    if after_resource is None:
        return [owner > after_owner]
    return [owner >= after_owner, sa.or_(owner > after_owner, resource > after_resource)]


def require(
    connection: sa.Connection, source: sa.FromClause, is_marker: sa.ColumnElement[bool], marker: tuple[str | None, ...]
) -> None:
    """Raise MarkerNotFound if no row of ``source`` is the marker."""
    if not exists(connection, is_marker, source=source):
        raise exceptions.MarkerNotFound(marker)


def exists(connection: sa.Connection, *conditions: sa.ColumnElement[bool], source: sa.FromClause | None = None) -> bool:
    """Whether a row of the tables that they name fulfils these conditions."""
    query = sa.select(sa.literal(1)).where(*conditions).limit(1)
    return connection.execute(query if source is None else query.select_from(source)).first() is not None


def given(*wanted: tuple[sa.ColumnElement[Any], object]) -> list[sa.ColumnElement[bool]]:
    """The conditions that these columns have these values; without those whose value is None."""
    return [column == value for column, value in wanted if value is not None]


def among(*wanted: tuple[sa.ColumnElement[Any], Iterable[Any] | None]) -> list[sa.ColumnElement[bool]]:
    """The conditions that each column has one of its values. Values None: no condition for this column."""
    return [column.in_(sorted(values)) for column, values in wanted if values is not None]


def first_projects(
    column: sa.ColumnElement[str], after: str, count: int, condition: sa.ColumnElement[bool] | None = None
) -> sa.Select[Any]:
    """The query for the first ``count`` different values greater than ``after`` of a column of project ids, sorted."""
    query = sa.select(column).where(column > after, sa.true() if condition is None else condition)
    return query.distinct().order_by(column).limit(count)
