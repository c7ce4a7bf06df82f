# SPDX-License-Identifier: Apache-2.0
"""Without a Keystone, its tests are skipped with the reason; in CI they fail."""

from __future__ import annotations

import sys
import unittest

import fixtures as fx
from oslotest import base

from tests import installing
from tests.integration import server, test_keystone


class TestWithoutKeystone(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        reason = installing.NotAvailable("the package index is away")
        self.useFixture(fx.MockPatchObject(server, "of_this_process", lambda _pid: reason))
        for name in ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS"):
            self.useFixture(fx.EnvironmentVariable(name))

    def run_one(self) -> unittest.TestResult:
        result = unittest.TestResult()
        test_keystone.TestFlat("test_a_user_without_the_role").run(result)
        return result

    def test_skipped_with_the_reason(self) -> None:
        result = self.run_one()
        self.assertEqual(["no Keystone: the package index is away"], [why for _, why in result.skipped])

    def test_in_ci_it_is_a_failure(self) -> None:
        self.useFixture(fx.EnvironmentVariable("CI", "1"))
        result = self.run_one()
        self.assertEqual((1, 0), (len(result.failures), len(result.skipped)))
        self.assertIn("no Keystone: the package index is away", result.failures[0][1])

    def test_a_step_that_fails_or_hangs(self) -> None:
        python = [sys.executable, "-c"]
        script = "import sys; sys.exit('no such distribution')"
        error = self.assertRaises(installing.NotAvailable, installing.run, [*python, script], 30.0)
        self.assertIn("failed: no such distribution", str(error))
        script = "import time; time.sleep(60)"
        error = self.assertRaises(installing.NotAvailable, installing.run, [*python, script], 0.2)
        self.assertIn("took longer than 0 s", str(error))
