# SPDX-License-Identifier: Apache-2.0
"""A private Keystone: it can be started, stopped, suspended, and restarted with another enforcement model."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import shutil
import signal
import socket
import sqlite3
import uuid
from typing import Any

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.v3 import Password
from keystoneauth1.session import Session

from tests import fixtures
from tests.cyborgs.starting import Process, ProcessSettings, Starter
from tests.installing import NotAvailable
from tests.integration import environment
from tests.integration.environment import REGION
from tests.servers import machine

START_TIMEOUT_SECONDS = 60.0
CALL_TIMEOUT_SECONDS = 30.0
PREFIX = "cyborg-quota-keystone-"
PROGRAM = pathlib.Path(__file__).with_name("serve_keystone.py")
MODULES = ("keystone.server.wsgi", "keystone.server.backends", "keystone.auth.plugins.password")
"""What it loads when it starts. It is restarted often: each start is a fork of a process that has loaded them."""
AUTHTOKEN = """\
[keystone_authtoken]
auth_type = password
auth_url = {url}
www_authenticate_uri = {url}
username = admin
password = {password}
project_name = admin
user_domain_id = default
project_domain_id = default
# This Keystone has no other endpoint.
interface = public
http_request_max_retries = 0
service_token_roles_required = true
"""


@dataclasses.dataclass(frozen=True)
class People:
    """The IDs of projects, and users by name and password."""

    domain_id: str
    project_ids: tuple[str, ...]
    reader: tuple[str, str]
    member_of_the_first: tuple[str, str]


class Keystone:
    """A server whose data exists as long as this process.

    :param threads: of the server. With one thread SQLite is never locked, however many services request tokens.
    """

    def __init__(self, threads: int = 4) -> None:
        self._threads = threads
        self._environment = environment.ensure()
        self.port = machine.free_port()
        self.url = f"http://127.0.0.1:{self.port}/v3"
        self.workdir, self._lock = machine.private_directory(PREFIX, environment.DIRECTORY)
        shutil.copytree(self._environment.template, self.workdir, dirs_exist_ok=True)
        with sqlite3.connect(self.workdir / "keystone.sqlite") as database:
            database.execute("UPDATE endpoint SET url = ?", [self.url])
        database.close()
        self.model = ""
        self.password = self._environment.password
        templates = {PROGRAM.name: MODULES}
        self._starter = Starter(self._environment.python, self.workdir, templates=templates)
        self._process: Process | None = None
        self.admin = self._log_in()

    def start(self, model: str) -> None:
        """Make sure that it runs with this enforcement model; if it does, nothing happens."""
        if self._process is not None and self._process.poll() is None and self.model == model:
            return
        self.stop()
        self.model = model
        config = environment.write_config(self.workdir, model)
        log = self.workdir / "serve.log"
        environ = {**os.environ, "OS_KEYSTONE_CONFIG_FILES": str(config)}
        command = [str(PROGRAM), str(self.port), str(self._threads)]
        self._process = self._starter.start(command, ProcessSettings(log, log, environ, self.workdir))
        machine.wait_until(self._is_up, START_TIMEOUT_SECONDS)
        if not self._is_up():
            raise NotAvailable((self.workdir / "serve.log").read_text()[-2000:])

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise NotAvailable((self.workdir / "serve.log").read_text()[-2000:])
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it; its data stays."""
        if self._process is not None:
            if self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Suspend it: it keeps its port and its connections, and does not answer."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        machine.wait_until(lambda: machine.stopped(pid), 10.0)

    def resume(self) -> None:
        """Resume it after hang()."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        self._starter.close()
        shutil.rmtree(self.workdir, ignore_errors=True)
        self._lock.close()

    def _log_in(self) -> Adapter:
        auth = Password(
            self.url,
            username="admin",
            password=self._environment.password,
            user_domain_id="default",
            system_scope="all",
        )
        session = Session(auth, timeout=CALL_TIMEOUT_SECONDS)
        return Adapter(session, service_type="identity", endpoint_override=self.url)

    @property
    def authtoken(self) -> str:
        """The part of the configuration with which a service validates tokens."""
        return AUTHTOKEN.format(url=self.url, password=self.password)

    # --- operations of an administrator ---

    def create(self, what: str, **body: Any) -> str:
        """POST one of ``what``; returns its ID."""
        answer = self.admin.post(f"/{what}s", json={what: body}).json()
        return str(answer[what]["id"])

    def create_service(self) -> tuple[str, str]:
        """Make a service of Cyborg's type with a name of its own, and its endpoint; returns their IDs."""
        service_id = self.create("service", type="accelerator", name=f"cyborg-{uuid.uuid4().hex[:8]}")
        endpoint_id = self.create(
            "endpoint", service_id=service_id, region_id=REGION, interface="public", url="http://127.0.0.1:6666"
        )
        return service_id, endpoint_id

    def create_user(self, *, system_role: str | None = None, project_id: str | None = None) -> tuple[str, str]:
        """Make a user with this role on the system, or with the role member in a project; returns name and password."""
        name, password = f"quota-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        user_id = self.create("user", name=name, password=password, domain_id="default")
        if system_role is not None:
            self.admin.put(f"/system/users/{user_id}/roles/{self._role_id(system_role)}")
        if project_id is not None:
            self.grant(user_id, project_id, "member")
        return name, password

    def create_token(self, project_id: str, role: str) -> str:
        """A token of a new user with this role in the project."""
        name, password = f"quota-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        user_id = self.create("user", name=name, password=password, domain_id="default")
        self.grant(user_id, project_id, role)
        return self.log_in(name, password, project_id)

    def log_in(self, name: str, password: str, project_id: str) -> str:
        """A token of a user of the default domain for a project."""
        auth = Password(self.url, username=name, password=password, user_domain_id="default", project_id=project_id)
        return str(Session(auth, timeout=CALL_TIMEOUT_SECONDS).get_token())

    def grant(self, user_id: str, project_id: str, role: str) -> None:
        """Give a user a role in a project."""
        self.admin.put(f"/projects/{project_id}/users/{user_id}/roles/{self._role_id(role)}")

    def _role_id(self, name: str) -> str:
        return self._role_ids[name]

    @functools.cached_property
    def _role_ids(self) -> dict[str, str]:
        return {role["name"]: role["id"] for role in self.admin.get("/roles").json()["roles"]}

    @functools.cached_property
    def people(self) -> People:
        """Made once: limits belong to a service, and each test has a service of its own."""
        domain_id = self.create("domain", name="a domain")
        projects = tuple(self.create("project", name=name, domain_id=domain_id) for name in ("p1", "p2", "p3"))
        return People(
            domain_id,
            projects,
            reader=self.create_user(system_role="reader"),
            member_of_the_first=self.create_user(project_id=projects[0]),
        )

    def register(self, service_id: str, resource: str, limit: int) -> None:
        """Register a limit, or change it."""
        wanted = {"service_id": service_id, "region_id": REGION, "resource_name": resource}
        found = self.admin.get("/registered_limits", params=wanted).json()["registered_limits"]
        if found:
            changed = {"registered_limit": {"default_limit": limit}}
            self.admin.patch(f"/registered_limits/{found[0]['id']}", json=changed)
        else:
            self.admin.post("/registered_limits", json={"registered_limits": [{**wanted, "default_limit": limit}]})

    def set_limit(self, service_id: str, resource: str, limit: int, **holder: str) -> None:
        """Set the limit of ``project_id=`` or ``domain_id=``, or change it.

        Keystone 30 answers 200 to a change to 0, and changes nothing: so that one is deleted and made anew.
        """
        wanted = {"service_id": service_id, "region_id": REGION, "resource_name": resource, **holder}
        found = self.admin.get("/limits", params=wanted).json()["limits"]
        if found and limit != 0:
            self.admin.patch(f"/limits/{found[0]['id']}", json={"limit": {"resource_limit": limit}})
        else:
            if found:
                self.admin.delete(f"/limits/{found[0]['id']}")
            self.admin.post("/limits", json={"limits": [{**wanted, "resource_limit": limit}]})


@functools.cache
def of_this_process(_pid: int) -> Keystone | NotAvailable:
    """Return the Keystone that this process's tests share, or the error: a failed installation is not repeated."""
    try:
        made = Keystone()
    except NotAvailable as reason:
        return reason
    fixtures.at_exit(made.close)
    return made


def running(model: str) -> Keystone:
    """A Keystone that runs, with this enforcement model. Raises NotAvailable."""
    found = of_this_process(os.getpid())
    if isinstance(found, NotAvailable):
        raise found
    found.start(model)
    return found
