# SPDX-License-Identifier: Apache-2.0
"""An incompatible Cyborg is refused at the start, with one sentence that names the problem."""

from __future__ import annotations

import json
import pathlib
import subprocess

from oslotest import base

from tests.cyborgs import environment
from tests.servers import sharing

DOCTORED = pathlib.Path(__file__).with_name("doctored.py")
TIMEOUT_SECONDS = 120.0
ACCEPTED = {
    "nothing",
    "nothing, records",
    "our objects, registered",
    "REST API",
    "ConductorAPI without an own __init__",
    "version 16.0.1",
    "version 17.0.0.0rc1",
    "version 18.0.0",
    "version unknown",
}
TOO_OLD = "Cyborg 15.0.1 is too old: cyborg_quota works with Cyborg 16 and 17."


class TestDoctored(base.BaseTestCase):
    def test_each_thing_that_is_used(self) -> None:
        """Each part of Cyborg that the integration uses is removed or changed in turn, and each change is detected.

        Before, in the same process: with a Cyborg that is too old, neither the conductor nor the API starts.
        """
        programs = sharing.need(self, "Cyborg", environment.ensure)
        command = [str(programs / "python"), "-I", "-W", "ignore", str(DOCTORED), "15.0.1"]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS)
        output = json.loads(ended.stdout.splitlines()[-1])
        self.assertEqual([2, "", f"cyborg-quota-conductor: {TOO_OLD}\n"], output["start"])
        self.assertEqual(f"cyborg_quota.exceptions.ConfigurationError: {TOO_OLD}", output["serve"])
        found = output["doctor"]
        self.assertGreater(len(found), 80)
        self.assertEqual(ACCEPTED, {name for name, error in found.items() if error is None})
        for name, error in found.items():
            if error is not None and not name.startswith("version"):
                self.assertRegex(error, r"^Cyborg 17\.\S+ cannot run with cyborg_quota, .*: cyborg\.[^\n]*\.$")
        self.assertEqual(TOO_OLD, found["version 15.0.1"])
        self.assertIn("ConductorAPI calls super() with its own name", found["super() with its own name"])
        self.assertIn(
            "cyborg.db.sqlalchemy.api.Connection.extarq_get does not take (..., ..., ..., project_id=...)",
            found["other arguments of cyborg.db.sqlalchemy.api.Connection.extarq_get"],
        )
