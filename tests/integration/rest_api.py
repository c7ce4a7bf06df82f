# SPDX-License-Identifier: Apache-2.0
"""The REST API under gunicorn, configured by the documented file, with a real Keystone."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping

import fixtures as fx

from tests import installing
from tests.cyborgs.service import Service, answering
from tests.cyborgs.starting import ProgramStarter
from tests.integration import environment
from tests.integration.server import Keystone
from tests.servers import machine
from tests.servers.sharing import lasting, once_per_process

CONFIG = installing.TOP / "etc/wsgi/cyborg-quota-api-gunicorn.py"
PREFIX = "cyborg-quota-rest-api-"
DATABASE = "[database]\nconnection = {connection}\n"
ONE_WORKER = {"workers = 2": "workers = 1"}
LIMITS = "[limits]\ndriver = database\nenforcement_model = strict_hierarchy\n"


class RestAPI(fx.Fixture):
    """A running API: its ``url``, and the ``pid`` of its master.

    :param changes: further texts of the file to replace.
    :param limits: the part of cyborg_quota.conf about limits.
    """

    def __init__(
        self,
        ledger_url: str,
        keystone: Keystone,
        changes: Mapping[str, str],
        limits: str = LIMITS,
    ) -> None:
        super().__init__()
        self._ledger_url = ledger_url
        self._keystone = keystone
        self._changes = changes
        self._limits = limits

    @property
    def log(self) -> str:
        return self._service.output()

    @property
    def pid(self) -> int:
        return self._service.pid

    def _setUp(self) -> None:
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        port = machine.free_port()
        self.url = f"http://127.0.0.1:{port}"
        conf = directory / "cyborg_quota.conf"
        connection = self._ledger_url.replace("$", "$$")
        conf.write_text(DATABASE.format(connection=connection) + self._limits + self._keystone.authtoken)
        text = CONFIG.read_text()
        paths = {"127.0.0.1:6667": f"127.0.0.1:{port}", "/etc/cyborg_quota/cyborg_quota.conf": str(conf)}
        for old, new in {**paths, **self._changes}.items():
            assert old in text, old
            text = text.replace(old, new)
        (directory / "gunicorn.py").write_text(text)
        command = [str(pathlib.Path(sys.executable).with_name("gunicorn")), "--config", str(directory / "gunicorn.py")]

        ready = answering(f"{self.url}/healthcheck")
        self._service = Service("api", command, directory, ready, starter=ProgramStarter())
        self.addCleanup(self._service.stop)
        self._service.start()


@once_per_process
def running(ledger_url: str, keystone: Keystone) -> RestAPI:
    """Return the API that the tests of this process share: its imports take longer than a test. It has one worker."""
    return lasting(RestAPI(ledger_url, keystone, ONE_WORKER), PREFIX, environment.DIRECTORY)
