# SPDX-License-Identifier: Apache-2.0
"""Error messages of the API, and the log lines of the services at their start."""

from __future__ import annotations

import re
import uuid

import cyborg_quota
from tests.cyborgs import quota
from tests.cyborgs import stack as stacks


class TestStockApi(quota.QuotaTestCase):
    """Cyborg's unmodified API with the conductor of cyborg_quota."""

    api = stacks.API

    def test_one_sentence(self) -> None:
        """As with the API of cyborg_quota: the message has no class name, and is not repeated."""
        self.set_limit(0)
        refused = self.client.bind(self.client.created(self.profile), str(uuid.uuid4()), self.rp)
        self.assertEqual(403, refused.status)
        expected = (
            f"Quota exceeded: project {self.project_id}, resource fpga: limit 0, used 0, reserved 0, requested 1"
        )
        self.assertEqual(expected, refused.message.strip())


class TestStart(quota.QuotaTestCase):
    options = "source = east\nreconcile_heal = none"

    def test_one_line(self) -> None:
        for service, name in ((self.stack.api, "API"), (self.stack.conductor, "conductor")):
            lines = [line for line in service.output().splitlines() if "cyborg_quota " in line]
            self.assertEqual(1, len(lines), lines)
            place = re.escape(self.engine.location)
            expected = (
                rf" cyborg_quota {re.escape(cyborg_quota.__version__)} in Cyborg's {name}: ledger {place}, "
                r"limit driver database, source east, rules FPGA: fpga; FPGA CUSTOM_FAKE_DEVICE: fpga\.fake, "
                r"heal none\.$"
            )
            self.assertRegex(lines[0], expected)
            self.assertNotIn("@", lines[0])
