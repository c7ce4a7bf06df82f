# SPDX-License-Identifier: Apache-2.0
"""The log lines of the services at their start."""

from __future__ import annotations

import re

import cyborg_quota
from tests.cyborgs import quota


class TestStart(quota.QuotaTestCase):
    options = "source = east"

    def test_one_line(self) -> None:
        for service, name in ((self.stack.api, "API"), (self.stack.conductor, "conductor")):
            [line] = [line for line in service.output().splitlines() if "cyborg_quota " in line]
            place = re.escape(self.engine.location)
            expected = (
                rf" cyborg_quota {re.escape(cyborg_quota.__version__)} in Cyborg's {name}: ledger {place}, "
                r"limit driver database, source east, rules FPGA: fpga; FPGA CUSTOM_FAKE_DEVICE: fpga\.fake, "
                r"heal off\.$"
            )
            self.assertRegex(line, expected)
            self.assertNotIn("@", line)
