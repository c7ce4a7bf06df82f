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
        self.assertEqual(0, self.result_of("total limits")[0])
        self.assertEqual(status.SUCCESS, self.check_limits("database")[0])
        code, details = self.result_of("total limits")
        self.assertEqual((0, True), (code, "none is set" in details))
        self.call("set", "--total", "gpu=5")
        self.assertEqual((0, "enforced: gpu"), self.result_of("total limits"))


class CyborgTest(base.CliTestCase):
    def test_the_configuration_of_cyborg_can_be_named(self) -> None:
        """Its own error recommends the option. There is no Cyborg here, so that its checks fail."""
        codes = []
        for options in ((), ("--cyborg-config-file", "/nowhere/cyborg.conf")):
            checks = self.call_status("upgrade", "check", "--json", *options).json["checks"]
            codes.append({one["result"] for one in checks if "Cyborg" in one["check"]})
        self.assertEqual([{status.SUCCESS}, {status.FAILURE}], codes)
