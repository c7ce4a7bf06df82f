# SPDX-License-Identifier: Apache-2.0
"""A missing requirement skips the test with a reason; in CI the test fails."""

from __future__ import annotations

import unittest

import fixtures as fx
from oslotest import base

from tests import needs


class TestMissing(base.BaseTestCase):
    def test_skipped_or_failed(self) -> None:
        class Sample(base.BaseTestCase):
            def runTest(self) -> None:
                needs.missing(self, "no moon")

        for ci, required, is_failure in (
            (None, None, False),
            ("false", "0", False),
            ("true", None, True),
            ("", "1", True),
        ):
            self.useFixture(fx.EnvironmentVariable("CI", ci))
            self.useFixture(fx.EnvironmentVariable("CYBORG_QUOTA_REQUIRE_SERVERS", required))
            result = unittest.TestResult()
            Sample().run(result)
            [(_, reason)] = result.failures if is_failure else result.skipped
            self.assertIn("no moon", reason)
