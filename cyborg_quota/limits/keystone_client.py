# SPDX-License-Identifier: Apache-2.0
"""What is read of Keystone, one method a question. Nothing is kept here but the session."""

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

from cyborg_quota.limits import keystone_session
from cyborg_quota.limits.cache import LimitSourceError
from cyborg_quota.limits.keystone_session import GROUP, ROLE_HINT, endpoint_option

P = ParamSpec("P")
R = TypeVar("R")

_SEES_ALL_ROLES: Final = frozenset({"admin", "service"})
"""To a token of neither, nor of the system, Keystone lists its own project's limits only, and does not say so."""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Whose limits are meant, by Keystone's ids."""

    service_id: str
    region_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredLimit:
    """The default of a resource, and the region it is registered for (None: for none in particular)."""

    default: int
    region_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """Where a project belongs. ``domain_id`` None: it is itself a domain."""

    domain_id: str | None


Limits = Mapping[tuple[str, str | None], int]
"""What was set for one project or domain, by (Keystone's resource name, region)."""


def _reads(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An answer of another shape than the API's is no answer."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def read(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise LimitSourceError(
                    f"what was asked for {what} and answered is not Keystone's API; is [{GROUP}] auth_url right?",
                    whole=False,
                ) from error

        return read

    return decorate


class KeystoneClient:
    """Shared by threads, not by processes. Every method raises Unanswered. Making one does no I/O."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connect: Callable[[cfg.ConfigOpts], Adapter] = keystone_session.make_adapter,
    ) -> None:
        self._conf = conf
        self._acquire = connect
        self._lock = threading.Lock()
        self._adapter: Adapter | None = None

    @_reads("the endpoint")
    def service(self) -> Service:
        """The service and region of the endpoint that [oslo_limit] names."""
        endpoint_id = endpoint_option(self._conf, "id")
        if endpoint_id:
            body = self._get(f"/endpoints/{_quoted(endpoint_id)}")
            if body is None:
                raise LimitSourceError(f"Keystone has no endpoint {endpoint_id} ([{GROUP}] endpoint_id)", whole=False)
            found = _service(body["endpoint"])
        else:
            found = self._service_by_type()
        self._check_sees_all()
        return found

    def _service_by_type(self) -> Service:
        wanted = {name: endpoint_option(self._conf, f"service_{name}") for name in ("type", "name")}
        service = _only(self._list("services", wanted), f"services with {_named(wanted)}")
        interface = (endpoint_option(self._conf, "interface") or "public").removesuffix("URL")
        region_id = endpoint_option(self._conf, "region_name")
        narrow = {"service_id": service["id"], "interface": interface, "region_id": region_id}
        shown = {**wanted, "interface": interface, "region": region_id}
        return _service(_only(self._list("endpoints", narrow), f"endpoints with {_named(shown)}"))

    @_reads("the enforcement model")
    def model(self) -> str:
        """The enforcement model: flat, strict_two_level."""
        body = self._get("/limits/model")
        return "" if body is None else str(body["model"]["name"])

    @_reads("the registered limits")
    def registered(self, service: Service) -> dict[str, RegisteredLimit]:
        """Every registered limit of the service, by Keystone's resource name. One of the region itself comes first."""
        found: dict[str, RegisteredLimit] = {}
        for one in self._list("registered_limits", {"service_id": service.service_id}):
            region_id = one.get("region_id")
            name = one["resource_name"]
            if region_id == service.region_id or (region_id is None and name not in found):
                found[name] = RegisteredLimit(int(one["default_limit"]), region_id)
        return found

    def limits_of_project(self, service: Service, project_id: str) -> Limits:
        """What was set for one project; nothing, for one that Keystone does not know."""
        return self._limits(service, project_id=project_id).get(project_id, {})

    def limits_of_domain(self, service: Service, domain_id: str) -> Limits:
        """What was set for one domain."""
        return self._limits(service, domain_id=domain_id).get(domain_id, {})

    def all_limits(self, service: Service) -> Mapping[str, Limits]:
        """What was set for each project and domain, by its id. One call."""
        return self._limits(service)

    @_reads("limits")
    def _limits(self, service: Service, **query: str) -> dict[str, dict[tuple[str, str | None], int]]:
        found: dict[str, dict[tuple[str, str | None], int]] = {}
        for one in self._list("limits", {"service_id": service.service_id, **query}):
            holder = one.get("project_id") or one["domain_id"]
            found.setdefault(holder, {})[one["resource_name"], one.get("region_id")] = int(one["resource_limit"])
        return found

    @_reads("a project")
    def project(self, project_id: str) -> Project | None:
        """Where a project belongs; None for one that Keystone does not know."""
        body = self._get(f"/projects/{_quoted(project_id)}")
        if body is None:
            return None
        project = body["project"]
        return Project(None if project.get("is_domain") else project["domain_id"])

    # --- the calls ---

    def _list(self, what: str, query: Mapping[str, str | None]) -> list[dict[str, Any]]:
        body = self._get(f"/{what}", {name: value for name, value in query.items() if value is not None})
        if body is None or body.get("truncated"):
            raise LimitSourceError(
                f"Keystone cuts its list of {what} short; raise list_limit in its configuration", whole=False
            )
        return body[what]  # type: ignore[no-any-return]

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The body of the answer; None for 404."""
        try:
            response = self._connected().get(path, params=query or {}, raise_exc=False)
        except ksa.ClientException as error:
            raise keystone_session.failure(error, keystone_session.auth_url(self._conf)) from None
        status = response.status_code
        if status == 404:
            return None
        if status == 403:
            raise LimitSourceError(f"the user of [{GROUP}] may not read {path} in Keystone. {ROLE_HINT}", whole=False)
        if status == 401:
            raise keystone_session.failure(ksa.Unauthorized(), keystone_session.auth_url(self._conf))
        if status != 200:
            raise LimitSourceError(f"Keystone answered {status} to {path}", whole=status in (502, 503, 504))
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise LimitSourceError(
                f"Keystone's answer to {path} is no JSON; is [{GROUP}] auth_url Keystone's?", whole=False
            )
        return body

    def _connected(self) -> Adapter:
        with self._lock:
            if self._adapter is None:
                self._adapter = self._acquire(self._conf)
            return self._adapter

    def _check_sees_all(self) -> None:
        adapter = self._connected()
        get_access = getattr(adapter.auth, "get_access", None)
        if get_access is None:
            return  # a plugin that has no roles to show
        try:
            access = get_access(adapter.session)
        except ksa.ClientException as error:
            raise keystone_session.failure(error, keystone_session.auth_url(self._conf)) from None
        if not (getattr(access, "system_scoped", False) or _SEES_ALL_ROLES & set(access.role_names)):
            raise LimitSourceError(
                f"the user of [{GROUP}] is shown its own project's limits only. {ROLE_HINT}", whole=False
            )


def _service(endpoint: Mapping[str, Any]) -> Service:
    return Service(endpoint["service_id"], endpoint.get("region_id"))


def _only(found: list[dict[str, Any]], what: str) -> dict[str, Any]:
    if len(found) != 1:
        raise LimitSourceError(
            f"Keystone has {len(found)} {what}, and not one; see [{GROUP}] endpoint_id and endpoint_*", whole=False
        )
    return found[0]


def _named(query: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in query.items() if value is not None)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
