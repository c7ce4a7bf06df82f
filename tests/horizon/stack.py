# SPDX-License-Identifier: Apache-2.0
"""Everything that the tests of the panels need: Keystone, the REST API, Horizon, a browser, projects and users."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import uuid

import fixtures as fx
from playwright.sync_api import Browser, sync_playwright

import cyborg_quota
from cyborg_quota import QuotaEngine
from tests import base, fixtures
from tests.api import server as api_server
from tests.horizon import server
from tests.installing import NotAvailable
from tests.integration import rest_api
from tests.integration import server as keystones
from tests.integration.server import Keystone

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclasses.dataclass(frozen=True)
class User:
    """A user who can log in. The project of the token is the only one of the user."""

    name: str
    password: str


class Stack(fx.Fixture):
    """The services and the browser; and the tree physics (atlas, cms), biology, each with users of its own.

    The limits of gpu are 30 for physics, 20 for atlas, 10 for cms and 5 for biology. Raises NotAvailable.
    """

    keystone: Keystone
    browser: Browser
    engine: QuotaEngine

    def _setUp(self) -> None:
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        if program is None:
            raise NotAvailable("chromium is not installed")
        self.keystone = keystones.running("flat")
        ledger = self.useFixture(fixtures.EmptyLedger("sqlite", "horizon")).url
        self.engine = cyborg_quota.make_engine(api_server.settings(ledger))
        self.addCleanup(self.engine.close)
        self.api = self.useFixture(rest_api.RestAPI(ledger, self.keystone, {"workers = 2": "workers = 1"}))
        self.horizon = self.useFixture(server.Horizon(self.keystone))
        playwright = sync_playwright().start()
        self.addCleanup(playwright.stop)
        self.browser = playwright.chromium.launch(executable_path=program)
        self.addCleanup(self.browser.close)
        self._make_projects()

    def _make_projects(self) -> None:
        self.projects: dict[str, str] = {}
        admin = self.engine.administration
        admin.set_limits(base.ADMIN, {"gpu": 0, "fpga": 2})
        for name, parent, limit in (("physics", None, 30), ("atlas", "physics", 20), ("cms", "physics", 10)):
            self._make_project(name, parent, limit)
        self._make_project("biology", None, 5)

    def _make_project(self, name: str, parent: str | None, limit: int) -> None:
        project_id = self.keystone.create("project", name=name, domain_id="default")
        self.addCleanup(self.keystone.admin.delete, f"/projects/{project_id}")
        self.projects[name] = project_id
        admin = self.engine.administration
        admin.add_project(base.ADMIN, project_id, None if parent is None else self.projects[parent])
        admin.set_limit(base.ADMIN, "gpu", limit, project_id)

    def make_user(self, name: str, project: str, role: str) -> User:
        """Make a user with this role in a project; the user is deleted at the end."""
        user = User(f"{name}-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex)
        user_id = self.keystone.create("user", name=user.name, password=user.password, domain_id="default")
        self.addCleanup(self.keystone.admin.delete, f"/users/{user_id}")
        self.keystone.grant(user_id, self.projects[project], role)
        return user

    def attach(self, project: str, **amounts: int) -> None:
        """Charge a project as the conductor of Cyborg does it for an attach. Raises OverQuota."""
        context = base.Context(self.projects[project])
        with cyborg_quota.attachment(self.engine, context, amounts, consumer=str(uuid.uuid4())):
            pass


@functools.cache
def of_this_process(_pid: int) -> Stack | NotAvailable:
    """Return the stack that this process's tests share, or the error."""
    made = Stack()
    try:
        made.setUp()
    except NotAvailable as reason:
        made.cleanUp()
        return reason
    fixtures.at_exit(made.cleanUp)
    return made


def running() -> Stack:
    """The stack. Raises NotAvailable."""
    found = of_this_process(os.getpid())
    if isinstance(found, NotAvailable):
        raise found
    keystones.running("flat")
    return found
