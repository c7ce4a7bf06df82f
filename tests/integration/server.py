# SPDX-License-Identifier: Apache-2.0
"""A private Keystone: it can be started, stopped, suspended, and restarted with another enforcement model."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil
import sqlite3
import uuid
from typing import Any

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.v3 import Password
from keystoneauth1.session import Session

from tests import fixtures
from tests.cyborgs.service import Service, answering
from tests.cyborgs.starting import Starter
from tests.integration import environment
from tests.integration.environment import REGION
from tests.servers import machine
from tests.servers.sharing import once_per_process

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
        found = environment.ensure()
        port = machine.free_port()
        self.url = f"http://127.0.0.1:{port}/v3"
        self.workdir, self._lock = machine.private_directory(PREFIX, environment.DIRECTORY)
        shutil.copytree(found.template, self.workdir, dirs_exist_ok=True)
        with sqlite3.connect(self.workdir / "keystone.sqlite") as database:
            database.execute("UPDATE endpoint SET url = ?", [self.url])
        database.close()
        self.model = ""
        self.password = found.password
        self._starter = Starter(found.python, self.workdir, templates={PROGRAM.name: MODULES})
        command = [str(PROGRAM), str(port), str(threads)]
        environ = {"OS_KEYSTONE_CONFIG_FILES": str(self.workdir / environment.CONFIG_NAME)}
        self.service = Service("serve", command, self.workdir, answering(self.url), environ, starter=self._starter)
        # (Keystone needs four times as long for each request whose token has the scope system.)
        admin = self.session("admin", self.password, project_name="admin", project_domain_id="default")
        self.admin = Adapter(admin, service_type="identity", endpoint_override=self.url)

    def start(self, model: str) -> None:
        """Make sure that it runs with this enforcement model; if it does, nothing happens."""
        if self.service.running and self.model == model:
            return
        self.stop()
        self.model = model
        environment.write_config(self.workdir, model)
        self.service.start()

    def stop(self) -> None:
        """End it; its data stays."""
        self.service.kill()

    def close(self) -> None:
        self.stop()
        self._starter.close()
        shutil.rmtree(self.workdir, ignore_errors=True)
        self._lock.close()

    def session(self, name: str, password: str, **scope: str) -> Session:
        """A session of a user of the default domain. ``scope``: project_id, domain_id or system_scope."""
        auth = Password(self.url, username=name, password=password, user_domain_id="default", **scope)
        return Session(auth, timeout=CALL_TIMEOUT_SECONDS)

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

    def create_user(self, scope: str, *roles: str, name: str | None = None) -> tuple[str, str]:
        """Make a user of the default domain with these roles; returns name and password.

        :param scope: ``system``, ``projects/ID`` or ``domains/ID``.
        """
        name, password = name or f"quota-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        user_id = self.create("user", name=name, password=password, domain_id="default")
        for role in roles:
            self.admin.put(f"/{scope}/users/{user_id}/roles/{self._role_ids[role]}")
        return name, password

    def create_token(self, project_id: str, role: str) -> str:
        """A token of a new user with this role in the project."""
        user = self.create_user(f"projects/{project_id}", role)
        return str(self.session(*user, project_id=project_id).get_token())

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
            reader=self.create_user("system", "reader"),
            member_of_the_first=self.create_user(f"projects/{projects[0]}", "member"),
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


@once_per_process
def _of_this_process() -> Keystone:
    made = Keystone()
    fixtures.at_exit(made.close)
    return made


def running(model: str) -> Keystone:
    """The Keystone that this process's tests share, with this enforcement model. Raises NotAvailable."""
    found = _of_this_process()
    found.start(model)
    return found
