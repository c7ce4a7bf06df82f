# SPDX-License-Identifier: Apache-2.0
"""A Keystone in memory, with the API that the limit driver uses, to replace a keystoneauth adapter."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from tests import fixtures

AUTH_URL = "http://keystone.example:5000/v3"
PASSWORD = "not-to-be-seen"
SERVICE, REGION, ENDPOINT = "service-1", "RegionOne", "endpoint-1"


def settings(**options: Any) -> cfg.ConfigOpts:
    """Return a configuration with the driver keystone; ``options``: group__name=value."""
    from cyborg_quota.limits.sources import keystone_client

    made = fixtures.configuration()
    keystone_client.register_opts(made)
    values = {
        "limits__driver": "keystone",
        "oslo_limit__auth_type": "v3password",
        "oslo_limit__endpoint_id": ENDPOINT,
        **options,
    }
    register_auth(made, str(values["oslo_limit__auth_type"]))
    password = {
        "oslo_limit__auth_url": AUTH_URL,
        "oslo_limit__username": "reader",
        "oslo_limit__password": PASSWORD,
        "oslo_limit__user_domain_id": "default",
        "oslo_limit__system_scope": "all",
    }
    for name, value in {**password, **values}.items():
        group, _, option = name.partition("__")
        made.set_override(option, value, group=group)
    return made


def register_auth(made: cfg.ConfigOpts, auth_type: str) -> None:
    """Register the options of the auth plugin, as loading it does, so that a test can set them."""
    from keystoneauth1 import loading

    made.register_opts(loading.get_auth_plugin_conf_options(auth_type), group="oslo_limit")


@dataclasses.dataclass
class Response:
    """A response, with the attributes that the client reads."""

    status_code: int
    body: Any

    def json(self) -> Any:
        if isinstance(self.body, Exception):
            raise self.body
        return self.body


@dataclasses.dataclass
class Access:
    system_scoped: bool = True
    role_names: tuple[str, ...] = ("reader",)


class FakeAuth:
    def __init__(self) -> None:
        self.access = Access()

    def get_access(self, _session: object) -> Access:
        return self.access


class FakeKeystone:
    """Answers GET like Keystone, from what a test has set; ``paths`` lists the requests."""

    def __init__(self) -> None:
        self.auth = FakeAuth()
        self.session = object()
        self.model = "flat"
        self.services = [{"id": SERVICE, "type": "accelerator", "name": "cyborg"}]
        self.endpoints = [{"id": ENDPOINT, "service_id": SERVICE, "region_id": REGION, "interface": "public"}]
        self.registered: dict[tuple[str, str | None], int] = {}
        self.limits: dict[tuple[str, str, str | None], int] = {}
        """By (project or domain, resource, region)."""
        self.projects: dict[str, str | None] = {}
        """The domain of each project; None for a domain."""
        self.parents: dict[str, str] = {}
        """The parents of those projects that are not directly below their domains."""
        self.has_pages = True
        self.list_limit: int | None = None
        self.instead: dict[str, Any] = {}
        """By first path element, or "" for all: an exception to raise, or a Response."""
        self.paths: list[str] = []
        self.made = 0
        self._lock = threading.Lock()

    def connect(self, _conf: cfg.ConfigOpts) -> FakeKeystone:
        self.made += 1
        return self

    def register(self, resource: str, limit: int, region: str | None = REGION) -> None:
        self.registered[resource, region] = limit

    def set_limit(self, holder: str, resource: str, limit: int, region: str | None = REGION) -> None:
        self.limits[holder, resource, region] = limit

    def get(self, path: str, params: Mapping[str, str], raise_exc: bool) -> Response:
        assert not raise_exc
        with self._lock:
            query = "&".join(f"{name}={value}" for name, value in params.items())
            self.paths.append(f"{path}?{query}" if query else path)
        first, _, last = path.strip("/").partition("/")
        instead = self.instead.get(first, self.instead.get(""))
        if isinstance(instead, Exception):
            raise instead
        return instead if instead is not None else self._answer(first, last, params)

    def _answer(self, first: str, last: str, params: Mapping[str, str]) -> Response:
        if last == "model":
            return Response(200, {"model": {"name": self.model}})
        if first == "projects" and not last:
            return self._page(params)
        if first == "projects":
            if last not in self.projects:
                return Response(404, {"error": {}})
            domain_id = self.projects[last]
            found = {"id": last, "domain_id": domain_id, "is_domain": domain_id is None}
            if "parents_as_ids" in params:
                found["parents"] = self._parents(last)
            return Response(200, {"project": found})
        if last:
            found = [endpoint for endpoint in self.endpoints if endpoint["id"] == last]
            return Response(200, {"endpoint": found[0]}) if found else Response(404, {})
        rows = [row for row in self._rows(first) if all(row.get(name) == value for name, value in params.items())]
        return Response(200, {first: rows, "links": {"next": None}})

    def _parents(self, project_id: str) -> dict[str, Any] | None:
        """The ancestors, nested: {parent: {its parent: {domain: None}}}."""
        parent_id = self.parents.get(project_id, self.projects[project_id])
        return None if parent_id is None else {parent_id: self._parents(parent_id)}

    def _page(self, params: Mapping[str, str]) -> Response:
        """A page of the projects, or of the domains, sorted by id. From release 27 on, a full page has a next one."""
        rows = [
            {
                "id": name,
                "domain_id": domain_id,
                "parent_id": self.parents.get(name, domain_id),
                "is_domain": domain_id is None,
            }
            for name, domain_id in sorted(self.projects.items())
            if (domain_id is None) == (params.get("is_domain") == "true")
        ]
        if self.has_pages:
            rows = [row for row in rows if str(row["id"]) > params.get("marker", "")]
        most = len(rows) + 1 if self.list_limit is None else self.list_limit
        is_cut = len(rows) >= most if self.has_pages else len(rows) > most
        following = "https://keystone/v3/projects?marker=" if is_cut and self.has_pages else None
        body = {"projects": rows[:most], "links": {"next": following}}
        return Response(200, {**body, "truncated": True} if is_cut else body)

    def _rows(self, what: str) -> list[dict[str, Any]]:
        if what == "registered_limits":
            return [
                {"service_id": SERVICE, "region_id": region, "resource_name": resource, "default_limit": limit}
                for (resource, region), limit in self.registered.items()
            ]
        if what == "limits":
            return [
                {
                    "service_id": SERVICE,
                    "region_id": region,
                    "resource_name": resource,
                    "resource_limit": limit,
                    "project_id": None if self._is_domain(holder) else holder,
                    "domain_id": holder if self._is_domain(holder) else None,
                }
                for (holder, resource, region), limit in self.limits.items()
            ]
        return {"services": self.services, "endpoints": self.endpoints}[what]

    def _is_domain(self, holder: str) -> bool:
        return holder in self.projects and self.projects[holder] is None
