# SPDX-License-Identifier: Apache-2.0
"""db sync, version and purge, through the command line."""

from __future__ import annotations

import time

from tests.cli import base


class DatabaseTest(base.CliTestCase):
    def test_purge(self) -> None:
        uuid = self.good("reserve", "--project", "p1", "gpu=1")[0]["uuid"]
        self.good("rollback", uuid)
        self.assertEqual({"purged": 0}, self.good("db", "purge"))
        self.assertEqual({"purged": 0}, self.good("db", "purge", "--older-than", "1"))
        time.sleep(0.01)
        self.assertEqual({"purged": 1}, self.good("db", "purge", "--older-than", "0"))
        self.assertEqual([], self.good("reservation", "list"))
        self.configure("[quota]\npurge_age = 0")
        self.good("rollback", self.good("reserve", "--project", "p1", "gpu=1")[0]["uuid"])
        time.sleep(0.01)
        self.assertEqual({"purged": 1}, self.good("db", "purge"))
        for bad in ("-1", "x", "1.5", "36501", "9" * 30):
            self.misused("db", "purge", "--older-than", bad)
