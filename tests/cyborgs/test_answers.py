# SPDX-License-Identifier: Apache-2.0
"""What the conductor counts, and the log lines of the services at their start."""

from __future__ import annotations

import contextlib
import re
import urllib.request

import cyborg_quota
from tests.cyborgs import quota
from tests.servers import machine


class TestMetrics(quota.QuotaTestCase):
    address = f"127.0.0.1:{machine.free_port()}"
    options = f"source = east\n[metrics]\nlisten = {address}"

    def test_the_conductor_exports_its_counters(self) -> None:
        self.bind(self.client.created(self.profile))
        counted = 'cyborg_quota_reserves_total{resource="fpga",result="granted"} 1.0'
        with contextlib.closing(urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30)) as answer:
            self.assertIn(counted, answer.read().decode())


class TestStart(quota.QuotaTestCase):
    options = "source = east"

    def test_one_line(self) -> None:
        for service, name in ((self.stack.api, "API"), (self.stack.conductor, "conductor")):
            lines = [line for line in service.output().splitlines() if "cyborg_quota " in line]
            self.assertEqual(1, len(lines), lines)
            place = re.escape(self.engine.location)
            expected = (
                rf" cyborg_quota {re.escape(cyborg_quota.__version__)} in Cyborg's {name}: ledger {place}, "
                r"limit driver database, source east, rules FPGA: fpga; FPGA CUSTOM_FAKE_DEVICE: fpga\.fake, "
                r"heal off\.$"
            )
            self.assertRegex(lines[0], expected)
            self.assertNotIn("@", lines[0])
