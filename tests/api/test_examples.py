# SPDX-License-Identifier: Apache-2.0
"""The page about the REST API: its curl examples, and the files that it shows."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from typing import Any

import testscenarios
import webob
import webob.dec
from oslotest import base

from cyborg_quota.api import deploy
from cyborg_quota.api.operations import OPERATIONS
from tests import base as test_base
from tests import doc_examples, needs
from tests.api import proxies, server
from tests.servers import machine

load_tests = testscenarios.load_tests_apply_scenarios
VARYING = re.compile(r"req-[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f-]{27}|2026-\d\d-\d\dT[\d:.]+Z")


class TestExamples(server.ApiTestCase):
    scenarios = []

    def test_each_prints_what_the_page_shows(self) -> None:
        if shutil.which("curl") is None:
            needs.missing(self, "no curl")
        self.make_pod()
        with server.served(self.application) as url:
            tokens = {"TOKEN": "rita@higgs:reader", "ADMIN_TOKEN": server.ADMIN}
            environment = {**os.environ, **tokens, "PROJECT": "higgs", "ENDPOINT": url}
            for shown in doc_examples.commands_of(__name__):
                words = ["sh", "-c", shown.command]
                ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                self.assertEqual(_parsed(shown.output), _parsed(ended.stdout), shown.place)


def _parsed(text: str) -> Any:
    return json.loads(VARYING.sub("VARYING", text)) if text else None


class TestPage(base.BaseTestCase):
    def test_the_proxies_know_the_paths(self) -> None:
        for name in proxies.NAMES:
            [pattern] = re.findall(r"\^/v2/quota\S*?(?=[\" ])", proxies.included(name))
            for call in OPERATIONS:
                self.assertRegex(call.path, pattern)
                self.assertTrue(deploy.PATHS.match(call.path))
            for path in ("/v2/devices", "/v2/quotasets", "/v2/quota_x", "/v2", "/"):
                self.assertNotRegex(path, pattern)
                self.assertIsNone(deploy.PATHS.match(path), path)

    def test_no_request_meets_the_end_of_an_idle_connection(self) -> None:
        """The proxy gives it up before the service closes it: a request that is sent meanwhile would fail."""
        [seconds] = re.findall(r" ttl=(\d+)$", proxies.included("apache"), re.MULTILINE)
        for name in ("cyborg-quota-api-gunicorn.py", "cyborg-api-gunicorn.py"):
            self.assertGreater(runpy.run_path(str(proxies.FILES / name))["keepalive"], int(seconds), name)


class TestProxies(server.ApiTestCase):
    """One endpoint for both services, by means of the documented files."""

    scenarios = [(name, {"proxy": name}) for name in proxies.NAMES]
    proxy: str

    def test_each_path_goes_to_its_service(self) -> None:
        self.conf.set_override("max_limit", 2, "api")
        self.conf.set_override("enable_proxy_headers_parsing", True, "oslo_middleware")
        application = server.make_application(self.conf, self.engine)
        with server.served(application) as quota_url, server.served(cyborg) as cyborg_url:
            try:
                self.url = self.useFixture(proxies.Proxy(self.proxy, quota_url, cyborg_url)).url
            except machine.ServerError as error:
                needs.missing(self, str(error))
            self.check_cyborg()
            self.check_lists()
            self.check_headers()
            self.check_errors()

    def check_cyborg(self) -> None:
        """Its paths, methods, parameters and bodies are unchanged, and it knows the endpoint."""
        for path in ("/", "/v2", "/v2/devices", "/v2/quotasets", "/v2/quota_x?a=%2Fb", "/v2/quota"):
            self.assertEqual(f"GET {path} {self.url} ", self.send(path).text)
        self.assertEqual(f"PATCH /v2/devices {self.url} [1]", self.send("/v2/devices", "PATCH", b"[1]").text)

    def check_lists(self) -> None:
        [link] = self.send("/v2/quotas").json["quotas_links"]
        self.assertTrue(link["href"].startswith(f"{self.url}/v2/quotas?"), link)
        self.assertEqual(2, len(self.send(link["href"].removeprefix(self.url)).json["quotas"]))
        for path in ("defaults", "totals", "reservations", "capacity", "pods"):
            self.assertEqual(200, self.send(f"/v2/quota_{path}").status_int, path)

    def check_headers(self) -> None:
        """The microversion, the id of the request and the author of a change."""
        answer = self.send("/v2/quotas/higgs/detail", **{"OpenStack-API-Version": "accelerator 2.1"})
        found = answer.headers["OpenStack-API-Version"], answer.json["quota"]["gpu"]["in_use"]
        self.assertEqual(("accelerator 2.1", 5), found)
        self.assertRegex(answer.headers["X-OpenStack-Request-Id"], "^req-")
        body = json.dumps({"quota": {"gpu": 21}}).encode()
        self.assertEqual(21, self.send("/v2/quotas/higgs", "PUT", body).json["quota"]["gpu"])
        [change] = self.engine.limits.history(test_base.ADMIN, limit=1)
        self.assertEqual("alice", change.user_id)
        self.assertEqual(204, self.send("/v2/quotas/elsewhere", "DELETE").status_int)

    def check_errors(self) -> None:
        """Those of the API pass as they are; a stranger learns nothing."""
        stranger = {"X-Auth-Token": "sam@elsewhere:member,reader"}
        answers = [self.send(f"/v2/quotas/{name}/detail", **stranger) for name in ("higgs", "nothing")]
        for name, answer in zip(("higgs", "nothing"), answers, strict=True):
            [error] = answer.json["errors"]
            self.assertEqual((404, f"Project {name} was not found."), (answer.status_int, error["detail"]))
            self.assertEqual(error["request_id"], answer.headers["X-OpenStack-Request-Id"])
        self.assertEqual(*({name.lower() for name in answer.headers} for answer in answers))
        self.assertEqual(401, self.send("/v2/quotas/higgs", **{"X-Auth-Token": ""}).status_int)
        self.assertEqual(415, self.send("/v2/quotas/higgs", "PUT", b"1", **{"Content-Type": "text/plain"}).status_int)

    def send(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> webob.Response:
        request = webob.Request.blank(self.url + path, method=method, body=body)
        request.headers.update({"X-Auth-Token": server.ADMIN, "Content-Type": "application/json", **headers})
        return request.send()


@webob.dec.wsgify
def cyborg(request: webob.Request) -> str:
    """In the place of Cyborg's API: says what it got."""
    endpoint = f"{request.headers['X-Forwarded-Proto']}://{request.headers['X-Forwarded-Host']}"
    return f"{request.method} {request.path_qs} {endpoint} {request.text}"
