# SPDX-License-Identifier: Apache-2.0
"""Reads limits, projects and the endpoint from Keystone's API: one method for each request. Caches nothing.

It uses keystoneauth1 and not openstacksdk, because openstacksdk does not report that Keystone has cut a list short
(``truncated``), so that limits would be missing without an error; it has no call for the enforcement model; and it
creates an object for each limit, which takes 60 times as long for a list of 20,000 limits (decision record 0036).

The session is configured by [oslo_limit]. oslo.limit creates its own from the global configuration only; here, the
caller passes the configuration.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import requests
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions.connection import SSLError
from oslo_config import cfg
from oslo_limit import opts as oslo_limit_opts

from cyborg_quota import forks
from cyborg_quota.conf import plugins
from cyborg_quota.limits.sources.cache import LimitSourceError

GROUP: Final = "oslo_limit"
TIMEOUT_SECONDS: Final = 5.0
"""The default of [oslo_limit] timeout: keystoneauth1 would wait for ever for a Keystone that does not answer."""

ROLE_HINT: Final = (
    "It needs the role reader on the system: openstack role add --user USER --user-domain DOMAIN --system all reader; "
    f"and [{GROUP}] system_scope = all"
)

_SEES_ALL_ROLES: Final = frozenset({"admin", "service"})
"""The roles to which Keystone lists the limits of all projects.

To a token without one of them, and without system scope, Keystone lists the limits of the token's project only, and
gives no error.
"""

_ID: Final = re.compile(r"(?!\.+$)[\w.-]{1,64}", re.ASCII)
"""Any other text cannot be an id of Keystone, and must not become a part of a path."""


# --- the session ---


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register [oslo_limit] on ``conf``: the options of the session, the adapter, the auth plugin and the endpoint."""
    loading.register_session_conf_options(conf, GROUP)
    conf.set_default("timeout", TIMEOUT_SECONDS, group=GROUP)
    loading.register_adapter_conf_options(conf, GROUP, include_deprecated=False)
    loading.register_auth_conf_options(conf, GROUP)
    for _, options in oslo_limit_opts.list_opts():
        conf.register_opts([option for option in options if option.dest.startswith("endpoint_")], group=GROUP)


def endpoint_option(conf: cfg.ConfigOpts, name: str) -> str | None:
    """[oslo_limit] endpoint_NAME. Releases of oslo.limit before 2.6 have endpoint_id only."""
    return getattr(conf[GROUP], f"endpoint_{name}", None)


class _BoundedRequests(requests.Session):
    """Ends all its requests together at one time: a timeout bounds each of them alone."""

    def __init__(self, within_seconds: float) -> None:
        super().__init__()
        self._until = time.monotonic() + within_seconds

    def request(self, method: str, url: str, *, timeout: float, **options: Any) -> requests.Response:  # type: ignore[override]
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise requests.Timeout
        return super().request(method, url, timeout=min(timeout, remaining), **options)


def make_adapter(conf: cfg.ConfigOpts, within_seconds: float | None = None) -> Adapter:
    """An adapter for the Keystone API, version 3, with a new session. No I/O.

    ``within_seconds``: all its requests together end within this time from now.
    """
    auth = plugins.load_auth(conf, GROUP)
    _prevent_recursive_authentication(auth)
    session = loading.load_session_from_conf_options(
        conf,
        GROUP,
        auth=auth,
        timeout=conf[GROUP].timeout,
        session=None if within_seconds is None else _BoundedRequests(within_seconds),
    )
    adapter = loading.load_adapter_from_conf_options(conf, GROUP, session=session, auth=auth)
    adapter.service_type = adapter.service_type or "identity"
    if not (adapter.version or adapter.min_version or adapter.max_version):
        adapter.version = "3"
    return adapter


def _prevent_recursive_authentication(auth: Any) -> None:
    """Refuse to authenticate during an authentication, which would be a deadlock.

    keystoneauth1 does version discovery while it holds the lock of its token. If the response is 401 (from a proxy, for
    example), it repeats the request with a token, and waits for its own lock forever.
    """
    get_access = getattr(auth, "get_access", None)
    if get_access is None:
        return
    active = threading.local()

    def get_access_once(session: Any, **named: Any) -> Any:
        if getattr(active, "is_on", False):
            raise ksa.Unauthorized
        active.is_on = True
        try:
            return get_access(session, **named)
        finally:
            active.is_on = False

    auth.get_access = get_access_once


_REASONS: Final = {
    (ksa.ConnectTimeout, ksa.RequestTimeout): "{keystone} does not respond in time",
    (SSLError,): f"the TLS connection to {{keystone}} fails; check [{GROUP}] cafile",
    (ksa.ConnectFailure,): f"{{keystone}} cannot be reached; check that it is running, and [{GROUP}] auth_url",
    (ksa.Unauthorized, ksa.AuthorizationFailure): (
        f"{{keystone}} does not authenticate the user of [{GROUP}]: it is unknown, its password is wrong, or it "
        f"has no role. {ROLE_HINT}"
    ),
    (ksa.EndpointNotFound, ksa.CatalogException): (
        f"the catalog of {{keystone}} has no identity endpoint for [{GROUP}] valid_interfaces and region_name"
    ),
    (ksa.DiscoveryFailure,): f"the API versions of {{keystone}} cannot be read; check [{GROUP}] auth_url",
    (ksa.HttpError,): "{keystone} returned status {error.http_status}",
    (Exception,): "a request to {keystone} failed ({error.__class__.__name__})",
}
"""Why a request failed. The first entry that has the class of the error applies."""


