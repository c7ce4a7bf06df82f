# SPDX-License-Identifier: Apache-2.0
"""Calls of Cyborg's API: with the headers that keystonemiddleware would set for a token, or with real tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import requests

TIMEOUT_SECONDS = 60.0
VERSION = "2.1"
"""The API version that takes a project_id in a bind."""


class Answer(NamedTuple):
    """An answer: an HTTP status, and the parsed body (None if there is none)."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """The error message that the caller gets, without the line feeds that oslo.messaging appends."""
        return str(json.loads(self.body["error_message"])["faultstring"]).rstrip("\n")


def call(
    base: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    received: dict[str, str] | None = None,
) -> Answer:
    """Make one HTTP call, with JSON in both directions. Raises OSError if the server does not answer.

    :param received: gets the headers of the answer.
    """
    with requests.Session() as session:
        session.trust_env = False  # no proxy
        response = session.request(method, base + path, json=body, headers=headers, timeout=TIMEOUT_SECONDS)
    if received is not None:
        received.update(response.headers)
    is_json = response.content and "json" in response.headers.get("Content-Type", "")
    return Answer(response.status_code, response.json() if is_json else response.text or None)


class Client:
    """A user of one project. Binds and unbinds also carry a service token, as Nova's do.

    :param project_id: a UUID; Cyborg accepts nothing else.
    :param roles: of the user, including implied ones (admin, member, reader, service).
    :param service_roles: of the service token.
    """

    def __init__(
        self,
        url: str,
        project_id: str,
        roles: Sequence[str] = ("member", "reader"),
        service_roles: Sequence[str] = ("service",),
    ) -> None:
        self.url = url
        self.project_id = project_id
        self.user_id = uuid.uuid5(uuid.NAMESPACE_URL, f"user of {project_id}").hex
        self.roles = tuple(roles)
        self.service_roles = tuple(service_roles)
        self.received: dict[str, str] = {}
        """The headers of the last answer."""

    def call(self, method: str, path: str, body: Any = None, *, service: bool = False) -> Answer:
        """Make one call under ``/v2``.

        :param service: send the service token too.
        """
        headers = {"OpenStack-API-Version": f"accelerator {VERSION}", "User-Agent": "tests"}
        self.received = received = {}
        return call(self.url, method, f"/v2{path}", body, {**headers, **self._identity(service)}, received=received)

    def _identity(self, is_service: bool) -> dict[str, str]:
        """The headers that say who calls. ``is_service``: also those of a service token."""
        headers = {
            "X-Auth-Token": "of-no-consequence",
            "X-Identity-Status": "Confirmed",
            "X-User-Id": self.user_id,
            "X-Project-Id": self.project_id,
            "X-Roles": ",".join(self.roles),
        }
        if is_service:
            headers |= {
                "X-Service-Token": "of-no-consequence",
                "X-Service-Identity-Status": "Confirmed",
                "X-Service-User-Id": "nova",
                "X-Service-Roles": ",".join(self.service_roles),
            }
        return headers

    def create_profile(self, name: str, *groups: Mapping[str, str]) -> Answer:
        """Make a device profile; only an admin may. A group: ``{"resources:FPGA": "1"}``."""
        return self.call("POST", "/device_profiles", [{"name": name, "groups": list(groups)}])

    def create(self, profile: str) -> Answer:
        """Make ARQs, one for each unit of the device profile."""
        return self.call("POST", "/accelerator_requests", {"device_profile_name": profile})

    def created(self, profile: str, times: int = 1) -> list[str]:
        """Make ARQs by a number of calls; returns their UUIDs."""
        answers = [self.create(profile) for _ in range(times)]
        assert all(answer.status == 201 for answer in answers), answers
        return [arq["uuid"] for answer in answers for arq in answer.body["arqs"]]

    def bind(
        self,
        arqs: Sequence[str],
        instance: str,
        rp: str | Sequence[str],
        host: str = "fake-host-0",
        project_id: str | None = None,
    ) -> Answer:
        """Send one PATCH for all of these ARQs.

        :param rp: the resource provider of the device, of ``Stack.rps``; a list has one for each ARQ.
        :param project_id: the project to charge; only an admin may name one.
        """
        fields = {"hostname": host, "instance_uuid": instance}
        if project_id is not None:
            fields["project_id"] = project_id
        rps = [rp] * len(arqs) if isinstance(rp, str) else rp
        return self._patch(
            {
                arq: [
                    {"op": "add", "path": f"/{name}", "value": value}
                    for name, value in {**fields, "device_rp_uuid": one}.items()
                ]
                for arq, one in zip(arqs, rps, strict=True)
            }
        )

    def unbind(self, arqs: Sequence[str]) -> Answer:
        """Send one PATCH for all of these ARQs."""
        names = ("hostname", "device_rp_uuid", "instance_uuid")
        return self._patch({arq: [{"op": "remove", "path": f"/{name}"} for name in names] for arq in arqs})

    def _patch(self, patches: Mapping[str, list[dict[str, str]]]) -> Answer:
        return self.call("PATCH", "/accelerator_requests", patches, service=True)

    def delete(self, arqs: Sequence[str], *, service: bool = True) -> Answer:
        """Delete these ARQs; bound ones need the service token."""
        return self.call("DELETE", f"/accelerator_requests?arqs={','.join(arqs)}", service=service)

    def delete_instance(self, instance: str) -> Answer:
        """Delete all ARQs of an instance, as Nova does."""
        return self.call("DELETE", f"/accelerator_requests?instance={instance}", service=True)

    def get(self, arq: str) -> Answer:
        return self.call("GET", f"/accelerator_requests/{arq}")


class TokenClient(Client):
    """A user of one project with a token of Keystone. Binds and unbinds also carry the token of a service."""

    def __init__(self, url: str, project_id: str, token: str, service_token: str) -> None:
        super().__init__(url, project_id)
        self._token = token
        self._service_token = service_token

    def _identity(self, is_service: bool) -> dict[str, str]:
        return {"X-Auth-Token": self._token, **({"X-Service-Token": self._service_token} if is_service else {})}
