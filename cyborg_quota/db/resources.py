# SPDX-License-Identifier: Apache-2.0
"""The table resources: what is counted besides the resources of the configuration, and what describes both."""

from __future__ import annotations

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects
from cyborg_quota.db.models import resources
from cyborg_quota.types import Resource

_row = resources.c


def read(connection: sa.Connection) -> dict[str, Resource]:
    """All resources of the table, by name."""
    rows = connection.execute(sa.select(_row.name, _row.description, _row.unit))
    return {row.name: Resource(*row) for row in rows}


def store(connection: sa.Connection, resource: Resource) -> None:
    """Add a resource, or change its description and its unit. One that is None stays as it is."""
    new = {"created_at": clock.utc_now(), "name": sa.bindparam("b_name", type_=_row.name.type)}
    dialects.of(connection).insert_or_ignore(connection, resources, new, {"b_name": resource.name})
    changes = {"description": resource.description, "unit": resource.unit}
    given = {column: value for column, value in changes.items() if value is not None}
    if given:
        change = sa.update(resources).where(_row.name == resource.name)
        connection.execute(change.values(updated_at=clock.utc_now(), **given))
