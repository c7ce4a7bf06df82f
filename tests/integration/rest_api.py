# SPDX-License-Identifier: Apache-2.0
"""The REST API under gunicorn, configured by the documented file, with a real Keystone."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping

import fixtures as fx

from tests import fixtures, installing
from tests.integration import environment
from tests.integration.server import Keystone
from tests.servers import machine

CONFIG = installing.TOP / "etc/wsgi/cyborg-quota-api-gunicorn.py"
PREFIX = "cyborg-quota-rest-api-"
START_TIMEOUT_SECONDS = 90.0
SETTINGS = """\
[database]
connection = {connection}
[limits]
driver = database
enforcement_model = strict_hierarchy
[keystone_authtoken]
auth_type = password
auth_url = {keystone}
www_authenticate_uri = {keystone}
username = admin
password = {password}
project_name = admin
user_domain_id = default
project_domain_id = default
# The test's Keystone has no other endpoint.
interface = public
http_request_max_retries = 0
service_token_roles_required = true
"""


class RestAPI(fx.Fixture):
    """A running API: its ``url``, and the ``pid`` of its master.

    :param changes: further texts of the file to replace.
    :param directory: an empty one for its files; by default one that ends with it.
    """

    def __init__(
        self, ledger_url: str, keystone: Keystone, changes: Mapping[str, str], directory: pathlib.Path | None = None
    ) -> None:
        super().__init__()
        self._ledger_url = ledger_url
        self._keystone = keystone
        self._changes = changes
        self._given_directory = directory

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    def _setUp(self) -> None:
        self._directory = self._given_directory or pathlib.Path(self.useFixture(fx.TempDir()).path)
        port = machine.free_port()
        self.url = f"http://127.0.0.1:{port}"
        connection = self._ledger_url.replace("$", "$$")
        password = self._keystone.password
        settings = SETTINGS.format(connection=connection, keystone=self._keystone.url, password=password)
        conf = self._directory / "cyborg_quota.conf"
        conf.write_text(settings)
        text = CONFIG.read_text()
        paths = {"127.0.0.1:6667": f"127.0.0.1:{port}", "/etc/cyborg_quota/cyborg_quota.conf": str(conf)}
        for old, new in {**paths, **self._changes}.items():
            assert old in text, old
            text = text.replace(old, new)
        (self._directory / "gunicorn.py").write_text(text)
        program = str(pathlib.Path(sys.executable).with_name("gunicorn"))
        command = [program, "--config", str(self._directory / "gunicorn.py")]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        with (self._directory / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = process.pid
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        machine.wait_until(lambda: self._answers() or process.poll() is not None, START_TIMEOUT_SECONDS)
        assert process.poll() is None and self._answers(), self.log[-3000:]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthcheck", timeout=10) as response:
            return bool(response.status == 200)
        return False


@functools.cache
def running(ledger_url: str, keystone: Keystone, _pid: int) -> RestAPI:
    """Return the API that the tests of this process share: its imports take longer than a test. It has one worker."""
    directory, lock = machine.private_directory(PREFIX, environment.DIRECTORY)
    api = RestAPI(ledger_url, keystone, {"workers = 2": "workers = 1"}, directory)
    api.setUp()

    def end() -> None:
        api.cleanUp()
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()

    fixtures.at_exit(end)
    return api
