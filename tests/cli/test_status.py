# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-status upgrade check on a host without Cyborg."""

from __future__ import annotations

from cyborg_quota.cli import status
from tests.cli import base


class LimitsTest(base.CliTestCase):
    def check_limits(self, driver: str) -> tuple[int, str]:
        """The result of the check of the limits."""
        self.configure(f"[limits]\ndriver = {driver}")
        return self.result_of("limits")

    def test_no_limits_are_a_warning(self) -> None:
        code, details = self.check_limits("noop")
        self.assertEqual(status.WARNING, code)
        self.assertIn("nothing is limited", details)
        self.assertEqual(status.SUCCESS, self.check_limits("database")[0])
