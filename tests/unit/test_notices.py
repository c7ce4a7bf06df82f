# SPDX-License-Identifier: Apache-2.0
"""The texts of threshold notices, the limits that cause none, and the summary of many."""

from __future__ import annotations

import logging

import fixtures as fx
from oslotest import base

from cyborg_quota.cli import notifications
from cyborg_quota.ledger.thresholds import OVER, level
from cyborg_quota.types import Notice


class TestText(base.BaseTestCase):
    def test_each_level(self) -> None:
        for held, now, text in (
            (10, 80, "at the limit"),
            (10, 95, "at the limit"),
            (10, 100, "at the limit"),
            (9, 80, "at 80 % of the limit"),
            (11, OVER, "over the limit"),
            (1, 0, "below every threshold"),
        ):
            expected = f"project p, resource gpu: {text} (used {held}, limit 10)"
            self.assertEqual(expected, str(Notice("p", "gpu", 10, held, 95, now)))

    def test_a_small_limit_has_no_thresholds_but_can_be_exceeded(self) -> None:
        for held, limit, expected in (
            (1, 1, 0),
            (2, 2, 0),
            (2, 1, OVER),
            (1, 0, OVER),
            (3, 3, 95),
            (0, 3, 0),
            (9, -1, 0),
        ):
            self.assertEqual(expected, level(held, limit, [80, 95], least_limit=3), (held, limit))
        self.assertEqual(95, level(1, 1, [80, 95]), "by default, 1 of 1 is a crossing")


class TestSummary(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger(level=logging.DEBUG, format="%(levelname)s %(message)s"))

    def test_many_are_one_line(self) -> None:
        sent: list[Notice] = []
        notices = [Notice(f"p{n}", "gpu", 10, 10 + n % 2, 0, OVER if n % 2 else 95) for n in range(50)]
        notifications.notify_all(notices, sent.append)
        lines = self.log.output.splitlines()
        self.assertEqual((notices, 51), (sent, len(lines)), "at DEBUG, each notice is logged")
        self.assertEqual(
            [
                "WARNING 50 thresholds crossed: 25 over the limit, 25 at the limit. "
                "(`cyborg-quota list --over` and `list --usage` show them; each notice is logged at DEBUG.)"
            ],
            [line for line in lines if line.startswith("WARNING")],
        )

    def test_a_fall_of_many_is_no_warning_and_hides_no_rise(self) -> None:
        falls = [Notice(f"p{number}", "gpu", 10, 1, 95, 0) for number in range(20)]
        notifications.notify_all([*falls, Notice("p", "gpu", 10, 8, 0, 80)], None)
        fall, rise = [line for line in self.log.output.splitlines() if not line.startswith("DEBUG")]
        self.assertRegex(fall, "^INFO .*20 below every threshold")
        self.assertRegex(rise, "^WARNING .*project p, resource gpu: at 80 %")
