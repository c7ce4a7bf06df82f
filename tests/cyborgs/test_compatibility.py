# SPDX-License-Identifier: Apache-2.0
"""An incompatible Cyborg is refused at the start, with one sentence that names the problem."""

from __future__ import annotations

import json
import pathlib
import subprocess

from oslotest import base

from tests import installing, needs
from tests.cyborgs import environment

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
    def setUp(self) -> None:
        super().setUp()
        try:
            self.programs = environment.ensure()
        except installing.NotAvailable as reason:
            needs.missing(self, f"no Cyborg: {reason}")

    def run_script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.programs / "python"), "-I", "-W", "ignore", str(DOCTORED), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)

    def test_each_thing_that_is_used(self) -> None:
        """Each part of Cyborg that the integration uses is removed or changed in turn, and each change is detected."""
        found = json.loads(self.run_script().stdout.splitlines()[-1])
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

    def test_the_conductor_does_not_start(self) -> None:
        ended = self.run_script("start", "15.0.1")
        output = f"cyborg-quota-conductor: {TOO_OLD}\n"
        self.assertEqual((2, "", output), (ended.returncode, ended.stdout, ended.stderr))

    def test_the_api_does_not_load(self) -> None:
        """The last line of a WSGI server's log."""
        ended = self.run_script("serve", "15.0.1")
        self.assertEqual(1, ended.returncode)
        self.assertEqual(f"cyborg_quota.exceptions.ConfigurationError: {TOO_OLD}", ended.stderr.splitlines()[-1])
