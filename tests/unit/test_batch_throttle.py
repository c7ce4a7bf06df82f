# SPDX-License-Identifier: Apache-2.0
"""The throttle of batches: large batches while no call reserves, short ones with pauses while calls reserve."""

from __future__ import annotations

import itertools

from oslotest import base

from cyborg_quota.ledger.expire import BatchThrottle


class TestBatchThrottle(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.slept: list[float] = []

    def test_without_reserves(self) -> None:
        pace = BatchThrottle(lambda: 7, 2000, self.slept.append)
        for _ in range(10):
            pace.rest(0.2)
        self.assertEqual(2000, pace.rows)
        self.assertEqual([], self.slept)

    def test_never_more_than_allowed(self) -> None:
        pace = BatchThrottle(lambda: None, 3, self.slept.append)
        self.assertEqual(3, pace.rows)
        pace.rest(0.001)
        self.assertEqual(3, pace.rows)

    def test_with_reserves(self) -> None:
        """A batch that took 100 ms is reduced to the minimum size; the pause is short."""
        pace = BatchThrottle(itertools.count().__next__, 2000, self.slept.append)
        for _ in range(5):
            pace.rest(0.1)
        self.assertEqual(50, pace.rows)
        self.assertEqual(5, len(self.slept))
        self.assertTrue(all(0 < seconds <= 0.1 for seconds in self.slept))

    def test_it_grows_again_after_the_reserves(self) -> None:
        newest = [0]
        pace = BatchThrottle(lambda: newest[0], 2000, self.slept.append)
        for number in range(3):
            newest[0] = number + 1
            pace.rest(0.05)
        busy = pace.rows
        for _ in range(20):
            pace.rest(0.001)
        self.assertGreater(pace.rows, busy)
        self.assertEqual(2000, pace.rows)
