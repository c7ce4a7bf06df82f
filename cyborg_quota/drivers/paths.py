# SPDX-License-Identifier: Apache-2.0
"""The paths that charges walk, kept in memory. A stale one cannot charge: see db/projects.py, rule 1."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import many, projects, usages
from cyborg_quota.db.api import Connection, Database

_MOST_WAYS: Final = 20_000
"""So many projects' paths are remembered; beyond that, all are forgotten and read again."""

_MOST_TRIES: Final = 20


class Paths:
    """Every path it hands out for a charge has all its usage rows: what is missing is made first."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ways: dict[str, projects.Way] = {}

    def get(self, project_id: str, resources: Collection[str]) -> projects.Way:
        """The way of ``project_id`` with rows for all ``resources``."""
        way = self._ways.get(project_id)
        if way is not None and not way.missing(resources):
            return way
        began = time.monotonic()
        for _ in range(_MOST_TRIES):
            way = self._database.read(lambda connection: self.read(connection, project_id, resources))
            if not way.missing(resources):
                return way
            self._make(project_id, resources)
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def read(self, connection: Connection, project_id: str, resources: Collection[str]) -> projects.Way:
        """As it is known, or as it is now; rows may be missing. For use inside a transaction."""
        known = self._ways.get(project_id)
        if known is not None and not known.missing(resources):
            return known
        wanted = set(resources) | (set(known.resources) if known is not None else set())
        way = projects.read_way(connection, project_id, wanted)
        if len(self._ways) >= _MOST_WAYS:
            self._ways.clear()
        self._ways[project_id] = way
        return way

    def read_many(self, connection: Connection, keys: Collection[tuple[str, str]]) -> None:
        """Come to know the paths of these (project_id, resource), where many can be read at once: those of roots."""
        unknown = {project_id for project_id, resource in keys if self.known(project_id, resource) is None}
        if unknown:
            if len(self._ways) + len(unknown) > _MOST_WAYS:
                self._ways.clear()
            self._ways.update(many.read_roots(connection, unknown))

    def known(self, project_id: str, resource: str) -> tuple[usages.Node, ...] | None:
        """The rows to charge, leaf first, if they are remembered."""
        way = self._ways.get(project_id)
        return None if way is None else way.nodes(resource)

    def forget(self, project_id: str) -> None:
        """Read this project's path again the next time."""
        self._ways.pop(project_id, None)

    def forget_all(self) -> None:
        """Read every path again."""
        self._ways.clear()

    def _make(self, project_id: str, resources: Collection[str]) -> None:
        self._database.write(
            lambda connection: projects.make_rows(
                connection, projects.read_way(connection, project_id, resources), resources
            )
        )
        self.forget(project_id)
