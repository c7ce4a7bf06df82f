# SPDX-License-Identifier: Apache-2.0
"""The paths that charges walk, kept in memory. A stale one cannot charge: see db/projects.py, rule 1."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import many, projects, usages
from cyborg_quota.db.database import Connection, Database

_MAX_CACHED_PATHS: Final = 20_000
"""So many projects' paths are remembered; beyond that, all are forgotten and read again."""

_MAX_ATTEMPTS: Final = 20


class PathCache:
    """Every path it hands out for a charge has all its usage rows: what is missing is made first."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached_paths: dict[str, projects.ProjectPath] = {}

    def get(self, project_id: str, resources: Collection[str]) -> projects.ProjectPath:
        """The way of ``project_id`` with rows for all ``resources``."""
        path = self._cached_paths.get(project_id)
        if path is not None and not path.missing(resources):
            return path
        began = time.monotonic()
        for _ in range(_MAX_ATTEMPTS):
            path = self._database.read(lambda connection: self.read(connection, project_id, resources))
            if not path.missing(resources):
                return path
            self._make(project_id, resources)
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def read(self, connection: Connection, project_id: str, resources: Collection[str]) -> projects.ProjectPath:
        """As it is known, or as it is now; rows may be missing. For use inside a transaction."""
        known = self._cached_paths.get(project_id)
        if known is not None and not known.missing(resources):
            return known
        wanted = set(resources) | (set(known.resources) if known is not None else set())
        path = projects.read_path(connection, project_id, wanted)
        if len(self._cached_paths) >= _MAX_CACHED_PATHS:
            self._cached_paths.clear()
        self._cached_paths[project_id] = path
        return path

    def read_many(self, connection: Connection, keys: Collection[tuple[str, str]]) -> None:
        """Come to know the paths of these (project_id, resource), where many can be read at once: those of roots."""
        unknown = {project_id for project_id, resource in keys if self.known(project_id, resource) is None}
        if unknown:
            if len(self._cached_paths) + len(unknown) > _MAX_CACHED_PATHS:
                self._cached_paths.clear()
            self._cached_paths.update(many.read_roots(connection, unknown))

    def known(self, project_id: str, resource: str) -> tuple[usages.Node, ...] | None:
        """The rows to charge, leaf first, if they are remembered."""
        path = self._cached_paths.get(project_id)
        return None if path is None else path.nodes(resource)

    def forget(self, project_id: str) -> None:
        """Read this project's path again the next time."""
        self._cached_paths.pop(project_id, None)

    def forget_all(self) -> None:
        """Read every path again."""
        self._cached_paths.clear()

    def _make(self, project_id: str, resources: Collection[str]) -> None:
        self._database.write(
            lambda connection: projects.make_rows(
                connection, projects.read_path(connection, project_id, resources), resources
            )
        )
        self.forget(project_id)
