# SPDX-License-Identifier: Apache-2.0
"""The cached paths from projects to their roots. A charge with a stale path fails: see db/projects.py, rule 1."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db import clock, path_state, usages
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.path_state import ProjectPath
from cyborg_quota.db.prepared import chunks
from cyborg_quota.types import MICROSECONDS, ResourceKey, UsageKey
from cyborg_quota.types.limits import RowBound

T = TypeVar("T")
ReadBounds = Callable[[Connection, Collection[str], Collection[str]], tuple[Sequence[RowBound], int | None]]

_MAX_CACHED_PATHS: Final = 20_000
"""The maximum number of cached paths. When it is reached, the cache is cleared."""

_MAX_ATTEMPTS: Final = 20


def until_stable(attempt: Callable[[], T | None]) -> T:
    """The first result of ``attempt`` that is not None: the tree has not changed. Raises DatabaseUnavailable."""
    began = time.monotonic()
    for _ in range(_MAX_ATTEMPTS):
        try:
            result = attempt()
        except DuplicateEntry:
            continue  # a project to be added was charged for the first time meanwhile, which added it
        if result is not None:
            return result
    raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)


@dataclasses.dataclass(eq=False)
class PathCache:
    """Paths by project. ``get`` creates the usage rows that a path lacks, so that it can be charged.

    ``read_bounds``: the driver sets it to Enforcers.bounds.
    """

    _database: Database
    read_bounds: ReadBounds = dataclasses.field(default=lambda _connection, _project_ids, _resources: ((), None))
    _cached_paths: dict[str, ProjectPath] = dataclasses.field(default_factory=dict)

    def get(self, project_id: str, keys: Collection[ResourceKey], *, is_again: bool = False) -> ProjectPath:
        """The path of ``project_id``, with usage rows for all ``keys``. Raises DatabaseUnavailable.

        ``is_again``: read it again, with what any node of a cluster has committed.
        """
        path = None if is_again else self._cached_paths.get(project_id)
        read = self._database.read_synced if is_again else self._database.read
        began = time.monotonic()
        if path is not None and path.limits is not None and began < path.fresh_until and not path.missing(keys):
            return path
        for _ in range(_MAX_ATTEMPTS):
            path = read(lambda connection: self.read(connection, project_id, keys, is_again=True))
            if not path.missing(keys):
                return path
            self._database.write(functools.partial(path_state.make_rows, project_id=project_id, keys=keys))
            self.forget(project_id)
        raise exceptions.DatabaseUnavailable("the project tree keeps changing", time.monotonic() - began)

    def read(
        self, connection: Connection, project_id: str, keys: Collection[ResourceKey], *, is_again: bool = False
    ) -> ProjectPath:
        """The path from the cache or the database, for use inside a transaction. Usage rows may be missing.

        ``is_again``: from the database.
        """
        known = self._cached_paths.get(project_id)
        if known is not None and not is_again and not known.missing(keys):
            return known
        wanted = set(keys) | (set(known.rows) if known is not None else set())
        path = path_state.read_path(connection, project_id, wanted)
        # (After the generations: a later change of a bound renews them, so that the charge fails. See charges.py.)
        if path.limits is not None and path.limits.bounded:
            bounds, until = self.read_bounds(connection, path.project_ids, {key.resource for key in wanted})
            path.row_bounds = {bound.key: bound for bound in bounds if bound.refuses}
            ends = path.until, None if until is None else clock.EPOCH_MICROSECONDS + until * MICROSECONDS
            path.until = min((end for end in ends if end is not None), default=None)
        if len(self._cached_paths) >= _MAX_CACHED_PATHS:
            self._cached_paths.clear()
        self._cached_paths[project_id] = path
        return path

    def read_many(self, connection: Connection, keys: Collection[UsageKey]) -> None:
        """Cache the missing paths of these usage rows: one statement for MAX_PROJECTS projects."""
        missing = [key for key in keys if self.known(key) is None]
        if not missing:
            return
        unknown = sorted({key.project_id for key in missing})
        if len(self._cached_paths) + len(unknown) > _MAX_CACHED_PATHS:
            self._cached_paths.clear()
        # (Looked up once: another thread may forget a path at any time.)
        known = [path for path in map(self._cached_paths.get, unknown) if path is not None]
        counted = {key.resource_key for key in missing}.union(*[path.rows for path in known])
        for names in chunks(unknown, path_state.MAX_PROJECTS):
            self._cached_paths.update(path_state.read_paths(connection, names, counted))

    def known(self, key: UsageKey) -> tuple[usages.Node, ...] | None:
        """The usage rows to charge, from the project to its root; None if they are not cached."""
        path = self._cached_paths.get(key.project_id)
        return None if path is None else path.charged.get(key[1:])  # type: ignore[call-overload]

    def forget(self, project_id: str) -> None:
        """Remove the path of this project from the cache."""
        self._cached_paths.pop(project_id, None)

    def forget_all(self) -> None:
        """Clear the cache."""
        self._cached_paths.clear()
