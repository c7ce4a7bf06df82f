# SPDX-License-Identifier: Apache-2.0
"""Regions on 127.0.0.1, each with its own Placement; all have one Keystone, whose catalog lists their endpoints."""

from __future__ import annotations

import pathlib
import uuid
from typing import Any

import fixtures as fx
import yaml
from keystoneauth1.adapter import Adapter

from tests.cyborgs import environment
from tests.cyborgs.service import Service, WebSettings, start_all, web_service
from tests.cyborgs.starting import Starter
from tests.integration.server import Keystone
from tests.servers import machine

PLACEMENT_THREADS = 2
PLACEMENT = """\
[api]
auth_strategy = keystone
[placement_database]
connection = sqlite:///{workdir}/placement.sqlite
sync_on_startup = true
"""
CLOUD = "pods"


class Region:
    """One region: its ``name`` in the catalog, its Placement, and what an operator and Nova do there."""

    def __init__(self, name: str, placement: Service, admin: Adapter) -> None:
        self.name = name
        self.placement = placement
        self._admin = admin

    def add_node(self, resource_class: str, total: int) -> str:
        """Add a provider with an inventory; returns its UUID."""
        provider = str(uuid.uuid4())
        self._admin.post("/resource_providers", json={"name": f"node-{provider}", "uuid": provider})
        inventories = {resource_class: {"total": total}}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        self._admin.put(f"/resource_providers/{provider}/inventories", json=body)
        return provider

    def allocate(self, provider: str, resource_class: str, amount: int) -> None:
        body = {
            "allocations": {provider: {"resources": {resource_class: amount}}},
            "project_id": "film",
            "user_id": "nova",
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        self._admin.put(f"/allocations/{uuid.uuid4()}", json=body)


class Regions(fx.Fixture):
    """``count`` regions, and a clouds.yaml with the cloud CLOUD, which openstacksdk finds. Raises NotAvailable."""

    def __init__(self, keystone: Keystone, count: int) -> None:
        super().__init__()
        self._keystone = keystone
        self._count = count
        self.regions: list[Region] = []

    def _setUp(self) -> None:
        programs = environment.ensure()
        workdir = pathlib.Path(self.useFixture(fx.TempDir()).path)
        starter = Starter(programs / "python", workdir)
        self.addCleanup(starter.close)
        catalog_id = self._keystone.create("service", type="placement", name=f"placement-{uuid.uuid4().hex[:8]}")
        for number in range(self._count):
            self.regions.append(self._make(number, catalog_id, workdir / f"region{number}", programs, starter))
        start_all(*(region.placement for region in self.regions))
        self._write_clouds(workdir / "clouds.yaml")

    def _make(
        self, number: int, catalog_id: str, workdir: pathlib.Path, programs: pathlib.Path, starter: Starter
    ) -> Region:
        workdir.mkdir()
        keystone = self._keystone
        (workdir / "placement.conf").write_text(PLACEMENT.format(workdir=workdir) + keystone.authtoken)
        name = keystone.create("region", id=f"region{number}-{uuid.uuid4().hex[:8]}")
        port = machine.free_port()
        url = f"http://127.0.0.1:{port}"
        keystone.create("endpoint", service_id=catalog_id, region_id=name, interface="public", url=url)
        settings = WebSettings(programs, workdir, {"OS_PLACEMENT_CONFIG_DIR": str(workdir)})
        placement = web_service(
            "placement", "placement.wsgi.api:application", port, PLACEMENT_THREADS, settings=settings, starter=starter
        )
        self.addCleanup(placement.kill)
        admin = Adapter(keystone.admin.session, "placement", endpoint_override=url, default_microversion="1.38")
        return Region(name, placement, admin)

    def _write_clouds(self, path: pathlib.Path) -> None:
        auth = {
            "auth_url": self._keystone.url,
            "username": "admin",
            "password": self._keystone.password,
            "user_domain_id": "default",
            "project_name": "admin",
            "project_domain_id": "default",
        }
        cloud: dict[str, Any] = {"auth": auth, "regions": [region.name for region in self.regions]}
        wrong = {**cloud, "auth": {**auth, "password": "not-the-password"}}
        path.write_text(yaml.safe_dump({"clouds": {CLOUD: cloud, "wrong": wrong}}))
        self.useFixture(fx.EnvironmentVariable("OS_CLIENT_CONFIG_FILE", str(path)))