def failure(error: Exception, conf: cfg.ConfigOpts) -> LimitSourceError:
    """Convert an error of keystoneauth1. Its text is omitted, because it may quote the response."""
    types = next(types for types in _REASONS if isinstance(error, types))
    url = getattr(conf[GROUP], "auth_url", None)  # (Not each auth plugin has this option.)
    reason = _REASONS[types].format(error=error, keystone=f"Keystone at {url}" if url else "Keystone")
    is_total = types != (ksa.HttpError,) or getattr(error, "http_status", None) in (502, 503, 504)
    return LimitSourceError(reason, is_total=is_total)


# --- the requests ---


class Service(NamedTuple):
    """The service and region whose limits are read, as Keystone's IDs."""

    service_id: str
    region_id: str | None


class RegisteredLimit(NamedTuple):
    """The default limit of a resource, and the region for which it is registered (None: for all regions)."""

    default: int
    region_id: str | None


class Project(NamedTuple):
    """A project or a domain of Keystone. ``domain_id`` and ``parent_id`` are None for a domain."""

    project_id: str
    name: str
    domain_id: str | None
    parent_id: str | None


Limits = Mapping[tuple[str, str | None], int]
"""The limits of one project or domain, by (Keystone's resource name, region ID)."""


_TRUNCATED: Final = "Keystone truncates its list of {}; raise list_limit in its configuration"


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Convert the errors that a response of unexpected structure causes to LimitSourceError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LimitSourceError(
            f"the response to the request for {what} is not from Keystone's API; check [{GROUP}] auth_url",
            is_total=False,
        ) from error


