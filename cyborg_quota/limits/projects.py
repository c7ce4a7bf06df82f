# SPDX-License-Identifier: Apache-2.0
"""Reads which projects the ledger knows, their places in the tree, and what they hold; under every limit driver."""

from __future__ import annotations

from collections.abc import Collection

from cyborg_quota.db import projects
from cyborg_quota.db.database import Database
from cyborg_quota.limits import holdings
from cyborg_quota.types.limits import Holding


class ProjectReader:
    """Reads projects."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._untimed = database.untimed

    def parent_of(self, project_id: str) -> str | None:
        """The stored parent; None for a root and for an unknown project."""
        return self._database.read(lambda connection: projects.parent_of(connection, project_id))

    def list_children(self, project_id: str, after: str, count: int) -> list[str]:
        """The first ``count`` children with an id greater than ``after``, sorted."""
        return self._database.read(lambda connection: projects.list_children(connection, project_id, after, count))

    def list_edges(self, limit: int | None, after: str | None) -> list[tuple[str, str | None]]:
        """(project_id, parent_id) of at most ``limit`` projects after ``after``. Raises MarkerNotFound."""
        return self._untimed.read(lambda connection: projects.edges_page(connection, limit, after))

    def is_known(self, project_id: str) -> bool:
        """Whether the ledger has the project: in the tree, or with usage or a limit."""
        return self._database.read(lambda connection: holdings.is_known(connection, project_id))

    def list_holders(self, after: str, count: int) -> list[str]:
        """The first ``count`` projects with an id greater than ``after`` that have usage or a limit, sorted."""
        return self._untimed.read(lambda connection: holdings.holders(connection, after, count))

    def list_holdings(self, project_ids: Collection[str]) -> list[Holding]:
        """The usage and the limits of these projects."""
        return self._database.read(lambda connection: holdings.read(connection, project_ids))
