# SPDX-License-Identifier: Apache-2.0
"""Caches the paths from projects to their roots. A charge with a stale path fails: see db/projects.py, rule 1."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import many, projects, usages
from cyborg_quota.db.database import Connection, Database

_MAX_CACHED_PATHS: Final = 20_000
"""The maximum number of cached paths. When it is reached, the cache is cleared."""

_MAX_ATTEMPTS: Final = 20


class PathCache:
    """Paths by project. ``get`` creates the usage rows that a path lacks, so that it can be charged."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached_paths: dict[str, projects.ProjectPath] = {}

    def get(self, project_id: str, resources: Collection[str]) -> projects.ProjectPath:
        """The path of ``project_id``, with usage rows for all ``resources``. Raises DatabaseUnavailable."""
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
        """The path from the cache or the database, for use inside a transaction. Usage rows may be missing."""
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
        """Cache the missing paths of these (project_id, resource) pairs. Only paths of roots are read, in bulk."""
        unknown = {project_id for project_id, resource in keys if self.known(project_id, resource) is None}
        if unknown:
            if len(self._cached_paths) + len(unknown) > _MAX_CACHED_PATHS:
                self._cached_paths.clear()
            self._cached_paths.update(many.read_roots(connection, unknown))

    def known(self, project_id: str, resource: str) -> tuple[usages.Node, ...] | None:
        """The usage rows to charge, from the project to its root; None if they are not cached."""
        path = self._cached_paths.get(project_id)
        return None if path is None else path.nodes(resource)

    def forget(self, project_id: str) -> None:
        """Remove the path of this project from the cache."""
        self._cached_paths.pop(project_id, None)

    def forget_all(self) -> None:
        """Clear the cache."""
        self._cached_paths.clear()

    def _make(self, project_id: str, resources: Collection[str]) -> None:
        self._database.write(
            lambda connection: projects.make_rows(
                connection, projects.read_path(connection, project_id, resources), resources
            )
        )
        self.forget(project_id)
