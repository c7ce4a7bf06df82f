# SPDX-License-Identifier: Apache-2.0
"""Everything that the tests of the panels need: Keystone, the REST API, Horizon, a browser, projects and users."""

from __future__ import annotations

import pathlib
import secrets
import uuid
from typing import Any

import fixtures as fx
from playwright.sync_api import BrowserContext, sync_playwright

import cyborg_quota
from cyborg_quota import QuotaEngine
from tests import base, doc_pages, fixtures
from tests.api import server as api_server
from tests.cyborgs.service import Service, answering
from tests.cyborgs.starting import ProgramStarter
from tests.horizon import environment
from tests.integration import rest_api
from tests.integration import server as keystones
from tests.integration.server import Keystone
from tests.servers import machine
from tests.servers.sharing import lasting, once_per_process

PROJECTS = {"physics": (None, 30), "atlas": ("physics", 20), "cms": ("physics", 10), "biology": (None, 5)}
"""The parent of each project, and its limit of gpu."""
PREFIX = "cyborg-quota-horizon-"


class Stack(fx.Fixture):
    """The services and the browser; the projects physics, below it atlas and cms, and biology.

    Alice is an admin, bob a member of atlas (the name and the password of each). ``python``: that of Horizon;
    ``program``: the browser.
    """

    context: BrowserContext
    engine: QuotaEngine

    def __init__(self, keystone: Keystone, python: pathlib.Path, program: str) -> None:
        super().__init__()
        self.keystone = keystone
        self._python = python
        self._program = program
        self.sessions: dict[tuple[str, str], list[Any]] = {}
        """The browser's cookies of users who are logged in."""

    def _setUp(self) -> None:
        self._start()
        self._make_projects()
        self.alice = self.keystone.create_user(f"projects/{self.projects['physics']}", "admin", name="alice")
        self.bob = self.keystone.create_user(f"projects/{self.projects['atlas']}", "member", name="bob")

    def _start(self) -> None:
        self.ledger = self.useFixture(fixtures.EmptyLedger("sqlite", "horizon")).url
        self.engine = cyborg_quota.make_engine(api_server.settings(self.ledger))
        self.addCleanup(self.engine.close)
        self.api = self.useFixture(rest_api.RestAPI(self.ledger, self.keystone, rest_api.ONE_WORKER))
        self._start_horizon()
        playwright = sync_playwright().start()
        self.addCleanup(playwright.stop)
        browser = playwright.chromium.launch(executable_path=self._program)
        self.addCleanup(browser.close)
        self.context = browser.new_context()

    def _start_horizon(self) -> None:
        port = machine.free_port()
        self.horizon_url = f"http://127.0.0.1:{port}"
        command = [str(self._python), str(pathlib.Path(__file__).with_name("serve.py")), str(port)]
        variables = {
            "DJANGO_SETTINGS_MODULE": environment.SETTINGS_MODULE,
            "CYBORG_QUOTA_HORIZON_KEYSTONE": self.keystone.url,
            "CYBORG_QUOTA_HORIZON_SECRET": secrets.token_hex(32),
        }
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        ready = answering(f"{self.horizon_url}/auth/login/")
        self.horizon = Service("horizon", command, directory, ready, variables, starter=ProgramStarter())
        self.addCleanup(self.horizon.stop)
        self.horizon.start()

    def _make_projects(self) -> None:
        self.projects: dict[str, str] = {}
        for name, (parent, _limit) in PROJECTS.items():
            project_id = self.keystone.create("project", name=name, domain_id="default")
            parent_id = None if parent is None else self.projects[parent]
            self.engine.limits.add_project(base.ADMIN, project_id, parent_id)
            self.projects[name] = project_id

    def reset(self) -> None:
        """Start Keystone if needed, release everything, and set the limits of PROJECTS, without overrides."""
        self.keystone.start("flat")
        admin = self.engine.limits
        admin.set_limits(base.ADMIN, {"gpu": 0, "fpga": 2})
        for name, (_parent, limit) in PROJECTS.items():
            project_id = self.projects[name]
            context = base.Context(project_id)
            if live := [one.uuid for one in self.engine.get_reservations(context)]:
                self.engine.release(context, live)
            admin.set_limits(base.ADMIN, {"gpu": limit, "fpga": None}, project_id)
            overrides, _more = admin.list_overrides(base.ADMIN, project_id)
            admin.cancel_overrides(base.ADMIN, [one.id for one in overrides])

    def attach(self, project: str, **amounts: int) -> None:
        """Charge a project as the conductor of Cyborg does it for an attach. Raises OverQuota."""
        context = base.Context(self.projects[project])
        with cyborg_quota.attachment(self.engine, context, amounts, consumer=str(uuid.uuid4())):
            pass


@once_per_process
def running() -> Stack:
    """Return the stack that this process's tests share. Raises NotAvailable."""
    made = Stack(keystones.running("flat"), environment.ensure(), doc_pages.chromium())
    return lasting(made, PREFIX, environment.DIRECTORY)
