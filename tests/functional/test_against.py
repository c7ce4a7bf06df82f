# SPDX-License-Identifier: Apache-2.0
"""The comparison of the benchmark with another commit."""

from __future__ import annotations

import sys

from oslotest import base

from benchmarks import against, cinder_processes
from tests import fixtures


class TestAgainst(base.BaseTestCase):
    def test_each_environment_creates_its_schema_and_runs_its_code(self) -> None:
        url = fixtures.fresh_url("sqlite", "against")
        against.sync(sys.executable, url)
        turn = cinder_processes.turns(sys.executable, [url], 2, "database:2", against.SCRIPT)
        self.assertGreater(turn(2, 0.05).cycles, 0)
        with fixtures.plain_engine(url).connect() as connection:
            rows = connection.exec_driver_sql("SELECT DISTINCT project_id, used > 2 FROM quota_usages").all()
        self.assertEqual([("p0", 1), ("p1", 1)], sorted(tuple(row) for row in rows))
