# SPDX-License-Identifier: Apache-2.0
"""A missing requirement skips the test with a reason; in CI the test fails."""

from __future__ import annotations

import unittest

import fixtures as fx
from oslotest import base

from tests import needs

VARIABLES = ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS")


class TestMissing(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        for name in VARIABLES:
            self.useFixture(fx.EnvironmentVariable(name))

    def ended(self) -> unittest.TestResult:
        class Sample(base.BaseTestCase):
            def runTest(self) -> None:
                needs.missing(self, "no moon")

        result = unittest.TestResult()
        Sample().run(result)
        return result

    def test_skipped_with_the_reason(self) -> None:
        for value in (None, "", "0", "false"):
            self.useFixture(fx.EnvironmentVariable("CI", value))
            self.assertEqual(["no moon"], [reason for _, reason in self.ended().skipped], value)

    def test_fails_where_it_is_required(self) -> None:
        for name in VARIABLES:
            for value in ("1", "true", "yes"):
                with fx.EnvironmentVariable(name, value):
                    result = self.ended()
                self.assertEqual([], result.skipped)
                [(_, text)] = result.failures
                self.assertIn("no moon", text)
