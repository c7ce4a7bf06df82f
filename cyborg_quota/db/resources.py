# SPDX-License-Identifier: Apache-2.0
"""The table resources: what is counted besides the resources of the configuration, and what describes both."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.models import resources
from cyborg_quota.types import Resource

_row = resources.c


@dataclasses.dataclass(frozen=True)
class StoredResources:
    """Reads and stores resources."""

    _database: Database

    def read(self) -> dict[str, Resource]:
        """All stored resources, by name, also those that another node of a cluster has stored."""
        query = sa.select(_row.name, _row.description, _row.unit)
        rows = self._database.read_synced(lambda connection: connection.execute(query).all())
        return {row.name: Resource(*row) for row in rows}

    def store(self, resource: Resource) -> None:
        """Add a resource, or change its description and its unit. One that is None stays as it is."""
        new = {"created_at": clock.utc_now(), "name": sa.bindparam("b_name", type_=_row.name.type)}
        changes = {"description": resource.description, "unit": resource.unit}
        given = {column: value for column, value in changes.items() if value is not None}

        def work(connection: Connection) -> None:
            dialects.of(connection).insert_or_ignore(connection, resources, new, {"b_name": resource.name})
            if given:
                change = sa.update(resources).where(_row.name == resource.name)
                connection.execute(change.values(updated_at=clock.utc_now(), **given))

        self._database.write(work)
