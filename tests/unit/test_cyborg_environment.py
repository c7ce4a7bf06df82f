# SPDX-License-Identifier: Apache-2.0
"""Without a Cyborg, its tests are skipped with the reason; in CI they fail."""

from __future__ import annotations

import unittest

import fixtures as fx
from oslotest import base

from tests import installing
from tests.cyborgs import stack, test_stack


class TestWithoutCyborg(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        reason = installing.NotAvailable("the package index is away")
        self.useFixture(fx.MockPatchObject(stack, "of_this_process", lambda _pid, _version: reason))
        for name in ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS"):
            self.useFixture(fx.EnvironmentVariable(name))

    def run_one(self) -> unittest.TestResult:
        result = unittest.TestResult()
        test_stack.TestBind("test_bind_unbind_delete").run(result)
        return result

    def test_skipped_with_the_reason(self) -> None:
        self.assertEqual(["no Cyborg: the package index is away"], [why for _, why in self.run_one().skipped])

    def test_in_ci_it_is_a_failure(self) -> None:
        self.useFixture(fx.EnvironmentVariable("CI", "1"))
        result = self.run_one()
        self.assertEqual((1, 0), (len(result.failures), len(result.skipped)))
        self.assertIn("no Cyborg: the package index is away", result.failures[0][1])
