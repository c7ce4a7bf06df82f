# SPDX-License-Identifier: Apache-2.0
"""The real Keystone and the real Cyborg API, with the REST API of quota in it: what each persona may do."""

from __future__ import annotations

import uuid

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.v3 import Token
from keystoneauth1.session import Session

from tests import base
from tests.cyborgs import environment, quota
from tests.cyborgs.client import Client, TokenClient
from tests.integration import catalog
from tests.integration import server as keystones
from tests.servers import sharing

PASTE = environment.DIRECTORY / "env/etc/cyborg/api-paste.ini"
"""The file that Cyborg installs."""
VERSION_HEADERS = ("OpenStack-API-Version", "OpenStack-API-Minimum-Version", "OpenStack-API-Maximum-Version", "Vary")


class TestPersonas(quota.QuotaTestCase):
    """Cyborg's API validates the tokens of a real Keystone, which has Cyborg in its catalog.

    ``client`` is a member of the project, whose parent has a limit of 4 fpga; the project has 2. All clients have
    tokens; that of a service comes with a bind.
    """

    @property
    def config(self) -> str:  # type: ignore[override]
        return f"{super().config}[api]\napi_paste_config = {PASTE}\n{self.keystone.authtoken}"

    def setUp(self) -> None:
        # Before super().setUp(), which starts Cyborg's API and makes users.
        self.keystone = sharing.need(self, "Keystone", keystones.running, "flat")
        self.service_token = self.keystone.create_token(self.new_project(), "service")
        super().setUp()
        self.useFixture(catalog.OnlyAccelerator(self.keystone, f"{self.stack.api_url}/v2"))
        self.path = f"/quotas/{self.project_id}"
        self.parent_id = self.new_project()
        admin = self.engine.limits
        admin.add_project(base.ADMIN, self.parent_id)
        admin.set_limit(base.ADMIN, "fpga", 4, self.parent_id)
        admin.add_project(base.ADMIN, self.project_id, self.parent_id)
        admin.set_limit(base.ADMIN, "fpga", 2, self.project_id)

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

    def fpga(self, client: Client) -> tuple[int, int, int]:
        """The limit, what is in use and what fits, as this user sees it."""
        found = client.call("GET", f"{self.path}/detail").body["quota"]["fpga"]
        return found["limit"], found["in_use"], found["fits"]

    def test_each_persona(self) -> None:
        """An attach through Cyborg's calls; then the calls of quota and of Cyborg by each user."""
        arqs = self.client.created(self.profile, 3)
        reader = self.client_in(self.project_id, "reader")
        self.assertEqual((2, 0, 2), self.fpga(reader))
        for number, arq in enumerate(arqs[:2], start=1):
            self.bind([arq])
            self.assertEqual((2, number, 2 - number), self.fpga(reader))
        self.assertIn("limit 2", self.refused(arqs[2:]))
        self.check_personas(reader, arqs[0])
        self.check_tokens()
        self.assertEqual(204, self.client.delete(arqs[:1]).status)
        self.assertEqual((3, 1, 2), self.fpga(reader))
        self.assert_agree()

    def check_personas(self, reader: Client, arq: str) -> None:
        """What each may do: see and set the quota, list all quotas; and by the rules of Cyborg, see an ARQ."""
        project_id, elsewhere = self.project_id, self.new_project()
        people = {
            "reader": (reader, 200, 403, 403, 200),
            "member": (self.client, 200, 403, 403, 200),
            "manager": (self.client_in(project_id, "manager"), 200, 403, 403, 200),
            "manager of the parent": (self.client_in(self.parent_id, "manager"), 200, 200, 403, 404),
            "service": (self.client_in(elsewhere, "service"), 200, 403, 200, 404),
            "stranger": (self.client_in(elsewhere, "member"), 404, 404, 403, 404),
            "admin": (self.admin, 200, 200, 200, 200),
        }
        change = {"quota": {"fpga": 3}}
        found: dict[str, list[int]] = {}
        for name, (client, *_) in people.items():
            answers = (
                client.call("GET", f"{self.path}/detail"),
                client.call("PUT", self.path, change),
                client.call("GET", "/quotas"),
                client.get(arq),
            )
            found[name] = [answer.status for answer in answers]
        self.assertEqual({name: statuses for name, (_, *statuses) in people.items()}, found)
        self.assertEqual((3, 2, 1), self.fpga(reader))
        for client, expected in ((reader, [self.project_id] * 2), (self.client_in(elsewhere, "reader"), [])):
            mine = client.call("GET", "/quota_reservations").body["reservations"]
            self.assertEqual(expected, [one["project_id"] for one in mine])

    def check_tokens(self) -> None:
        """The endpoint is that of Cyborg in the catalog; without a valid token, it answers both APIs with 401."""
        token = self.keystone.create_token(self.project_id, "reader")
        session = Session(Token(self.keystone.url, token, project_id=self.project_id))
        cyborg = Adapter(session, service_type="accelerator", interface="public")
        ours, theirs = cyborg.get(f"{self.path}/detail"), cyborg.get("/device_profiles")
        self.assertEqual((3, 200), (ours.json()["quota"]["fpga"]["limit"], theirs.status_code))
        self.assertRegex(ours.headers["X-OpenStack-Request-Id"], "^req-")
        # The microversion is negotiated as by Cyborg itself.
        self.assertEqual(*[{name: answer.headers[name] for name in VERSION_HEADERS} for answer in (ours, theirs)])
        forged = self.client_with("forged", self.project_id)
        answers = [forged.call("GET", path) for path in (self.path, "/device_profiles")]
        self.assertEqual([401, 401], [answer.status for answer in answers])
        self.assertEqual("cyborg_quota.unauthorized", answers[0].body["errors"][0]["code"])
