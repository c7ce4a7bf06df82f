# SPDX-License-Identifier: Apache-2.0
"""The time that tools/soak.sh gives to its scenarios. Nothing is started."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any
from unittest import mock

from oslotest import base

from tests.faults import soak

SUMMARY = {"outcomes": {"bound": 3}, "rounds": 2, "faults": [], "kills": {"nova-compute": 1}}


class TestTime(base.BaseTestCase):
    def test_defaults(self) -> None:
        """The scenario nova alone takes at most 4 minutes; an explicit time is kept."""
        self.assertLessEqual(soak.total_minutes(None, ["nova"]), 4.0)
        self.assertEqual(30.0, soak.total_minutes(None, ["crash"]))
        self.assertEqual(30.0, soak.total_minutes(None, ["crash", "nova"]))
        self.assertEqual(60.0, soak.total_minutes(60.0, ["nova"]))

    def test_a_program_runs_once(self) -> None:
        """A separate program uses the time of its scenario; it is not started again when it ends a little early."""
        commands: list[list[Any]] = []

        def run(command: list[Any], **_: Any) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            if len(commands) == 2:
                raise SystemExit("started again")  # not an Exception, which the scenario would count and repeat
            pathlib.Path(command[-1]).write_text(json.dumps(SUMMARY))
            return subprocess.CompletedProcess(command, 0)

        [scenario] = [scenario for scenario in soak.SCENARIOS if scenario.name == "nova"]
        with mock.patch.object(soak, "backends"), mock.patch.object(soak.subprocess, "run", run):
            tally = soak.run(scenario, 120.0, 1)
        self.assertEqual((1, 2, []), (tally.rounds, tally.checks, tally.problems))
        self.assertEqual("2.0", commands[0][commands[0].index("--minutes") + 1])
