# SPDX-License-Identifier: Apache-2.0
"""The installation of an environment for the tests of a service: why a step fails."""

from __future__ import annotations

import sys

from oslotest import base

from tests import installing


class TestInstallation(base.BaseTestCase):
    def test_a_step_that_fails_or_hangs(self) -> None:
        python = [sys.executable, "-c"]
        script = "import sys; sys.exit('no such distribution')"
        error = self.assertRaises(installing.NotAvailable, installing.run, [*python, script], 30.0)
        self.assertIn("failed: no such distribution", str(error))
        script = "import time; time.sleep(60)"
        error = self.assertRaises(installing.NotAvailable, installing.run, [*python, script], 0.2)
        self.assertIn("took longer than 0 s", str(error))
