# SPDX-License-Identifier: Apache-2.0
"""The periodic work of the conductor, without Cyborg."""

from __future__ import annotations

from unittest import mock

from oslotest import base

from cyborg_quota.cyborg import repair
from tests import fixtures


class TestPeriodicTasks(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = fixtures.configuration(cyborg__reconcile_interval=0, cyborg__bind_expire=3)
        self.tracker = mock.MagicMock()
        self.repair = mock.MagicMock(is_healing=True)
        self.tasks = repair.PeriodicTasks(self.conf, self.tracker, self.repair)

    def test_what_changed_lately_is_compared_every_few_seconds(self) -> None:
        """And all of it at each interval, if the conductor compares all. What is not started now is started later."""
        for due, is_started, expected in (
            ({}, True, [mock.call(compare_all=False)]),
            ({}, True, []),  # not yet due
            ({"_repair_at": 0.0}, True, [mock.call(compare_all=False)]),
            ({"_reconcile_at": 0.0}, False, [mock.call(compare_all=True)]),
            ({}, True, [mock.call(compare_all=True)]),
        ):
            vars(self.tasks).update(due)
            self.repair.start = mock.Mock(return_value=is_started)
            self.tasks.turn()
            self.assertEqual(expected, self.repair.start.call_args_list)
        self.assertEqual(5, self.tracker.extend_running.call_count)

    def test_a_turn_that_could_not_reach_the_ledger(self) -> None:
        self.tracker.guard.reaches.return_value = False
        self.tasks.turn()
        self.assertEqual((0, 0), (self.repair.start.call_count, self.tracker.engine.expire.call_count))
