# SPDX-License-Identifier: Apache-2.0
"""Looks up projects and domains in Keystone. For programs that people call, not for a reserve."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.limits.sources import keystone
from cyborg_quota.limits.sources.cache import LimitSourceError

if TYPE_CHECKING:
    from cyborg_quota.limits.sources.keystone_client import KeystoneClient, Project

_MAX_SINGLE_REQUESTS: Final = 20
"""For more projects than these, the list of all projects is cheaper than a request for each."""


@contextlib.contextmanager
def _lookup() -> Iterator[None]:
    """Convert LimitSourceError to ProjectLookupFailed."""
    try:
        yield
    except LimitSourceError as error:
        raise exceptions.ProjectLookupFailed(error.reason) from None


def read_parents(conf: cfg.ConfigOpts) -> dict[str, str | None]:
    """The parent of each project of Keystone; None for a domain. [oslo_limit] has the credentials.

    Raises ConfigurationError, ProjectLookupFailed.
    """
    client = keystone.make_client(conf, "The projects of Keystone need")
    with _lookup():
        return {project.project_id: project.parent_id for project in client.projects()}


def make_directory(conf: cfg.ConfigOpts, within_seconds: float | None = None) -> ProjectDirectory:
    """The projects of Keystone. No I/O. Raises ConfigurationError.

    ``within_seconds``: all requests of the directory together end within this time from now.
    """
    return ProjectDirectory(
        keystone.make_client(conf, "[oslo_limit] is set, and names of projects need", within_seconds)
    )


@dataclasses.dataclass(eq=False)
class ProjectDirectory:
    """The projects and domains of one Keystone. Every method raises ProjectLookupFailed."""

    _client: KeystoneClient
    _names: dict[str, str] | None = None

    @_lookup()
    def find(self, text: str) -> Project:
        """The project with this id or name; else the domain with this name. An id takes precedence over a name.

        Raises UnknownProject, AmbiguousProject.
        """
        by_id = self._client.project(text)
        if by_id is not None:
            return by_id
        projects = self._client.named(text) or self._client.named(text, is_domain="true")
        if not projects:
            raise exceptions.UnknownProject(text)
        if len(projects) > 1:
            raise exceptions.AmbiguousProject(text, [(project.project_id, project.domain_id) for project in projects])
        return projects[0]

    @_lookup()
    def get(self, project_id: str) -> Project | None:
        """The project or domain with this id; None if Keystone does not know it."""
        return self._client.project(project_id)

    @_lookup()
    def names(self, project_ids: Collection[str]) -> dict[str, str]:
        """The names of these projects and domains by id, without those that Keystone does not know."""
        wanted = set(project_ids)
        if len(wanted) <= _MAX_SINGLE_REQUESTS:
            projects = [self._client.project(project_id) for project_id in sorted(wanted)]
            return {project.project_id: project.name for project in projects if project is not None}
        listed = self._listed()
        return {project_id: listed[project_id] for project_id in wanted & listed.keys()}

    @_lookup()
    def unknown(self, project_ids: Collection[str]) -> list[str]:
        """Those of these ids that neither a project nor a domain has, sorted.

        An id that is not in the list of all projects is looked up alone: the project may be new.
        """
        wanted = set(project_ids)
        if self._names is not None or len(wanted) > _MAX_SINGLE_REQUESTS:
            wanted -= self._listed().keys()
        return [project_id for project_id in sorted(wanted) if self._client.project(project_id) is None]

    def _listed(self) -> dict[str, str]:
        """The names of all projects and domains by id. Read once."""
        if self._names is None:
            self._names = {project.project_id: project.name for project in self._client.projects()}
        return self._names
