# SPDX-License-Identifier: Apache-2.0
"""Reads limits, projects and the endpoint from Keystone's API: one method for each request. Caches nothing.

It uses keystoneauth1 and not openstacksdk, because openstacksdk does not report that Keystone has cut a list short
(``truncated``), so that limits would be missing without an error; it has no call for the enforcement model; and it
creates an object for each limit, which takes 60 times as long for a list of 20,000 limits (decision record 0036).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from keystoneauth1 import exceptions as ksa
from keystoneauth1.adapter import Adapter
from oslo_config import cfg

from cyborg_quota import forks
from cyborg_quota.limits import keystone_session
from cyborg_quota.limits.cache import LimitSourceError
from cyborg_quota.limits.keystone_session import GROUP, ROLE_HINT, endpoint_option

P = ParamSpec("P")
R = TypeVar("R")

_SEES_ALL_ROLES: Final = frozenset({"admin", "service"})
"""The roles to which Keystone lists the limits of all projects.

To a token without one of them, and without system scope, Keystone lists the limits of the token's project only, and
gives no error.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """The service and region whose limits are read, as Keystone's IDs."""

    service_id: str
    region_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredLimit:
    """The default limit of a resource, and the region for which it is registered (None: for all regions)."""

    default: int
    region_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """A project of Keystone. ``domain_id`` None: it is a domain itself."""

    domain_id: str | None


_PAGE_SIZE: Final = 1000

Limits = Mapping[tuple[str, str | None], int]
"""The limits of one project or domain, by (Keystone's resource name, region ID)."""


def _reads(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Convert the errors that a response of unexpected structure causes to LimitSourceError."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def read(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise LimitSourceError(
                    f"the response to the request for {what} is not from Keystone's API; check [{GROUP}] auth_url",
                    is_total=False,
                ) from error

        return read

    return decorate


