# SPDX-License-Identifier: Apache-2.0
"""The page about the REST API: its curl examples, and the files that it shows."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import urllib.request
from typing import Any

import fixtures as fx
import webob
from oslotest import base

from cyborg_quota.api import deploy
from cyborg_quota.api.operations import OPERATIONS
from tests import installing, needs
from tests.api import server
from tests.servers import machine

PAGE = installing.TOP / "doc/source/rest-api.rst"
FILES = installing.TOP / "etc/wsgi"
MODULES = "/usr/lib/apache2/modules"
VARYING = re.compile(r"req-[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f-]{27}|2026-\d\d-\d\dT[\d:.]+Z")


def examples() -> list[tuple[str, str]]:
    """(command, output) of each curl command on the page."""
    found = []
    for block in re.findall(r"(?ms)^\.\. code-block:: console\n\n(.*?)(?=^\S|\Z)", PAGE.read_text()):
        for command, output in re.findall(r"(?ms)^   \$ (curl.*?)$(.*?)(?=^   \$|\Z)", block):
            found.append((command, output.strip()))
    return found


class TestExamples(server.ApiTestCase):
    def test_each_prints_what_the_page_shows(self) -> None:
        if shutil.which("curl") is None:
            needs.missing(self, "no curl")
        self.make_pod()
        count = 0
        with server.served(self.application) as url:
            tokens = {"TOKEN": "rita@higgs:reader", "ADMIN_TOKEN": server.ADMIN}
            environment = {**os.environ, **tokens, "PROJECT": "higgs", "ENDPOINT": url}
            for command, output in examples():
                words = ["sh", "-c", command]
                ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                self.assertEqual(_parsed(output), _parsed(ended.stdout), command)
                count += 1
        self.assertGreater(count, 6)


def _parsed(text: str) -> Any:
    return json.loads(VARYING.sub("VARYING", text)) if text else None


class TestPage(base.BaseTestCase):
    def test_the_proxies_know_the_paths(self) -> None:
        for name in ("cyborg-quota-api-apache.conf", "cyborg-quota-api-nginx.conf"):
            [pattern] = re.findall(r"\^/v2/quota\S*?(?=[\" ])", (FILES / name).read_text())
            for call in OPERATIONS:
                self.assertRegex(call.path, pattern)
                self.assertTrue(deploy.PATHS.match(call.path))
            for path in ("/v2/devices", "/v2/quotasets", "/v2", "/"):
                self.assertNotRegex(path, pattern)


class TestApache(server.ApiTestCase):
    """One endpoint for both services, by means of the documented file."""

    options = {"api__max_limit": 2}

    def test_each_path_goes_to_its_service(self) -> None:
        if not os.path.isdir(MODULES):
            needs.missing(self, "Apache is not installed (bindep.txt names the packages)")
        self.conf.set_override("enable_proxy_headers_parsing", True, "oslo_middleware")
        application = server.make_application(self.conf, self.engine)
        with server.served(application) as quota_url, server.served(webob.Response(text="Cyborg's")) as other_url:
            url = self.start_apache({"127.0.0.1:6667": quota_url[7:], "127.0.0.1:6666": other_url[7:]})
            for path in ("/", "/v2/devices", "/v2/quotasets"):
                self.assertEqual(b"Cyborg's", self.get(url + path))
            self.assertIn("gpu", json.loads(self.get(f"{url}/v2/quotas/higgs/detail"))["quota"])
            [link] = json.loads(self.get(f"{url}/v2/quotas"))["quotas_links"]
            self.assertTrue(link["href"].startswith(f"{url}/v2/quotas?"), link)
            self.assertEqual(2, len(json.loads(self.get(link["href"]))["quotas"]))

    def get(self, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"X-Auth-Token": server.ADMIN})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def start_apache(self, changes: dict[str, str]) -> str:
        port = machine.free_port()
        directory = self.useFixture(fx.TempDir()).path
        included = (FILES / "cyborg-quota-api-apache.conf").read_text()
        for old, new in changes.items():
            included = included.replace(old, new)
        path = write_apache(directory, port, included)
        command = [*_as_a_user(), machine.find("apache2"), "-D", "FOREGROUND", "-f", str(path)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.terminate)
        machine.wait_until(lambda: _is_open(port) or process.poll() is not None, 30)
        self.assertIsNone(process.poll(), pathlib.Path(directory, "log"))
        return f"http://127.0.0.1:{port}"


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def write_apache(directory: str, port: int, included: str) -> pathlib.Path:
    """A configuration of Apache with these lines in the virtual host of the endpoint."""
    pathlib.Path(directory, "site.conf").write_text(included)
    text = f"ServerName 127.0.0.1\nListen 127.0.0.1:{port}\nErrorLog {directory}/log\nPidFile {directory}/pid\n"
    text += f"DefaultRuntimeDir {directory}\n"
    names = ("mpm_event", "proxy", "proxy_http", "headers", "authz_core")
    text += "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in names)
    text += f"<VirtualHost 127.0.0.1:{port}>\nInclude {directory}/site.conf\n</VirtualHost>\n"
    path = pathlib.Path(directory, "apache.conf")
    path.write_text(text)
    return path


def _as_a_user() -> tuple[str, ...]:
    """Apache does not serve as root."""
    return ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.geteuid() == 0 else ()
