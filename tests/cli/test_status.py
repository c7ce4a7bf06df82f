# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-status upgrade check on a host without Cyborg."""

from __future__ import annotations

from cyborg_quota.cli import status
from tests.cli import base


class StatusTest(base.CliTestCase):
    def test_no_limits_are_a_warning(self) -> None:
        for driver, code, text in (("noop", status.WARNING, "nothing is limited"), ("database", status.SUCCESS, "")):
            self.configure(f"[limits]\ndriver = {driver}")
            found, details = self.result_of("limits")
            self.assertEqual((code, True), (found, text in details), details)
            self.assertEqual(status.SUCCESS, self.result_of("total limits")[0])
        self.assertIn("none is set", self.result_of("total limits")[1])
        self.prepare("set --total gpu=5")
        self.assertEqual((status.SUCCESS, "enforced: gpu"), self.result_of("total limits"))

    def test_the_configuration_of_cyborg_can_be_named(self) -> None:
        """Its own error recommends the option. There is no Cyborg here, so that its checks fail."""
        codes = []
        for options in ((), ("--cyborg-config-file", "/nowhere/cyborg.conf")):
            checks = self.call_status("upgrade", "check", "--json", *options).json["checks"]
            codes.append({one["result"] for one in checks if "Cyborg" in one["check"]})
        self.assertEqual([{status.SUCCESS}, {status.FAILURE}], codes)
