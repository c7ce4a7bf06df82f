# SPDX-License-Identifier: Apache-2.0
"""The comparison of the benchmark with another commit."""

from __future__ import annotations

import sys

from oslotest import base

from benchmarks import against, cinder_processes
from tests import fixtures


class TestAgainst(base.BaseTestCase):
    def test_the_interval_excludes_outliers_of_nine_rounds(self) -> None:
        ratios = [1.0, 9.0, 0.9, 1.1, 0.1, 1.2, 0.8, 1.0, 1.0]
        self.assertEqual((0.8, 1.2), against.interval(ratios))

    def test_the_interval_of_few_rounds_has_all_of_them(self) -> None:
        self.assertEqual((0.5, 2.0), against.interval([1.0, 2.0, 0.5, 1.0, 1.0]))
        self.assertEqual((0.5, 2.0), against.interval([1.0, 2.0, 0.5, 1.0, 1.0, 1.0]))

    def test_each_environment_creates_its_schema_and_runs_its_code(self) -> None:
        url = fixtures.fresh_url("sqlite", "against")
        against.sync(sys.executable, url)
        turn = cinder_processes.turns(sys.executable, [url], 2, "2", against.SCRIPT)
        self.assertGreater(turn(2, 0.05).cycles, 0)
        with fixtures.plain_engine(url).connect() as connection:
            rows = connection.exec_driver_sql("SELECT DISTINCT project_id, used > 2 FROM quota_usages").all()
        self.assertEqual([("p0", 1), ("p1", 1)], sorted(tuple(row) for row in rows))
