# SPDX-License-Identifier: Apache-2.0
"""A user of the cloud, through the services' APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keystoneauth1.adapter import Adapter

from tests.integration import test_openstackclient
from tests.novas.configuration import REGION
from tests.servers import machine

if TYPE_CHECKING:
    from tests.novas.cloud import Cloud

CALL_SECONDS = 120.0
STATE_SECONDS = 120.0
COMPUTE_VERSION = "2.96"
MICROVERSIONS = {"compute": f"compute {COMPUTE_VERSION}", "accelerator": "accelerator 2.1"}


class User:
    """A user of one project. ``project_id`` is empty for the administrator, who needs none here.

    ``environ``: the environment variables with which `openstack` acts as this user.
    """

    def __init__(self, cloud: Cloud, name: str, password: str, project: str, project_id: str = "") -> None:
        self._cloud = cloud
        self.project_id = project_id
        self.environ = {
            **test_openstackclient.variables(cloud.keystone, name, password, project),
            "OS_REGION_NAME": REGION,
            "OS_COMPUTE_API_VERSION": COMPUTE_VERSION,
        }
        self._session = cloud.keystone.session(name, password, project_name=project, project_domain_id="default")
        self._session.timeout = CALL_SECONDS

    def adapter(self, kind: str) -> Adapter:
        version = {"default_microversion": COMPUTE_VERSION} if kind == "compute" else {}
        return Adapter(self._session, service_type=kind, region_name=REGION, interface="public", **version)

    @property
    def token(self) -> str:
        return str(self._session.get_token())

    def call(self, kind: str, method: str, path: str, body: Any = None, service_token: str = "") -> Any:
        """Make one call of a service of this type; returns the parsed body, None if there is none.

        Raises ClientException.
        """
        base = {"accelerator": self._cloud.urls["cyborg"]}.get(kind)
        version = {"OpenStack-API-Version": MICROVERSIONS[kind]} if kind in MICROVERSIONS else {}
        version |= {"X-Service-Token": service_token} if service_token else {}
        options = {"endpoint_override": base} if base else {}
        answer = self.adapter(kind).request(path, method, json=body, headers=version, **options)
        return answer.json() if answer.content else None

    def create_servers(self, flavor: str, count: int = 1) -> list[str]:
        """Create servers one after another without the command; returns their UUIDs."""
        flavors = self.call("compute", "GET", "/flavors")["flavors"]
        [flavor_id] = [item["id"] for item in flavors if item["name"] == flavor]
        asked = {"name": "server", "flavorRef": flavor_id, "imageRef": self._cloud.image_id, "networks": "none"}
        return [str(self.call("compute", "POST", "/servers", {"server": asked})["server"]["id"]) for _ in range(count)]

    def act(self, server: str, action: str, details: Any = None) -> None:
        """POST an action. Raises ClientException."""
        self.call("compute", "POST", f"/servers/{server}/action", {action: details})

    def show(self, server: str) -> dict[str, Any]:
        return dict(self.call("compute", "GET", f"/servers/{server}")["server"])

    def servers(self) -> list[str]:
        return [str(server["id"]) for server in self.call("compute", "GET", "/servers")["servers"]]

    def delete(self, *servers: str) -> None:
        """Delete the servers, and wait until they no longer exist."""
        for server in servers:
            self.call("compute", "DELETE", f"/servers/{server}")
        machine.wait_until(lambda: not set(servers) & set(self.servers()), STATE_SECONDS)

    def wait(self, server: str) -> str:
        """Return its status when no operation is in progress: ACTIVE, ERROR, SHELVED_OFFLOADED."""
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            found.update(self.show(server))
            return found["OS-EXT-STS:task_state"] is None and found["status"] not in ("BUILD", "REBUILD", "SHELVED")

        machine.wait_until(is_settled, STATE_SECONDS)
        return str(found["status"])
