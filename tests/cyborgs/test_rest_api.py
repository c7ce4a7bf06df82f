# SPDX-License-Identifier: Apache-2.0
"""The REST API of quota under the real Cyborg API, at its endpoint."""

from __future__ import annotations

import uuid

from tests import base
from tests.cyborgs import quota
from tests.cyborgs.base import new_id
from tests.cyborgs.client import call

VERSION_HEADERS = ("openstack-api-version", "openstack-api-minimum-version", "openstack-api-maximum-version", "vary")


class TestMounted(quota.QuotaTestCase):
    def test_beside_cyborgs_own_calls(self) -> None:
        path = f"/quotas/{self.project_id}"
        self.engine.administration.set_limit(base.ADMIN, "fpga", 2, self.project_id)
        [arq] = self.client.created(self.profile)
        self.assertEqual(202, self.client.bind([arq], str(uuid.uuid4()), self.rp).status)
        answer = self.client.call("GET", f"{path}/detail")
        expected = {"limit": 2, "in_use": 1, "reserved": 0, "fits": 1, "bound_by": None}
        self.assertEqual((200, expected), (answer.status, answer.body["quota"]["fpga"]))
        quota_headers = {name.lower(): value for name, value in self.client.received.items()}
        self.assertRegex(quota_headers["x-openstack-request-id"], "^req-")
        # The microversion is negotiated as by Cyborg itself, which still answers its own calls.
        self.assertEqual(200, self.client.call("GET", "/accelerator_requests").status)
        headers = {name.lower(): value for name, value in self.client.received.items()}
        self.assertEqual(
            {name: headers[name] for name in VERSION_HEADERS}, {name: quota_headers[name] for name in VERSION_HEADERS}
        )
        [mine] = self.client.call("GET", "/quota_reservations").body["reservations"]
        self.assertEqual((arq, "committed"), (mine["consumer"], mine["state"]))
        # The personas of Cyborg.
        change = {"quota": {"fpga": 3}}
        self.assertEqual(403, self.client.call("PUT", path, change).status)
        self.assertEqual({"fpga": 3, "fpga.fake": None}, self.admin.call("PUT", path, change).body["quota"])
        self.check_personas(path, change)
        self.assertEqual(401, call(self.stack.api_url, "GET", f"/v2{path}").status)

    def check_personas(self, path: str, change: dict[str, dict[str, int]]) -> None:
        parent_id, stranger_id = new_id(), new_id()
        self.engine.administration.add_project(base.ADMIN, parent_id)
        self.engine.administration.set_limit(base.ADMIN, "fpga", 3, parent_id)
        self.engine.administration.move_project(base.ADMIN, self.project_id, parent_id)
        expected = {
            (self.project_id, "reader"): (200, 403, 403),
            (self.project_id, "member", "reader"): (200, 403, 403),
            (self.project_id, "manager", "member", "reader"): (200, 403, 403),
            (parent_id, "manager", "member", "reader"): (200, 200, 403),
            (stranger_id, "service"): (200, 403, 200),
            (stranger_id, "member", "reader"): (404, 404, 403),
            (stranger_id, "admin", "member", "reader"): (200, 200, 200),
        }
        for (project_id, *roles), statuses in expected.items():
            client = self.stack.client(project_id, *roles)
            answers = (
                client.call("GET", f"{path}/detail"),
                client.call("PUT", path, change),
                client.call("GET", "/quotas"),
            )
            self.assertEqual(statuses, tuple(answer.status for answer in answers), roles)