class KeystoneClient:
    """Thread-safe, but not shared by processes. All methods raise LimitSourceError. The constructor does no I/O."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connect: Callable[[cfg.ConfigOpts], Adapter] = keystone_session.make_adapter,
    ) -> None:
        self._conf = conf
        self._connect = connect
        self._lock = threading.Lock()
        self._adapter: Adapter | None = None
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Connect again: a connection must not be shared by two processes."""
        self._lock = threading.Lock()
        self._adapter = None

    @_reads("the endpoint")
    def service(self) -> Service:
        """The service and region of the endpoint that [oslo_limit] identifies."""
        endpoint_id = endpoint_option(self._conf, "id")
        if endpoint_id:
            body = self._get(f"/endpoints/{_quoted(endpoint_id)}")
            if body is None:
                raise LimitSourceError(
                    f"Keystone has no endpoint {endpoint_id} ([{GROUP}] endpoint_id)", is_total=False
                )
            service = _service(body["endpoint"])
        else:
            service = self._service_by_type()
        self._check_sees_all()
        return service

    def _service_by_type(self) -> Service:
        query = {name: endpoint_option(self._conf, f"service_{name}") for name in ("type", "name")}
        service = _only(self._list("services", query), f"services with {_format_query(query)}")
        interface = (endpoint_option(self._conf, "interface") or "public").removesuffix("URL")
        region_id = endpoint_option(self._conf, "region_name")
        endpoints = self._list(
            "endpoints", {"service_id": service["id"], "interface": interface, "region_id": region_id}
        )
        criteria = {**query, "interface": interface, "region": region_id}
        return _service(_only(endpoints, f"endpoints with {_format_query(criteria)}"))

    @_reads("the enforcement model")
    def model(self) -> str:
        """The name of the enforcement model, such as flat or strict_two_level."""
        body = self._get("/limits/model")
        return "" if body is None else str(body["model"]["name"])

    @_reads("the registered limits")
    def registered(self, service: Service) -> dict[str, RegisteredLimit]:
        """The registered limits of the service, by Keystone's resource name.

        A registered limit of the region takes precedence over one of all regions.
        """
        registered: dict[str, RegisteredLimit] = {}
        for entry in self._list("registered_limits", {"service_id": service.service_id}):
            region_id = entry.get("region_id")
            name = entry["resource_name"]
            if region_id == service.region_id or (region_id is None and name not in registered):
                registered[name] = RegisteredLimit(int(entry["default_limit"]), region_id)
        return registered

    def limits_of_project(self, service: Service, project_id: str) -> Limits:
        """The limits that are set for one project; empty if Keystone does not know it."""
        return self._limits(service, project_id=project_id).get(project_id, {})

    def limits_of_domain(self, service: Service, domain_id: str) -> Limits:
        """The limits that are set for one domain."""
        return self._limits(service, domain_id=domain_id).get(domain_id, {})

    def all_limits(self, service: Service) -> Mapping[str, Limits]:
        """The limits that are set for each project and domain, by its ID. One request."""
        return self._limits(service)

    @_reads("limits")
    def _limits(self, service: Service, **query: str) -> dict[str, dict[tuple[str, str | None], int]]:
        limits: dict[str, dict[tuple[str, str | None], int]] = {}
        for entry in self._list("limits", {"service_id": service.service_id, **query}):
            holder = entry.get("project_id") or entry["domain_id"]
            key = (entry["resource_name"], entry.get("region_id"))
            limits.setdefault(holder, {})[key] = int(entry["resource_limit"])
        return limits

    @_reads("a project")
    def project(self, project_id: str) -> Project | None:
        """A project; None if Keystone does not know it."""
        body = self._get(f"/projects/{_quoted(project_id)}")
        if body is None:
            return None
        project = body["project"]
        return Project(None if project.get("is_domain") else project["domain_id"])

    @_reads("the projects")
    def parents(self, *, is_two_level: bool, progress: Callable[[int], None]) -> dict[str, str | None]:
        """The parent of each project; None for a domain. ``is_two_level``: the domain of each project.

        Reads pages of _PAGE_SIZE. A Keystone without pages answers each request with its whole list.
        """
        parents: dict[str, str | None] = {}
        for query in ({}, {"is_domain": "true"}):
            page: list[dict[str, Any]] = []
            is_last = False
            while not is_last:
                marker = {"marker": page[-1]["id"]} if page else {}
                body = self._get("/projects", {**query, **marker, "limit": str(_PAGE_SIZE)}) or {}
                page = body["projects"]
                new = [project for project in page if project["id"] not in parents]
                if body.get("truncated") and page and not new:
                    raise _truncated("projects")
                for project in new:
                    parent_id = project["domain_id" if is_two_level else "parent_id"]
                    parents[project["id"]] = None if project.get("is_domain") else parent_id
                progress(len(new))
                is_last = not new or (len(page) < _PAGE_SIZE and not body.get("truncated"))
        return parents

    # --- HTTP requests ---

    def _list(self, what: str, query: Mapping[str, str | None]) -> list[dict[str, Any]]:
        body = self._get(f"/{what}", {name: value for name, value in query.items() if value is not None})
        if body is None or body.get("truncated"):
            raise _truncated(what)
        return body[what]  # type: ignore[no-any-return]

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The body of the response; None for status 404."""
        try:
            response = self._connected().get(path, params=query or {}, raise_exc=False)
        except ksa.ClientException as error:
            raise keystone_session.failure(error, keystone_session.auth_url(self._conf)) from None
        status = response.status_code
        if status == 404:
            return None
        if status == 403:
            raise LimitSourceError(
                f"the user of [{GROUP}] may not read {path} in Keystone. {ROLE_HINT}", is_total=False
            )
        if status == 401:
            raise keystone_session.failure(ksa.Unauthorized(), keystone_session.auth_url(self._conf))
        if status != 200:
            raise LimitSourceError(f"Keystone returned status {status} for {path}", is_total=status in (502, 503, 504))
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise LimitSourceError(
                f"the response to {path} is not JSON; check that [{GROUP}] auth_url is the URL of Keystone",
                is_total=False,
            )
        return body

    def _connected(self) -> Adapter:
        with self._lock:
            if self._adapter is None:
                self._adapter = self._connect(self._conf)
            return self._adapter

    def _check_sees_all(self) -> None:
        adapter = self._connected()
        get_access = getattr(adapter.auth, "get_access", None)
        if get_access is None:
            return  # the auth plugin has no token with roles
        try:
            access = get_access(adapter.session)
        except ksa.ClientException as error:
            raise keystone_session.failure(error, keystone_session.auth_url(self._conf)) from None
        if not (getattr(access, "system_scoped", False) or _SEES_ALL_ROLES & set(access.role_names)):
            raise LimitSourceError(
                f"the user of [{GROUP}] can read the limits of its own project only. {ROLE_HINT}", is_total=False
            )


def _truncated(what: str) -> LimitSourceError:
    return LimitSourceError(
        f"Keystone truncates its list of {what}; raise list_limit in its configuration", is_total=False
    )


def _service(endpoint: Mapping[str, Any]) -> Service:
    return Service(endpoint["service_id"], endpoint.get("region_id"))


def _only(entries: list[dict[str, Any]], what: str) -> dict[str, Any]:
    if len(entries) != 1:
        raise LimitSourceError(
            f"Keystone has {len(entries)} {what}, not exactly one; check [{GROUP}] endpoint_id and endpoint_*",
            is_total=False,
        )
    return entries[0]


def _format_query(query: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in query.items() if value is not None)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
