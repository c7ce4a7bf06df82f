# SPDX-License-Identifier: Apache-2.0
"""Looks up projects and domains in Keystone with openstacksdk. For programs that people call, not for a reserve.

The import takes about a second, so the limit driver does not use this module.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, TypeVar

from keystoneauth1 import exceptions as ksa
from openstack import connection
from openstack import exceptions as sdk
from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.limits import keystone_session
from cyborg_quota.limits.keystone_session import GROUP, ROLE_HINT

T = TypeVar("T")

MOST_LISTED: Final = 500_000
"""The maximum number of projects whose ids and names are kept in memory. Projects beyond it cost one request each."""

_MAX_SINGLE_REQUESTS: Final = 20
"""For more projects than these, the list of all projects is cheaper than a request for each."""

_PAGE_SIZE: Final = 1000
_ID: Final = re.compile(r"(?!\.+$)[\w.-]{1,64}", re.ASCII)
"""Any other text cannot be an id of Keystone, and must not become a part of a path."""


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """A project or a domain of Keystone. ``domain_id`` is None for a domain."""

    project_id: str
    name: str
    domain_id: str | None


class ProjectDirectory:
    """The projects and domains of one Keystone. Every method raises ProjectLookupFailed. Creating one does no I/O."""

    def __init__(self, connect: Callable[[], Any], url: str | None) -> None:
        self._connect = connect
        self._connected: Any = None
        self._url = url
        self._listed: dict[str, str] | None = None

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, within_seconds: float | None = None) -> ProjectDirectory:
        """Connect with the credentials of [oslo_limit], as make_adapter does. Raises ConfigurationError."""
        keystone_session.register_opts(conf)
        keystone_session.check_credentials(conf)
        adapter = keystone_session.make_adapter(conf, within_seconds)

        def connect() -> Any:
            made = connection.Connection(
                session=adapter.session,
                identity_api_version="3",
                identity_endpoint_override=adapter.endpoint_override,
                identity_interface=adapter.interface,
                identity_service_type=adapter.service_type,
                identity_service_name=adapter.service_name,
                region_name=adapter.region_name,
            )
            return made.identity  # which authenticates

        return cls(connect, keystone_session.auth_url(conf))

    def get(self, project_id: str) -> Project | None:
        """The project or domain with this id; None if there is none."""
        if not _ID.fullmatch(project_id):
            return None
        return self._ask(lambda identity: _project(identity.get_project(project_id)), if_missing=lambda: None)

    def find(self, text: str, domain: str | None = None) -> Project:
        """The project with this id or name; else the domain with this name. An id takes precedence over a name.

        ``domain``: the id or the name of the project's domain. Raises UnknownProject, AmbiguousProject.
        """
        domain_id = None if domain is None else self._domain_id(domain)
        by_id = self.get(text)
        if by_id is not None and domain_id in (None, by_id.domain_id):
            return by_id
        query = {} if domain_id is None else {"domain_id": domain_id}
        found = self._named(text, **query)
        if not found and domain_id is None:
            found = self._named(text, is_domain=True)
        if not found:
            raise exceptions.UnknownProject(text, domain)
        if len(found) > 1:
            raise exceptions.AmbiguousProject(text, [(one.project_id, one.domain_id) for one in found])
        return found[0]

    def names(self, project_ids: Collection[str]) -> dict[str, str]:
        """The names of these projects and domains by id, without those that Keystone does not know."""
        wanted = set(project_ids)
        if len(wanted) <= _MAX_SINGLE_REQUESTS:
            found = [self.get(project_id) for project_id in sorted(wanted)]
            return {project.project_id: project.name for project in found if project is not None}
        listed = self._all_names()
        return {project_id: listed[project_id] for project_id in wanted & listed.keys()}

    def unknown(self, project_ids: Collection[str]) -> list[str]:
        """Those of these ids that neither a project nor a domain has, sorted.

        A list that Keystone cuts short, or that misses a new project, does no harm: an id that is not in it is looked
        up alone.
        """
        wanted = set(project_ids)
        if self._listed is not None or len(wanted) > _MAX_SINGLE_REQUESTS:
            wanted -= self._all_names().keys()
        return [project_id for project_id in sorted(wanted) if self.get(project_id) is None]

    def _domain_id(self, domain: str) -> str:
        by_id = self.get(domain)
        found = [by_id] if by_id is not None and by_id.domain_id is None else self._named(domain, is_domain=True)
        if not found:
            raise exceptions.UnknownProject(domain, None, what="domain")
        return found[0].project_id

    def _named(self, name: str, **query: Any) -> list[Project]:
        """The projects, or domains, with this name. Keystone answers 400 to a text that cannot be a name."""
        return self._ask(
            lambda identity: [_project(one) for one in identity.projects(name=name, **query)], if_missing=list
        )

    def _all_names(self) -> dict[str, str]:
        """The names of all projects and domains by id. Read once."""
        if self._listed is None:
            listed: dict[str, str] = {}
            for query in ({}, {"is_domain": True}):
                for page in self._pages(**query):
                    if page[0].id in listed or len(listed) >= MOST_LISTED:
                        break  # a Keystone that has no pages repeats its list
                    listed.update((str(one.id), str(one.name)) for one in page)
            self._listed = listed
        return self._listed

    def _pages(self, **query: Any) -> Iterator[list[Any]]:
        """The list of projects in pages. A Keystone without pages sends all of them in the first."""
        page = self._page(**query)
        while page:
            yield page
            if len(page) != _PAGE_SIZE:
                return
            page = self._page(marker=page[-1].id, **query)

    def _page(self, **query: Any) -> list[Any]:
        return self._ask(lambda identity: list(identity.projects(paginated=False, limit=_PAGE_SIZE, **query)))

    def _ask(self, request: Callable[[Any], T], if_missing: Callable[[], T] | None = None) -> T:
        """The result of a request, or ``if_missing`` if Keystone answers 404 or 400. Raises ProjectLookupFailed."""
        try:
            if self._connected is None:
                self._connected = self._connect()
            return request(self._connected)
        except (sdk.NotFoundException, sdk.BadRequestException) as error:
            if if_missing is not None:
                return if_missing()
            reason = f"Keystone answered {error.status_code}"
        except sdk.ForbiddenException:
            reason = f"the user of [{GROUP}] may not read projects in Keystone. {ROLE_HINT}"
        except ksa.ClientException as error:
            reason = keystone_session.failure(error, self._url).reason
        except sdk.HttpException as error:
            place = f"Keystone at {self._url}" if self._url else "Keystone"
            reason = f"{place} answered {error.status_code}"
        except (sdk.SDKException, LookupError, TypeError, ValueError, AttributeError):
            reason = f"the response is not that of the Keystone API; is [{GROUP}] auth_url right?"
        raise exceptions.ProjectLookupFailed(reason)


def _project(found: Any) -> Project:
    return Project(str(found.id), str(found.name), None if found.is_domain else str(found.domain_id))
