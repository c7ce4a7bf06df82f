# SPDX-License-Identifier: Apache-2.0
"""The REST API of quota under the real Cyborg API, at its endpoint."""

from __future__ import annotations

import json

from oslo_config import cfg

from cyborg_quota.api import deploy
from cyborg_quota.conf import loading
from tests import needs
from tests.api import proxies, server
from tests.cyborgs import quota, stack
from tests.cyborgs.base import new_id
from tests.cyborgs.client import Client, call
from tests.servers import machine

VERSION_HEADERS = ("openstack-api-version", "openstack-api-minimum-version", "openstack-api-maximum-version", "vary")


class TestMounted(quota.QuotaTestCase):
    def test_beside_cyborgs_own_calls(self) -> None:
        path = f"/quotas/{self.project_id}"
        self.assertEqual(200, self.client.call("GET", f"{path}/detail").status)
        quota_headers = {name.lower(): value for name, value in self.client.received.items()}
        self.assertRegex(quota_headers["x-openstack-request-id"], "^req-")
        # The microversion is negotiated as by Cyborg itself, which still answers its own calls.
        self.assertEqual(200, self.client.call("GET", "/accelerator_requests").status)
        headers = {name.lower(): value for name, value in self.client.received.items()}
        self.assertEqual(
            {name: headers[name] for name in VERSION_HEADERS}, {name: quota_headers[name] for name in VERSION_HEADERS}
        )
        refused = call(self.stack.api_url, "GET", f"/v2{path}")
        self.assertEqual((401, "cyborg_quota.unauthorized"), (refused.status, refused.body["errors"][0]["code"]))


class TestBehindProxies(quota.QuotaTestCase):
    """Cyborg's own API, and the REST API of quota as a service of its own, at one endpoint by a documented proxy."""

    api = stack.API

    def test_one_endpoint(self) -> None:
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf_file)])
        # As in the stack, the tests send the headers that keystonemiddleware would set.
        application = deploy.wrap(deploy.make_bare_application(conf, self.engine), conf)
        self.client.created(self.profile)
        with server.served(application) as quota_url:
            for name in proxies.NAMES:
                try:
                    proxy = self.useFixture(proxies.Proxy(name, quota_url, self.stack.api_url))
                except machine.ServerError as error:
                    needs.missing(self, str(error))
                self.check_cyborg(proxy.url)
                answer = Client(proxy.url, self.project_id).call("GET", f"/quotas/{self.project_id}/detail")
                self.assertEqual(200, answer.status)

    def check_cyborg(self, url: str) -> None:
        """The answers are those that Cyborg gives without the proxy."""
        behind = Client(url, self.project_id)
        for path in ("/accelerator_requests", "/device_profiles", "/quotasets", "/quota_x", f"/quotas{new_id()}"):
            answers = [client.call("GET", path) for client in (self.client, behind)]
            self.assertEqual(answers[0].status, answers[1].status, path)
            if answers[0].status == 200:
                # (The links in the answers have the address of the request.)
                texts = [json.dumps(answer.body).replace(url, self.stack.api_url) for answer in answers]
                self.assertEqual(texts[0], texts[1], path)
            headers = [{header.lower() for header in client.received} for client in (self.client, behind)]
            self.assertEqual(set(), headers[0] - headers[1] - {"transfer-encoding", "connection"}, path)
        self.assertEqual(404, behind.call("GET", "/quotasets").status)
        self.assertEqual(201, behind.create(self.profile).status)
