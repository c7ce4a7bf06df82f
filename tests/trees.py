# SPDX-License-Identifier: Apache-2.0
"""Makes trees of projects, for tests."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from cyborg_quota.db import projects
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.tree import tables as moves

CERN: dict[str, str | None] = {
    "atlas": None,
    "physics": "atlas",
    "operations": "atlas",
    "higgs": "physics",
    "simulation": "physics",
    "workflow": "operations",
    "web": "operations",
}
"""The parents in the example of "Nested quota models"."""


def plant(database: Database, parents: Mapping[str, str | None]) -> None:
    """Add these projects, parents first, and move each below its parent."""
    for project_id, parent_id in parents.items():
        database.write(lambda connection, name=project_id: projects.ensure(connection, name))  # type: ignore[misc]
        if parent_id is not None:
            move(database, project_id, parent_id)


def move(database: Database, project_id: str, parent_id: str | None) -> None:
    """Move a project with its usage below another one."""
    database.write(lambda connection: place(connection, project_id, parent_id))


def place(connection: Connection, project_id: str, parent_id: str | None) -> None:
    """The same, in a transaction."""
    moves.set_parents(connection, {}, {project_id: parent_id})


def subtrees(connection: sa.Connection, resource: str) -> dict[str, int]:
    """Return the subtree counter of every project that has one for the resource."""
    query = sa.text("SELECT project_id, subtree FROM quota_usages WHERE resource = :r ORDER BY project_id")
    return {row.project_id: row.subtree for row in connection.execute(query, {"r": resource})}
