# SPDX-License-Identifier: Apache-2.0
"""A running Horizon."""

from __future__ import annotations

import pathlib
import secrets

import fixtures as fx

from tests.cyborgs.service import Service, answers
from tests.cyborgs.starting import ProgramStarter
from tests.horizon import environment
from tests.integration.server import Keystone
from tests.servers import machine


class Horizon(fx.Fixture):
    """Horizon at ``url``, run by its own Python."""

    def __init__(self, keystone: Keystone, python: pathlib.Path) -> None:
        super().__init__()
        self._keystone = keystone
        self._python = python

    @property
    def log(self) -> str:
        return self._service.output()

    def _setUp(self) -> None:
        port = machine.free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [str(self._python), str(pathlib.Path(__file__).with_name("serve.py")), str(port)]
        variables = {
            "DJANGO_SETTINGS_MODULE": environment.SETTINGS_MODULE,
            "CYBORG_QUOTA_HORIZON_KEYSTONE": self._keystone.url,
            "CYBORG_QUOTA_HORIZON_SECRET": secrets.token_hex(32),
        }
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)

        def is_ready(_log: str) -> bool:
            return answers(self.url, "/auth/login/")

        self._service = Service("horizon", command, directory, is_ready, variables, starter=ProgramStarter())
        self.addCleanup(self._service.stop)
        self._service.start()
