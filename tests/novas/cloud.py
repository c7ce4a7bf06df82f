# SPDX-License-Identifier: Apache-2.0
"""A whole cloud on 127.0.0.1: Keystone, Placement, Glance, Neutron, Nova with two hosts, and Cyborg with quota.

No service is simulated. Nova's fake driver runs no guests; Neutron has no networks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import fixtures
from tests.cyborgs import quota
from tests.cyborgs.records import Records
from tests.cyborgs.service import Service, ServiceError, WebSettings, start_all, web_service
from tests.cyborgs.starting import Starter
from tests.installing import NotAvailable
from tests.integration.server import Keystone
from tests.novas import configuration, environment
from tests.novas.user import User
from tests.servers import machine
from tests.servers.rabbitmq import RabbitMQ

PREFIX = "cyborg-quota-nova-"
HOSTS = ("fake-host-0", "fake-host-1")
DATABASES = ("nova", "nova_api", "nova_cell0", "cyborg", "glance", "neutron", "placement", "ledger")
WEB = {
    "placement": ("placement.wsgi.api:application", 6),
    "glance": ("glance.wsgi.api:application", 2),
    "neutron": ("neutron.wsgi.api:application", 4),
    "nova": ("nova.wsgi.osapi_compute:application", 6),
    "cyborg": ("cyborg_quota.cyborg.wsgi:application", 8),
}
"""{service: its WSGI application, and its number of threads}"""
COMPUTE = str(pathlib.Path(__file__).with_name("compute.py"))
START_SECONDS = 120.0


class Cloud:
    """Services whose data exists as long as this object.

    ``computes`` and ``agents`` are by host; ``web`` by service; ``conductor`` is Cyborg's, with quota. ``flavors``:
    with one device and with two. ``admin`` is the administrator, of the project ``admin_project_id``; ``services`` is
    the user of the services.
    """

    def __init__(self, options: str = "") -> None:
        """``options`` is more text for cyborg_quota.conf, in [cyborg]. Raises NotAvailable."""
        self.programs = environment.ensure()
        if reason := fixtures.missing_server("mariadb"):
            raise NotAvailable(reason)
        self.keystone = Keystone(threads=1)
        self.workdir, self._lock = machine.private_directory(PREFIX, environment.DIRECTORY)
        self.starter = Starter(self.programs / "python", self.workdir, ["eventlet"])
        self.bus = RabbitMQ()
        self.databases = {name: fixtures.fresh_url("mariadb", f"nova_{name}") for name in DATABASES}
        schema.sync(Database(fixtures.settings(self.databases["ledger"])))
        self.quota_conf = quota.write_conf(self.workdir, self.databases["ledger"], options)
        self.records = Records(self.databases["cyborg"])
        directories = {
            f"OS_{name}_CONFIG_DIR": str(self.workdir) for name in ("GLANCE", "NOVA", "PLACEMENT", "NEUTRON")
        }
        self._environ = {
            **directories,
            "OS_NEUTRON_CONFIG_FILES": "neutron.conf",
            "CYBORG_QUOTA_TEST_POINTS": str(self.workdir),
        }
        self._ports = {name: machine.free_port() for name in WEB}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self._ports.items()}
        self.web = {name: self._web(name, *of) for name, of in WEB.items()}
        self.scheduler = self._nova("scheduler", "nova-scheduler")
        self.nova_conductor = self._nova("conductor", "nova-conductor")
        self.conductor = self._cyborg("cyborg-conductor", "cyborg-quota-conductor")
        self.computes = {host: self._nova(f"compute-{host}", COMPUTE, host) for host in HOSTS}
        self.agents = {host: self._cyborg(f"agent-{host}", "cyborg-agent", f"agent-{host}") for host in HOSTS}

    # --- its parts ---

    def _service(self, name: str, command: Sequence[str], ready: str) -> Service:
        first, *rest = command
        path = first if "/" in first else str(self.programs / first)
        return Service(
            name, [path, *rest], self.workdir, lambda output: ready in output, self._environ, starter=self.starter
        )

    def _web(self, name: str, application: str, threads: int) -> Service:
        arguments = self._files("cyborg") if name == "cyborg" else []
        settings = WebSettings(self.programs, self.workdir, self._environ, ready=range(500))
        port = self._ports[name]
        return web_service(name, application, port, threads, arguments, settings=settings, starter=self.starter)

    def _files(self, *names: str) -> list[str]:
        return [f"--config-file={self.workdir / name}.conf" for name in names if name]

    def _nova(self, name: str, program: str, host: str = "") -> Service:
        return self._service(name, [program, *self._files("nova", host)], "Starting ")

    def _cyborg(self, name: str, program: str, host: str = "") -> Service:
        return self._service(name, [program, *self._files("cyborg", host)], "Created RPC server for service")

    # --- the start ---

    def start(self) -> None:
        """Wait until servers with accelerators can be created. Raises NotAvailable, ServiceError."""
        self.bus.prepare()
        self.bus.launch()
        self.keystone.start("flat")
        self._write()
        self._sync()
        self.bus.wait()
        # The scheduler asks Placement when it starts, and ends if it gets no answer.
        placement, *others = (self.web[name] for name in sorted(self.web, key=lambda name: name != "placement"))
        start_all(placement)
        start_all(*others, self.scheduler, self.nova_conductor, self.conductor)
        self.admin.call("network", "GET", "/v2.0/networks")  # a new Neutron cannot list ports before its first query
        start_all(*self.computes.values())
        discover = self._command("discover", "nova-manage", *self._files("nova"), "cell_v2", "discover_hosts")
        discover.launch()
        for host, agent in self.agents.items():
            agent.start()
            self.records.wait_for_devices([host])  # one by one: of several that report concurrently, Cyborg loses one
        discover.join()
        self._make_image()
        self.flavors = self.create_flavor(1), self.create_flavor(2)

    def _write(self) -> None:
        password = self._make_users()
        bases = {f"{name}_database": url for name, url in self.databases.items()}
        urls = {**bases, **self.urls, "bus": self.bus.url, "keystone": self.keystone.url, "quota": str(self.quota_conf)}
        configuration.write(self.workdir, self.programs.parent / "etc", password, urls)
        for host in HOSTS:
            configuration.write_host(self.workdir, host)

    def _make_users(self) -> str:
        """Make the user of the services, and the catalogue; returns the user's password."""
        keystone = self.keystone
        project_id = keystone.create("project", name=configuration.PROJECT, domain_id="default")
        _, password = keystone.create_user(f"projects/{project_id}", "admin", "service", name=configuration.USER)
        paths = {"nova": "/v2.1", "cyborg": "/v2"}
        for name, kind in configuration.TYPES.items():
            service_id = keystone.create("service", type=kind, name=name)
            url = self.urls[name] + paths.get(name, "")
            for interface in ("public", "internal"):
                where = {"region_id": configuration.REGION, "interface": interface, "url": url}
                keystone.create("endpoint", service_id=service_id, **where)
        self.admin = User(self, "admin", keystone.password, "admin")
        self.services = User(self, configuration.USER, password, configuration.PROJECT)
        projects = keystone.admin.get("/projects", params={"name": "admin"}).json()["projects"]
        self.admin_project_id = str(projects[0]["id"])
        return password

    def _sync(self) -> None:
        """Make the tables. Placement makes its own when it starts."""
        nova, cell0 = self._files("nova"), self.databases["nova_cell0"]
        cyborg, neutron = self._files("cyborg"), self._files("neutron")
        glance = f"--config-file={self.workdir}/glance-api.conf"
        commands = [
            self._command("sync-cyborg", "cyborg-dbsync", *cyborg, "upgrade"),
            self._command("sync-glance", "glance-manage", glance, "db", "sync"),
            self._command("sync-neutron", "neutron-db-manage", *neutron, "upgrade", "heads"),
        ]
        for command in commands:
            command.launch()
        self._run("sync-api", "nova-manage", *nova, "api_db", "sync")
        self._run("map-cell0", "nova-manage", *nova, "cell_v2", "map_cell0", "--database_connection", cell0)
        self._run("create-cell", "nova-manage", *nova, "cell_v2", "create_cell", "--name", "cell1")
        self._run("sync-nova", "nova-manage", *nova, "db", "sync")
        for command in commands:
            command.join()

    def _command(self, name: str, program: str, *arguments: str) -> Service:
        return self._service(name, [program, *arguments], "")

    def _run(self, name: str, program: str, *arguments: str) -> None:
        self._command(name, program, *arguments).finish()

    def _make_image(self) -> None:
        """Make an image that no guest reads."""
        described = {"name": "image", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        self.image_id = str(self.admin.call("image", "POST", "/v2/images", described)["id"])
        content = {"Content-Type": "application/octet-stream"}
        self.admin.adapter("image").put(f"/v2/images/{self.image_id}/file", data=b"image", headers=content)

    # --- operations of an administrator ---

    def create_flavor(self, devices: int) -> str:
        """Make a flavor whose device profile requests a number of devices; returns its name."""
        name = f"devices-{devices}-{os.urandom(3).hex()}"
        groups = [{"resources:FPGA": str(devices), "trait:CUSTOM_FAKE_DEVICE": "required"}]
        self.admin.call("accelerator", "POST", "/v2/device_profiles", [{"name": name, "groups": groups}])
        flavor = {"name": name, "vcpus": 1, "ram": 64, "disk": 1}
        made = self.admin.call("compute", "POST", "/flavors", {"flavor": flavor})["flavor"]["id"]
        specs = {"extra_specs": {"accel:device_profile": name}}
        self.admin.call("compute", "POST", f"/flavors/{made}/os-extra_specs", specs)
        return name

    def create_user(self) -> User:
        """Make a user with the role member in a project of its own."""
        name = f"project-{os.urandom(4).hex()}"
        project_id = self.keystone.create("project", name=name, domain_id="default")
        user, password = self.keystone.create_user(f"projects/{project_id}", "member")
        return User(self, user, password, name, project_id)

    def wait_for_state(self, host: str, state: str) -> None:
        """Wait until Nova sees this host's compute service ``up`` or ``down``. Raises ServiceError."""

        def found() -> bool:
            services = self.admin.call("compute", "GET", f"/os-services?binary=nova-compute&host={host}")["services"]
            return [service["state"] for service in services] == [state]

        machine.wait_until(found, START_SECONDS)
        if not found():
            raise ServiceError(f"nova-compute on {host} is not {state}")

    @contextlib.contextmanager
    def dead(self, host: str) -> Iterator[None]:
        """A host whose nova-compute was killed and is down in Nova; restarted after the block."""
        self.computes[host].kill()
        try:
            self.wait_for_state(host, "down")
            yield
        finally:
            self.computes[host].start()
            self.wait_for_state(host, "up")

    def close(self) -> None:
        """Stop all services, and remove their data."""
        every = [*self.agents.values(), *self.computes.values(), self.conductor, self.nova_conductor, self.scheduler]
        for service in (*every, *self.web.values()):
            service.kill()
        self.starter.close()
        self.bus.close()
        self.records.close()
        self.keystone.close()
        shutil.rmtree(self.workdir, ignore_errors=True)
        self._lock.close()
