# SPDX-License-Identifier: Apache-2.0
"""The base class of the tests of Cyborg and Keystone: Cyborg's API validates the tokens of a real Keystone."""

from __future__ import annotations

import uuid

from tests.cyborgs import environment, quota
from tests.cyborgs.client import Client, TokenClient
from tests.integration import catalog
from tests.integration import server as keystones
from tests.servers import sharing

PASTE = environment.DIRECTORY / "env/etc/cyborg/api-paste.ini"
"""The file that Cyborg installs."""


class KeystoneTestCase(quota.QuotaTestCase):
    """``keystone`` has Cyborg in its catalog. All clients have tokens; that of a service comes with a bind."""

    @property
    def config(self) -> str:  # type: ignore[override]
        return f"{super().config}[api]\napi_paste_config = {PASTE}\n{self.keystone.authtoken}"

    def setUp(self) -> None:
        # Before super().setUp(), which starts Cyborg's API and makes users.
        self.keystone = sharing.need(self, "Keystone", keystones.running, "flat")
        self.service_token = self.keystone.create_token(self.new_project(), "service")
        super().setUp()
        self.useFixture(catalog.OnlyAccelerator(self.keystone, f"{self.stack.api_url}/v2"))

    def new_project(self) -> str:
        return self.keystone.create("project", name=f"cyborg-{uuid.uuid4().hex[:8]}", domain_id="default")

    def new_client(self, *roles: str) -> Client:
        """A user with the first of these roles in a new project. Keystone knows which other roles it implies."""
        return self.client_in(self.new_project(), roles[0])

    def client_in(self, project_id: str, role: str) -> Client:
        """A new user with this role in the project."""
        return self.client_with(self.keystone.create_token(project_id, role), project_id)

    def client_with(self, token: str, project_id: str) -> Client:
        """A user with this token."""
        return TokenClient(self.stack.api_url, project_id, token, self.service_token)
