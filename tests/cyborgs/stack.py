# SPDX-License-Identifier: Apache-2.0
"""A whole Cyborg on 127.0.0.1: MariaDB, RabbitMQ, Placement, its API, conductor and agents; only Nova is simulated."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Sequence

from tests import fixtures
from tests.cyborgs import configuration, environment
from tests.cyborgs.client import Client, call
from tests.cyborgs.nova import Nova
from tests.cyborgs.records import Records
from tests.cyborgs.service import Service, WebSettings, start_all, web_service
from tests.cyborgs.starting import Starter
from tests.installing import NotAvailable
from tests.servers import machine
from tests.servers.rabbitmq import VHOSTS, RabbitMQ
from tests.servers.sharing import once_per_process

PREFIX = "cyborg-quota-cyborg-"
CONDUCTOR = ("cyborg-conductor",)
API = "cyborg.wsgi.api:application"
API_THREADS, PLACEMENT_THREADS = 16, 4
QUOTA = "cyborg_quota.cyborg"
STOCK_CONDUCTOR = ("cyborg.cmd.conductor", "cyborg.conductor.manager", "cyborg.objects:register_all")
STOCK_API = ("cyborg.api.wsgi_app", "cyborg.objects:register_all", "cyborg.api.controllers.root")
COMMAND = (f"{QUOTA}.cyborg_host", f"{QUOTA}.arq_records")
TEMPLATES = {
    "cyborg-conductor": STOCK_CONDUCTOR,
    "naive.py": STOCK_CONDUCTOR,
    "points.py": STOCK_CONDUCTOR,
    "cyborg-quota-conductor": ("cyborg_quota.cli.conductor", *STOCK_CONDUCTOR, f"{QUOTA}.conductor"),
    "cyborg.wsgi.api:application": STOCK_API,
    f"{QUOTA}.wsgi:application": (*STOCK_API, f"{QUOTA}.objects", "cyborg_quota.api.deploy"),
    "cyborg-quota": ("cyborg_quota.cli.main", *COMMAND),
    "cyborg-quota-status": ("cyborg_quota.cli.status", *COMMAND),
}
"""The programs that tests start often, and what each loads when it starts; see starter.py."""
USUAL = ("cyborg-quota-conductor", f"{QUOTA}.wsgi:application")
_numbers = itertools.count()


class Stack:
    """Services whose data exists as long as this object.

    ``api``, ``conductor``, ``agents``, ``placement`` and ``bus`` can each be started, stopped and killed. ``isolated``
    is the start of a command whose program imports only installed packages, whatever its directory.

    :param hosts: the number of fake hosts, with 16 attach handles each.
    :param version: Cyborg's, one of environment.VERSIONS.
    :param bus: a running one, of which each version has a virtual host; by default the stack has a bus of its own.
    """

    def __init__(self, hosts: int = 1, version: str = environment.VERSIONS[0], bus: RabbitMQ | None = None) -> None:
        self.programs = environment.ensure(version)
        self.isolated = [str(self.programs / "python"), "-I"]
        if reason := fixtures.missing_server("mariadb"):
            raise NotAvailable(reason)
        self.hosts: list[str] = []
        self.agents: list[Service] = []
        self.workdir, self._lock = machine.private_directory(PREFIX, environment.DIRECTORY)
        self.starter = Starter(self.programs / "python", self.workdir, templates=TEMPLATES)
        self.bus, self._has_own_bus = bus or RabbitMQ(), bus is None
        self._vhost = VHOSTS[environment.VERSIONS.index(version)]
        self.nova = Nova()
        self.url = fixtures.fresh_url("mariadb", f"cyborg{next(_numbers)}")
        self.records = Records(self.url)
        placement_port, self._api_port = machine.free_port(), machine.free_port()
        self.placement_url = f"http://127.0.0.1:{placement_port}"
        self.api_url = f"http://127.0.0.1:{self._api_port}"
        self.placement = self._web("placement", "placement.wsgi.api:application", placement_port, PLACEMENT_THREADS)
        self._name_hosts(hosts)
        self._set_up(CONDUCTOR, API, "")

    # --- its parts ---

    def _set_up(self, conductor: Sequence[str], api: str, config: str) -> None:
        self.setup = tuple(conductor), api, config
        (self.workdir / "extra.conf").write_text(config)
        self.api = self._web("api", api, self._api_port, API_THREADS, *self.config_files())
        self.conductor = self._cyborg("conductor", *conductor)

    def config_files(self, host: str = "") -> list[str]:
        """Return the arguments that name the configuration, as Cyborg's programs take them."""
        names = ["cyborg", "extra", *([host] if host else [])]
        return [f"--config-file={self.workdir / name}.conf" for name in names]

    def add_conductor(self, host: str) -> Service:
        """Start a conductor like the first one, with this host name; it ends with the starter."""
        configuration.write_host(self.workdir, host)
        made = self._cyborg(f"conductor-{host}", *self.setup[0], host=host)
        made.start()
        return made

    def _name_hosts(self, count: int) -> None:
        for number in range(len(self.hosts), count):
            host = f"fake-host-{number}"
            configuration.write_host(self.workdir, host)
            self.hosts.append(host)
            self.agents.append(self._cyborg(f"agent-{host}", "cyborg-agent", host=host))

    @property
    def rps(self) -> list[str]:
        """Return the resource provider of each host's device."""
        providers = self.records.providers()
        return [providers[host] for host in self.hosts]

    def _cyborg(self, name: str, program: str, *arguments: str, host: str = "") -> Service:
        command = [str(self.programs / program), *arguments, *self.config_files(host)]
        return Service(
            name, command, self.workdir, lambda output: "Created RPC server for service" in output, starter=self.starter
        )

    def _web(self, name: str, application: str, port: int, threads: int, *arguments: str) -> Service:
        settings = WebSettings(self.programs, self.workdir, {"OS_PLACEMENT_CONFIG_DIR": str(self.workdir)})
        return web_service(name, application, port, threads, arguments, settings=settings, starter=self.starter)

    # --- the start ---

    def start(self) -> None:
        """Return when every host's devices can be bound. Raises NotAvailable, ServiceError."""
        self.start_base()
        self.use()
        self.need_hosts(len(self.hosts))

    def start_base(self) -> None:
        """Start what is the same for all conductors and APIs. Raises NotAvailable, ServiceError."""
        if self._has_own_bus:
            self.bus.prepare()
            self.bus.launch()
        self._start_beside_the_bus()
        self.bus.wait()

    def _start_beside_the_bus(self) -> None:
        """While the bus starts, which takes longest, do everything that does not need it."""
        bus = self.bus.url_of(self._vhost)
        urls = {"bus": bus, "database": self.url, "nova": self.nova.url, "placement": self.placement_url}
        configuration.write(self.workdir, **urls)
        self.starter.prepare(*USUAL)
        self.placement.launch()
        sync = [str(self.programs / "cyborg-dbsync"), *self.config_files(), "upgrade"]
        Service("dbsync", sync, self.workdir, bool, starter=self.starter).finish()
        self.placement.wait()
        for host in self.hosts:
            self._create_provider(host)

    def need_hosts(self, count: int) -> None:
        """Make sure that this many hosts' devices can be bound; hosts may be added, none is removed."""
        known = len(self.hosts)
        self._name_hosts(count)
        for host in self.hosts[known:]:
            self._create_provider(host)
        # An agent reports when it starts, and if no conductor listens, not again for a minute. One by one: of several
        # that report concurrently, Cyborg sometimes loses one.
        for host, agent in zip(self.hosts, self.agents, strict=True):
            agent.start()
            self.records.wait_for_devices([host])

    def _create_provider(self, host: str) -> None:
        """Make the root provider of a host, as nova-compute does."""
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.20"}
        body = {"name": host, "uuid": str(uuid.uuid4())}
        answer = call(self.placement_url, "POST", "/resource_providers", body, headers)
        assert answer.status == 200, answer

    def use(self, conductor: Sequence[str] = CONDUCTOR, api: str = API, config: str = "") -> None:
        """Make sure that this API and this conductor run; if they do, nothing is changed.

        :param conductor: a program of the environment, and its arguments.
        :param api: a WSGI application, as MODULE:NAME.
        :param config: more text for cyborg.conf, which overrides that of the stack.
        """
        if (tuple(conductor), api, config) != self.setup:
            self.api.kill()
            self.conductor.kill()
            self._set_up(conductor, api, config)
        start_all(self.conductor, self.api)

    def close(self) -> None:
        """End all services, and remove their data."""
        for service in (self.api, self.conductor, *self.agents, self.placement):
            service.kill()
        self.starter.close()
        if self._has_own_bus:
            self.bus.close()
        self.nova.close()
        self.records.close()
        shutil.rmtree(self.workdir, ignore_errors=True)
        self._lock.close()

    # --- users ---

    def client(self, project_id: str, *roles: str) -> Client:
        """Return a user of this project, with these roles; by default member and reader."""
        return Client(self.api_url, project_id, roles or ("member", "reader"))


@once_per_process
def of_this_process(version: str) -> Stack:
    """Return the stack that this process's tests share. Raises NotAvailable, ServiceError.

    It has no conductor, API or agent yet. The stack of an older Cyborg uses the bus of the first one.
    """
    latest = environment.VERSIONS[0]
    made = Stack(version=version, bus=of_this_process(latest).bus if version != latest else None)
    fixtures.at_exit(made.close)
    made.start_base()
    return made


def running(
    conductor: Sequence[str] = CONDUCTOR,
    api: str = API,
    config: str = "",
    hosts: int = 1,
    version: str = environment.VERSIONS[0],
) -> Stack:
    """Return the stack of this process, with this API, this one conductor, and no ARQs.

    Raises NotAvailable, ServiceError.
    """
    found = of_this_process(version)
    found.use(conductor, api, config)
    found.need_hosts(hosts)
    found.nova.status = 200
    found.records.clear()
    return found
