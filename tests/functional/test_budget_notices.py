# SPDX-License-Identifier: Apache-2.0
"""A threshold of a budget is reported once in a period, regardless of how many hosts check it how often."""

from __future__ import annotations

import logging
from collections.abc import Callable

import fixtures as fx
import oslo_messaging
from oslo_messaging.notify import _impl_test

from cyborg_quota.cli import expirer
from cyborg_quota.types.hours import HOUR
from tests import base, clouds, fixtures
from tests.functional.test_budget_metrics import ADMIN, HoursTestCase
from tests.race.workers import race


class TestNotices(HoursTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.hours.set_budget(ADMIN, {"gpu": 1000}, "physics")

    def spend(self, hours: int) -> None:
        (uuid,) = self.take(1)
        self.age(uuid, hours * HOUR)
        self.engine.release(base.Context("cms"), [uuid])

    def take_notices(self) -> list[tuple[int, int]]:
        """Return (before, now) of each notice since the previous call."""
        return [(notice.before, notice.now) for notice in self.hours.notices(ADMIN)]

    def test_each_threshold_once_a_period(self) -> None:
        steps: list[tuple[Callable[[], object], list[tuple[int, int]]]] = [
            (lambda: self.spend(799), []),
            (lambda: self.spend(1), [(0, 80)]),
            (lambda: self.spend(150), []),
            (lambda: self.hours.adjust(ADMIN, {"gpu": -300}, "physics"), []),
            (lambda: self.hours.adjust(ADMIN, {"gpu": 350}, "physics"), [(80, 100)]),
            # The notices of another period, and of a budget that was changed, are those of another budget.
            (lambda: self.execute("UPDATE budgets SET notified_period = notified_period - 1"), [(0, 100)]),
            # The clock of this host is behind.
            (lambda: self.execute("UPDATE budgets SET notified_period = notified_period + 1, notified_level = 80"), []),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1200}, "physics", every="year", notify_only=True), [(0, 80)]),
        ]
        for act, expected in steps:
            act()
            self.assertEqual((expected, []), (self.take_notices(), self.take_notices()))

    def test_nothing_is_written_without_a_notice(self) -> None:
        self.spend(900)
        self.take_notices()
        for name in ("org", "elsewhere", "given back"):
            self.hours.set_budget(ADMIN, {"gpu": 0}, name)
        self.hours.adjust(ADMIN, {"gpu": -5}, "given back")
        self.assertEqual(1, len(self.hours.notices(ADMIN)), "that of org")
        with clouds.captured() as statements:
            self.assertEqual([], self.hours.notices(ADMIN))
        self.assertEqual([], [one for one, _ in clouds.queries(statements) if one.startswith("UPDATE")])

    def test_several_hosts_report_it_once(self) -> None:
        self.spend(1000)
        self.engine.close()
        self.assertEqual(1, sum(race(*[lambda: len(self.engine.hours.notices(ADMIN))] * 4)))

    def test_the_expirer_logs_and_sends_it(self) -> None:
        self.spend(1001)
        conf = fixtures.configuration(notices__notifications=True)
        oslo_messaging.get_notification_transport(conf)  # registers its options
        for name, value in (("driver", ["test"]), ("transport_url", "fake://")):
            conf.set_override(name, value, "oslo_messaging_notifications")
        _impl_test.reset()
        log = self.useFixture(fx.FakeLogger(level=logging.INFO, format="%(levelname)s %(message)s"))
        maintenance = expirer.Maintenance(conf, self.engine)
        self.assertEqual(1, maintenance.notify())
        notice = r"project physics, resource gpu: at 100 % of the budget \(used 1001.0, budget 1000.0\)"
        self.assertRegex(log.output, f"WARNING threshold crossed: {notice} .* limit=1000.0 used=1001.0 ")
        ((_, message, priority, _),) = _impl_test.NOTIFICATIONS
        self.assertEqual(("cyborg_quota.budget_threshold", "WARN"), (message["event_type"], priority))
        self.assertEqual((1000, 0, 100), tuple(message["payload"][name] for name in ("limit", "before", "now")))
        self.assertEqual(0, maintenance.notify())