class KeystoneClient:
    """Thread-safe, but not shared by processes. All methods raise LimitSourceError. The constructor does no I/O."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        connect: Callable[[cfg.ConfigOpts], Adapter] = make_adapter,
    ) -> None:
        self._conf = conf
        self._connect = connect
        self._adapter: Adapter | None = None
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Connect again: a connection must not be shared by two processes."""
        self._adapter = None

    @_reading("the endpoint")
    def service(self) -> Service:
        """The service and region of the endpoint that [oslo_limit] identifies."""
        if endpoint_id := endpoint_option(self._conf, "id"):
            body = self._get(f"/endpoints/{endpoint_id}") if _ID.fullmatch(endpoint_id) else None
            if body is None:
                raise LimitSourceError(
                    f"Keystone has no endpoint {endpoint_id} ([{GROUP}] endpoint_id)", is_total=False
                )
            endpoint = body["endpoint"]
        else:
            query = {name: endpoint_option(self._conf, f"service_{name}") for name in ("type", "name")}
            service = _only("services", self._list("services", **query), query)
            place = {
                "interface": (endpoint_option(self._conf, "interface") or "public").removesuffix("URL"),
                "region_id": endpoint_option(self._conf, "region_name"),
            }
            endpoints = self._list("endpoints", service_id=service["id"], **place)
            endpoint = _only("endpoints", endpoints, {**query, **place})
        self._check_sees_all()
        return Service(endpoint["service_id"], endpoint.get("region_id"))

    @_reading("the enforcement model")
    def model(self) -> str:
        """The name of the enforcement model, such as flat or strict_two_level."""
        body = self._get("/limits/model")
        return "" if body is None else str(body["model"]["name"])

    @_reading("the registered limits")
    def registered(self, service: Service) -> dict[str, RegisteredLimit]:
        """The registered limits of the service, by Keystone's resource name.

        A registered limit of the region takes precedence over one of all regions.
        """
        registered: dict[str, RegisteredLimit] = {}
        for entry in self._list("registered_limits", service_id=service.service_id):
            region_id = entry.get("region_id")
            name = entry["resource_name"]
            if region_id == service.region_id or (region_id is None and name not in registered):
                registered[name] = RegisteredLimit(int(entry["default_limit"]), region_id)
        return registered

    @_reading("limits")
    def limits(self, service: Service, kind: str = "", owner: str | None = None) -> Mapping[str, Limits]:
        """The limits that are set for each project and domain, by its ID. One request.

        ``kind`` and ``owner``: only those of one, with the ID ``owner``; its kind is project_id or domain_id.
        """
        limits: dict[str, dict[tuple[str, str | None], int]] = {}
        for entry in self._list("limits", service_id=service.service_id, **{kind: owner}):
            holder = entry.get("project_id") or entry["domain_id"]
            key = (entry["resource_name"], entry.get("region_id"))
            limits.setdefault(holder, {})[key] = int(entry["resource_limit"])
        return limits

    @_reading("a project")
    def project(self, project_id: str) -> Project | None:
        """A project or a domain; None if Keystone does not know it."""
        body = self._get(f"/projects/{project_id}") if _ID.fullmatch(project_id) else None
        return None if body is None else _project(body["project"])

    @_reading("the parents of a project")
    def path(self, project_id: str) -> list[str] | None:
        """A project, its ancestors, and its domain; of a domain, its ID alone. None if Keystone does not know it."""
        query = {"parents_as_ids": ""}
        body = self._get(f"/projects/{project_id}", query) if _ID.fullmatch(project_id) else None
        if body is None:
            return None
        path, above = [project_id], body["project"]["parents"]  # {parent: {its parent: {domain: None}}}
        while above:
            (parent_id,) = above
            path.append(parent_id)
            above = above[parent_id]
        return path

    @_reading("domains")
    def domains(self) -> frozenset[str]:
        """The IDs of all domains."""
        return frozenset(domain.project_id for domain in self._projects(is_domain="true"))

    @_reading("projects")
    def named(self, name: str, **query: str) -> list[Project]:
        """The projects, or domains (``is_domain``), with this name. Keystone answers 400 to what cannot be a name."""
        body = self._get("/projects", {"name": name, **query}, missing=(400, 404))
        return [] if body is None else [_project(entry) for entry in body["projects"]]

    @_reading("the projects")
    def projects(self) -> list[Project]:
        """All projects and all domains."""
        return [*self._projects(), *self._projects(is_domain="true")]

    # --- HTTP requests ---

    def _projects(self, **query: str) -> list[Project]:
        """All projects, or all domains (``is_domain``), in pages.

        From release 27 on, Keystone cuts this list short at its max_db_limit (1000), and reports that only if ``limit``
        is given. Before, it had no pages, and ignored ``limit``.
        """
        projects: list[Project] = []
        query["limit"] = "1000"
        while True:
            body = self._get("/projects", query) or {}
            projects += map(_project, body["projects"])
            if body["links"]["next"] is None or query.get("marker") == projects[-1].project_id:
                break
            query["marker"] = projects[-1].project_id
        if body.get("truncated"):
            raise LimitSourceError(_TRUNCATED.format("projects"), is_total=False)
        return projects

    def _list(self, what: str, **query: str | None) -> list[dict[str, Any]]:
        body = self._get(f"/{what}", {name: value for name, value in query.items() if value is not None})
        if body is None or body.get("truncated"):
            raise LimitSourceError(_TRUNCATED.format(what), is_total=False)
        return body[what]  # type: ignore[no-any-return]

    def _get(
        self, path: str, query: Mapping[str, str] | None = None, missing: tuple[int, ...] = (404,)
    ) -> dict[str, Any] | None:
        """The body of the response; None for a status of ``missing``."""
        try:
            response = self._connected().get(path, params=query or {}, raise_exc=False)
        except ksa.ClientException as error:
            raise failure(error, self._conf) from None
        status = response.status_code
        if status in missing:
            return None
        if status == 403:
            raise LimitSourceError(
                f"the user of [{GROUP}] may not read {path} in Keystone. {ROLE_HINT}", is_total=False
            )
        if status == 401:
            raise failure(ksa.Unauthorized(), self._conf)
        if status != 200:
            raise LimitSourceError(f"Keystone returned status {status} for {path}", is_total=status in (502, 503, 504))
        with contextlib.suppress(ValueError):
            body = response.json()
            if isinstance(body, dict):
                return body
        raise LimitSourceError(
            f"the response to {path} is not JSON; check that [{GROUP}] auth_url is the URL of Keystone", is_total=False
        )

    def _connected(self) -> Adapter:
        adapter = self._adapter
        if adapter is None:  # (Two threads may make one each.)
            adapter = self._adapter = self._connect(self._conf)
        return adapter

    def _check_sees_all(self) -> None:
        adapter = self._connected()
        get_access = getattr(adapter.auth, "get_access", None)
        if get_access is None:
            return  # the auth plugin has no token with roles
        try:
            access = get_access(adapter.session)
        except ksa.ClientException as error:
            raise failure(error, self._conf) from None
        if not (getattr(access, "system_scoped", False) or _SEES_ALL_ROLES & set(access.role_names)):
            raise LimitSourceError(
                f"the user of [{GROUP}] can read the limits of its own project only. {ROLE_HINT}", is_total=False
            )


def _project(entry: Mapping[str, Any]) -> Project:
    above = (None, None) if entry.get("is_domain") else (entry["domain_id"], entry.get("parent_id"))
    return Project(entry["id"], entry.get("name", ""), *above)


def _only(what: str, entries: list[dict[str, Any]], criteria: Mapping[str, str | None]) -> dict[str, Any]:
    if len(entries) != 1:
        given = ", ".join(f"{name.removesuffix('_id')} {value}" for name, value in criteria.items() if value)
        raise LimitSourceError(
            f"Keystone has {len(entries)} {what} with {given}, not exactly one; check [{GROUP}] endpoint_id and "
            "endpoint_*",
            is_total=False,
        )
    return entries[0]
