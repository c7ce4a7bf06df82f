# SPDX-License-Identifier: Apache-2.0
"""The periodic work of the conductor, without Cyborg."""

from __future__ import annotations

import threading
from unittest import mock

from oslotest import base

from cyborg_quota.integrations.cyborg import periodic
from tests import fixtures

LONG_SECONDS = 60.0


class TestUpkeep(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = fixtures.configuration(cyborg__reconcile_interval=0, cyborg__bind_expire=3)
        self.tracker = mock.MagicMock()
        self.repair = mock.MagicMock(is_healing=True)
        self.upkeep = periodic.Upkeep(self.conf, self.tracker, self.repair)

    def test_running_binds_are_extended_while_a_comparison_runs(self) -> None:
        began, release, ended = threading.Event(), threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def compare(*, compare_all: bool) -> None:
            began.set()
            release.wait(LONG_SECONDS)
            ended.set()

        self.repair.run = compare
        self.upkeep.turn()
        self.assertTrue(began.wait(LONG_SECONDS))
        self.upkeep.turn()
        self.assertEqual((2, False), (self.tracker.extend_running.call_count, ended.is_set()))

    def turn(self) -> None:
        self.upkeep.turn()
        for thread in list(self.upkeep._threads.values()):
            thread.join(LONG_SECONDS)

    def test_what_changed_lately_is_compared_every_few_seconds(self) -> None:
        """And all of it at each interval, if the conductor compares all."""
        self.turn()
        self.turn()  # not yet due
        self.upkeep._repair_at = 0.0
        self.turn()
        self.assertEqual([mock.call(compare_all=False)] * 2, self.repair.run.call_args_list)
        self.upkeep._reconcile_at = 0.0
        self.turn()
        self.assertEqual(mock.call(compare_all=True), self.repair.run.call_args)

    def test_all_is_compared_after_a_turn_that_could_not_reach_the_ledger(self) -> None:
        self.tracker.guard.reaches.return_value = False
        self.turn()
        self.assertEqual((0, 1), (self.repair.run.call_count, self.repair.compare_all_next.call_count))
