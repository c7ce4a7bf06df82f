# SPDX-License-Identifier: Apache-2.0
"""The kills of tests/faults/kill_points.py: each effect that a kill can have is tried."""

from __future__ import annotations

from oslotest import base

from tests.faults import kill_points


class TestPoints(base.BaseTestCase):
    def test_each_transaction_has_its_first_and_last_write_and_its_end(self) -> None:
        no, end = False, True
        for ends, expected in (
            ([], []),
            ([end], [0]),
            ([no, end], [0, 1]),
            ([no, no, no, no, end], [0, 3, 4]),
            ([end, no, no, no, end, end], [0, 1, 3, 4, 5]),
            ([no, end, no, no, no, no], [0, 1, 2, 4, 5]),
        ):
            self.assertEqual(expected, kill_points.of(ends), ends)

    def test_writes(self) -> None:
        for statement, expected in (
            ("UPDATE quota_usages SET used = 1", True),
            ("SELECT WHERE cyborg_quota_reserve_v1(%s) > 0 -- COMMIT", True),
            ("EXECUTE cq1 USING 1 -- COMMIT", True),
            ("WITH changed AS (SELECT 1) UPDATE projects SET generation = 1", True),
            ("SELECT 1", False),
            ("BEGIN IMMEDIATE", False),
            ("SET autocommit = 1", False),
        ):
            self.assertIs(expected, kill_points.is_write(statement), statement)
