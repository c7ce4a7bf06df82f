# SPDX-License-Identifier: Apache-2.0
"""Hosts whose clocks are ten minutes fast and slow: nothing expires early, and nothing is kept for too long."""

from __future__ import annotations

import random
import time

import testscenarios

from tests import base, fixtures, needs
from tests.faults import clocks
from tests.faults.clocks import SKEW_SECONDS, Worker

load_tests = testscenarios.load_tests_apply_scenarios


class TestClocks(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]  # (SQLite has the clock of the host only)

    def setUp(self) -> None:
        super().setUp()
        if clocks.library() is None:
            needs.missing(self, "no libfaketime (bindep.txt names the package)")
        self.engine.get_usages(self.context)
        self.workers = [self.useFixture(Worker(self.url, skew)) for skew in (SKEW_SECONDS, -SKEW_SECONDS, 0)]

    def test_skew(self) -> None:
        for worker in self.workers:
            self.assertAlmostEqual(time.time() + worker.skew_seconds, worker.calls.time(), delta=30)
        clocks.check_skew(self.workers, random.Random(1))
        self.assertEqual((0, 0), self.figures("p"))
        self.assert_invariants()
        self.assert_overrides_begin_and_end()
        self.assert_naive_is_detected()

    def assert_naive_is_detected(self) -> None:
        """A sweeper that uses its own clock is early on one host, and late on another."""
        early, slow, right = self.workers
        right.calls.reserve(60)
        self.assertEqual(0, early.calls.expire())
        self.assertEqual(1, early.calls.naive_expire())
        right.calls.reserve(60)
        self.execute("UPDATE reservations SET expire = created_at WHERE state = 'reserved'")
        self.assertEqual(0, slow.calls.naive_expire())
        self.assertEqual(1, slow.calls.expire())

    def assert_overrides_begin_and_end(self) -> None:
        """Only the clock of the database decides when an override begins and ends, on every host."""
        early, slow, _ = self.workers
        self.execute("INSERT INTO project_limits (project_id, resource, pod, hard_limit) VALUES ('p', 'gpu', '', 2)")
        # One that ends long before the slow host thinks that it begins, made by that host; and one far in the future.
        slow.calls.override(7, 0, 300)
        early.calls.override(5, 300, 500)
        self.assertEqual([7, 7, 7], [worker.calls.room() for worker in self.workers])
        self.execute("UPDATE limit_overrides SET ends_at = created_at WHERE hard_limit = 7")
        self.assertEqual([2, 2, 2], [worker.calls.room() for worker in self.workers])
        # Let the second one begin.
        self.execute("UPDATE limit_overrides SET starts_at = created_at")
        self.assertEqual([5, 5, 5], [worker.calls.room() for worker in self.workers])
