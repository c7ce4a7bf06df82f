# SPDX-License-Identifier: Apache-2.0
"""A running Horizon."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import subprocess
import urllib.request

import fixtures as fx

from tests.horizon import environment
from tests.integration.server import Keystone
from tests.servers import machine

START_TIMEOUT_SECONDS = 90.0


class Horizon(fx.Fixture):
    """Horizon at ``url``, run by its own Python."""

    def __init__(self, keystone: Keystone, python: pathlib.Path) -> None:
        super().__init__()
        self._keystone = keystone
        self._python = python

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    def _setUp(self) -> None:
        self._directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        port = machine.free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [str(self._python), str(pathlib.Path(__file__).with_name("serve.py")), str(port)]
        variables = {
            "DJANGO_SETTINGS_MODULE": environment.SETTINGS_MODULE,
            "CYBORG_QUOTA_HORIZON_KEYSTONE": self._keystone.url,
            "CYBORG_QUOTA_HORIZON_SECRET": secrets.token_hex(32),
        }
        with (self._directory / "log").open("wb") as log:
            process = subprocess.Popen(
                machine.ends_with_parent(command),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        machine.wait_until(lambda: self._answers() or process.poll() is not None, START_TIMEOUT_SECONDS)
        assert process.poll() is None and self._answers(), self.log[-3000:]

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/auth/login/", timeout=30) as response,
        ):
            return bool(response.status == 200)
        return False
