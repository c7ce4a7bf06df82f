# SPDX-License-Identifier: Apache-2.0
"""The REST API under gunicorn, configured by the documented file, with tokens of a real Keystone for each persona."""

from __future__ import annotations

import os
from typing import Any

from keystoneauth1 import discover
from keystoneauth1.session import Session

import cyborg_quota
from tests import base
from tests.api import server as api_server
from tests.integration import rest_api
from tests.integration import server as servers
from tests.servers import sharing


class PersonasTestCase(base.LedgerTestCase):
    """``parent`` has the child ``project``; ``elsewhere`` is another root. The limits of gpu are 20, 10 and 5."""

    def setUp(self) -> None:
        super().setUp()
        self.keystone = sharing.need(self, "Keystone", servers.running, "flat")
        self.parent, self.project, self.elsewhere = (self.new_project(name) for name in ("parent", "project", "other"))
        self.prepare_ledger()
        self.api = rest_api.running(self.url, self.keystone)

    def new_project(self, name: str) -> str:
        return self.keystone.create("project", name=f"{name}-{os.urandom(4).hex()}", domain_id="default")

    def prepare_ledger(self) -> None:
        self.engine = engine = cyborg_quota.make_engine(api_server.settings(self.url))
        self.addCleanup(engine.close)
        admin = engine.limits
        admin.set_limits(base.ADMIN, {"gpu": 0, "fpga": 0})
        parents = {self.parent: None, self.project: self.parent, self.elsewhere: None}
        for (project_id, parent_id), limit in zip(parents.items(), (20, 10, 5), strict=True):
            admin.add_project(base.ADMIN, project_id, parent_id)
            admin.set_limit(base.ADMIN, "gpu", limit, project_id)
        engine.commit(base.Context(self.project), engine.reserve(base.Context(self.project), {"gpu": 3}))

    def user(self, project_id: str, role: str) -> Session:
        """A session of a new user with this role in the project."""
        user = self.keystone.create_user(f"projects/{project_id}", role)
        return self.keystone.session(*user, project_id=project_id)

    def ask(self, session: Session, path: str, method: str = "GET", *, is_failing: bool = False, **options: Any) -> Any:
        answer = session.request(f"{self.api.url}{path}", method, raise_exc=False, **options)
        if not is_failing:
            self.assertLess(answer.status_code, 500, self.api.log[-3000:])
        return answer


class TestPersonas(PersonasTestCase):
    def test_version_documents(self) -> None:
        """Without a token, as keystoneauth reads them."""
        for path in ("/", "/v2", "/v2/"):
            found = discover.Discover(Session(), f"{self.api.url}{path}", authenticated=False)
            [version] = found.version_data()
            self.assertEqual(
                ((2, 0), f"{self.api.url}/v2/", (2, 0), (2, 3)),
                tuple(version[name] for name in ("version", "url", "min_microversion", "max_microversion")),
            )

    def test_a_long_url(self) -> None:
        """The answer is that of the API; gunicorn's own is HTML."""
        answer = self.ask(self.user(self.project, "admin"), f"/v2/quotas/{'a' * 6000}")
        self.assertEqual((404, "application/json"), (answer.status_code, answer.headers["Content-Type"]))

    def test_without_a_valid_token(self) -> None:
        """Without one, and with a forged one."""
        for token in (None, "not-a-token"):
            headers = {} if token is None else {"X-Auth-Token": token}
            forged = {"X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-Project-Id": self.project}
            answer = self.ask(
                Session(), f"/v2/quotas/{self.project}", headers={**headers, **forged}, authenticated=False
            )
            self.assertEqual(401, answer.status_code)
            self.assertEqual(f'Keystone uri="{self.keystone.url}"', answer.headers["WWW-Authenticate"])
            self.assertEqual("cyborg_quota.unauthorized", answer.json()["errors"][0]["code"])

    def test_token_of_a_domain(self) -> None:
        session = self.keystone.session(*self.keystone.create_user("domains/default", "admin"), domain_id="default")
        for path, status in ((f"/v2/quotas/{self.project}", 404), ("/v2/quotas", 403)):
            self.assertEqual(status, self.ask(session, path).status_code)

    def test_without_keystone(self) -> None:
        session = self.user(self.project, "reader")
        headers = session.get_auth_headers()
        self.keystone.stop()
        self.addCleanup(self.keystone.start, "flat")
        answer = self.ask(
            Session(), f"/v2/quotas/{self.project}", headers=headers, authenticated=False, is_failing=True
        )
        self.assertEqual((503, "5"), (answer.status_code, answer.headers.get("Retry-After")))
        self.assertEqual("cyborg_quota.unavailable", answer.json()["errors"][0]["code"])
