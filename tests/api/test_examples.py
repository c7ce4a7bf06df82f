# SPDX-License-Identifier: Apache-2.0
"""The page about the REST API: its curl examples, and the files that it shows."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import fixtures as fx
from oslotest import base

from cyborg_quota.api import deploy
from cyborg_quota.api.operations import OPERATIONS
from tests import installing, needs
from tests.api import server
from tests.servers import machine

PAGE = installing.TOP / "doc/source/rest-api.rst"
FILES = installing.TOP / "etc/wsgi"
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

    def test_apache_reads_its_file(self) -> None:
        modules = "/usr/lib/apache2/modules"
        if not os.path.isdir(modules):
            needs.missing(self, "Apache is not installed (bindep.txt names the packages)")
        names = ("mpm_event", "proxy", "proxy_http", "headers", "authz_core")
        directory = self.useFixture(fx.TempDir()).path
        text = f"ServerName 127.0.0.1\nListen 127.0.0.1:9\nErrorLog {directory}/log\nPidFile {directory}/pid\n"
        text += "".join(f"LoadModule {name}_module {modules}/mod_{name}.so\n" for name in names)
        text += f"<VirtualHost 127.0.0.1:9>\nInclude {FILES}/cyborg-quota-api-apache.conf\n</VirtualHost>\n"
        path = pathlib.Path(directory, "apache.conf")
        path.write_text(text)
        command = [machine.find("apache2"), "-t", "-f", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(0, ended.returncode, ended.stderr)
