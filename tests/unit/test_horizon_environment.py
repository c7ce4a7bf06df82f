# SPDX-License-Identifier: Apache-2.0
"""Without a Horizon or a browser, the tests of the panels are skipped with the reason; in CI they fail."""

from __future__ import annotations

import unittest

import fixtures as fx
from oslotest import base

from tests import installing
from tests.horizon import environment, stack, test_panels


class TestWithoutHorizon(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        # Without its cache, which other tests of this process may need.
        self.useFixture(fx.MockPatchObject(stack, "of_this_process", stack.of_this_process.__wrapped__))
        self.useFixture(fx.MockPatchObject(environment, "ensure", self.ensure))
        for name in ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS"):
            self.useFixture(fx.EnvironmentVariable(name))

    def ensure(self) -> None:
        raise installing.NotAvailable("the package index is away")

    def run_one(self) -> unittest.TestResult:
        result = unittest.TestResult()
        test_panels.TestProject("test_an_admin_sees_only_the_project_of_the_token").run(result)
        return result

    def test_skipped_with_the_reason(self) -> None:
        self.assertEqual(["no Horizon: the package index is away"], [why for _, why in self.run_one().skipped])

    def test_in_ci_it_is_a_failure(self) -> None:
        self.useFixture(fx.EnvironmentVariable("CI", "1"))
        result = self.run_one()
        self.assertEqual((1, 0), (len(result.failures), len(result.skipped)))
        self.assertIn("no Horizon: the package index is away", result.failures[0][1])

    def test_without_a_browser(self) -> None:
        self.useFixture(fx.MockPatchObject(environment, "ensure"))
        self.useFixture(fx.MonkeyPatch("tests.doc_pages.shutil.which", lambda _name: None))
        [(_, why)] = self.run_one().skipped
        self.assertIn("no Horizon: chromium is not installed", why)
