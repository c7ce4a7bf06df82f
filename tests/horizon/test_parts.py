# SPDX-License-Identifier: Apache-2.0
"""The parts of the panels, tested in Horizon's environment: see panels_check.py."""

from __future__ import annotations

import os
import pathlib
import subprocess

from oslotest import base

from tests import installing
from tests.horizon import environment
from tests.servers import sharing

CHECK = pathlib.Path(__file__).with_name("panels_check.py")


class TestParts(base.BaseTestCase):
    def test_panels_check(self) -> None:
        python = sharing.need(self, "Horizon", environment.ensure)
        variables = {"DJANGO_SETTINGS_MODULE": environment.SETTINGS_MODULE, "PYTHONPATH": str(installing.TOP)}
        environ = {**os.environ, **variables}
        command = [str(python), str(CHECK)]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(0, ended.returncode, ended.stdout + ended.stderr)
        self.assertRegex(ended.stderr, r"Ran \d\d tests")
