# SPDX-License-Identifier: Apache-2.0
"""db sync, version and purge, through the command line."""

from __future__ import annotations

import time

from tests.cli import base


class DatabaseTest(base.CliTestCase):
    def test_purge(self) -> None:
        ended = ("reserve --project p --consumer c gpu=1", "rollback --project p --consumer c")
        self.prepare(*ended)
        time.sleep(0.01)
        for options, purged in (("", 0), ("--older-than 1", 0), ("--older-than 0", 1)):
            self.assertEqual([(purged,)], self.columns(f"db purge {options}", "purged"), options)
        self.configure("[quota]\npurge_age = 0")
        self.prepare(*ended)
        time.sleep(0.01)
        self.assertEqual([(1,)], self.columns("db purge", "purged"))
        self.assertEqual([], self.good("reservation", "list"))
        for bad in ("-1", "x", "1.5", "36501", "9" * 30):
            self.misused("db", "purge", "--older-than", bad)
