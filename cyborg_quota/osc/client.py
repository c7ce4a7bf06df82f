# SPDX-License-Identifier: Apache-2.0
"""The REST API of quota and Keystone's projects, for the commands, with the session of OpenStackClient."""

from __future__ import annotations

import dataclasses
import itertools
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from openstack import exceptions as sdk
from osc_lib import exceptions

from cyborg_quota.surface.operations import Argument

SERVICE_TYPE: Final = "accelerator"
_VERSION: Final = "/v2"


@dataclasses.dataclass(frozen=True)
class QuotaClient:
    """Calls of the REST API. Each raises CommandError with the message of the service.

    ``manager``: the ClientManager of osc-lib.
    """

    manager: Any

    def pages(self, name: str, path: str, limit: int | None = None, **query: Any) -> Iterator[Any]:
        """The entries of a list, or the items of an object, of all its pages or at most ``limit``."""
        return itertools.islice(self._entries(name, path, limit=limit, **query), limit)

    def _entries(self, name: str, path: str, **query: Any) -> Iterator[Any]:
        while True:
            answer = self.call("GET", path, **query)
            entries = answer[name]
            yield from entries.items() if isinstance(entries, dict) else entries
            links = answer.get(f"{name}_links")
            if not links:
                return
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(links[0]["href"]).query))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Make one call, without the parameters that are None; returns the body of the answer."""
        endpoint = self.manager.get_endpoint_for_service_type(
            SERVICE_TYPE, region_name=self.manager.region_name, interface=self.manager.interface
        )
        if not endpoint:
            raise exceptions.CommandError("The service catalog has no endpoint of the service type accelerator.")
        # (The endpoint of the catalog may end with the API version.)
        url = str(endpoint).rstrip("/").removesuffix(_VERSION) + _VERSION + path
        headers = {"Accept": "application/json"}
        answer = self.manager.session.request(url, method, headers=headers, raise_exc=False, json=body, params=query)
        if answer.status_code >= 400:
            raise exceptions.CommandError(_message(answer))
        return answer.json() if answer.content else None

    def path(self, project: str | None, project_domain: str | None, *, force: bool = False) -> str:
        """The path of the calls for a project, which the arguments of OWN_PROJECT name. ``force``: see project_id."""
        return f"/quotas/{quoted(project_id(self.manager, project, project_domain, force=force))}"


def quoted(name: str) -> str:
    """A name as one segment of a path. Raises CommandError for ``.`` and ``..``, which name other paths."""
    if name in (".", ".."):
        raise exceptions.CommandError(f"{name} is not a valid ID.")
    return urllib.parse.quote(name, safe="")


def _message(answer: Any) -> str:
    """The message of an error, and the id of the request, with which an operator finds it in the log."""
    try:
        [error] = answer.json()["errors"]
        request_id = error.get("request_id")
        return f"{error['detail']} (HTTP {answer.status_code}{f', {request_id}' if request_id else ''})"
    except (ValueError, KeyError, TypeError):
        if answer.status_code == 404:  # (the API of quota always explains a 404)
            return "This Cyborg serves no quota API (HTTP 404)."
        return f"The service answered HTTP {answer.status_code} {answer.reason}."


DOMAIN: Final = Argument(
    "--project-domain",
    metavar="<project-domain>",
    help="Domain of the project (name or ID), if several projects have this name.",
)
PROJECT: Final = (Argument("project", metavar="<project>", help="Project (name or ID)."), DOMAIN)
OWN_PROJECT: Final = (
    Argument(
        "project",
        metavar="<project>",
        nargs="?",
        help="Project (name or ID). Default: the project of the token.",
    ),
    DOMAIN,
)


def project_id(manager: Any, project: str | None, domain: str | None, *, force: bool = False) -> str:
    """The id of a project; None: that of the token. Raises CommandError, or an error of openstacksdk.

    ``force``: take it as an id if Keystone has no such project.
    """
    if project is None:
        own = manager.auth_ref.project_id
        if own is None:
            raise exceptions.CommandError("The token is not scoped to a project: name a project.")
        return str(own)
    identity = manager.sdk_connection.identity
    try:
        query = {}
        if domain is not None:
            query["domain_id"] = identity.find_domain(domain, ignore_missing=False).id
        return str(identity.find_project(project, ignore_missing=False, **query).id)
    except sdk.NotFoundException:
        if not force or domain is not None:
            raise
        return project
    except sdk.ForbiddenException:
        # The user may not list projects: it is one of the user's own projects, or an id.
        listed = identity.get("/auth/projects").json()["projects"]
        ids = {own["id"] for own in listed if project in (own["id"], own["name"])}
        if len(ids) > 1:
            raise exceptions.CommandError(
                f"More than one of your projects has the name {project}: give the ID."
            ) from None
        return str(ids.pop()) if ids else project
