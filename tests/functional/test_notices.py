# SPDX-License-Identifier: Apache-2.0
"""A crossing of a threshold is reported once, regardless of how many hosts check it how often; on every database."""

from __future__ import annotations

import logging
from unittest import mock

import fixtures as fx

import cyborg_quota
from cyborg_quota import Claim, Inventory
from cyborg_quota.cli import expirer, notifications
from cyborg_quota.ledger.thresholds import OVER, level
from cyborg_quota.types import Notice
from tests import base, clouds, fixtures, hooks
from tests.functional import test_pages
from tests.race.workers import race


class TestNotices(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.limits.own["p1", "gpu"] = 20

    def take_notices(self) -> list[tuple[int, int, int]]:
        """Return (used, before, now) of each notice since the previous call."""
        return [(notice.used, notice.before, notice.now) for notice in self.quotas.notices(base.ADMIN)]

    def test_once_when_it_rises_and_once_when_it_falls(self) -> None:
        """If the answer to a COMMIT is lost, the retry must not take the recorded level for that of another host."""
        self.quotas.reserve(self.context, {"gpu": 15})
        self.assertEqual([], self.take_notices())
        (some,) = self.quotas.reserve(self.context, {"gpu": 1})
        with hooks.LostCommits(self.engine, self.backend, table="quota_usages") as loss:
            self.assertEqual([(16, 0, 80)], self.take_notices())
        self.assertEqual(1, loss.lost)
        self.assertEqual([], self.take_notices())
        (more,) = self.quotas.reserve(self.context, {"gpu": 3})
        self.assertEqual([(19, 80, 95)], self.take_notices())
        self.quotas.rollback(self.context, [more])
        self.assertEqual([(16, 95, 80)], self.take_notices())
        self.quotas.rollback(self.context, [some])
        self.assertEqual([(15, 80, 0)], self.take_notices())
        self.assertEqual([], self.take_notices())

    def test_a_lowered_limit_that_leaves_a_project_over(self) -> None:
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 10}))
        self.assertEqual([], self.take_notices())
        for limit, notices in ((9, [(10, 0, OVER)]), (10, [(10, OVER, 95)]), (-1, [(10, 95, 0)]), (0, [(10, 0, OVER)])):
            self.limits.own["p1", "gpu"] = limit
            self.assertEqual(notices, self.take_notices())
        for held, limit, expected in ((0, 0, 0), (7, 9, 0), (8, 9, 80), (9, 9, 95), (10, 9, OVER), (5, -1, 0)):
            self.assertEqual(expected, level(held, limit, [80, 95]), "percentages are rounded down")

    def test_several_hosts_report_it_once(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 20})
        self.engine.close()
        self.assertEqual(1, sum(race(*[lambda: len(self.engine.notices(base.ADMIN))] * 4)))


class TestCapacityNotices(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n1", gpu=10)

    def set(self, name: str, total: int) -> None:
        self.engine.capacity.set_inventories(base.ADMIN, name, {"gpu": Inventory(total)})

    def take_notices(self) -> list[tuple[str, int, int, int]]:
        notices = self.engine.capacity.notices(base.ADMIN)
        return [(one.owner, one.used, one.before, one.now) for one in notices if one.owner is not None]

    def take_totals(self) -> list[tuple[str, int, int, int, int]]:
        """Return (resource, used, capacity, before, now) of the notices of all providers together."""
        totals = [one for one in self.engine.capacity.notices(base.ADMIN) if one.owner is None]
        return [(one.resource, one.used, one.limit, one.before, one.now) for one in totals]

    def test_a_resource_as_a_whole(self) -> None:
        """No node has thresholds, but all nodes together do. What is used elsewhere counts."""
        self.engine = self.make_engine(least_capacity=32)
        self.add_provider("n2", gpu=10)
        (some,) = self.quotas.reserve(self.context, {"gpu": 8}, provider="n1")
        self.engine.capacity.set_inventories(base.ADMIN, "n2", {}, used_elsewhere={"gpu": 7})
        self.assertEqual([], self.take_totals())
        self.engine.capacity.set_inventories(base.ADMIN, "n2", {}, used_elsewhere={"gpu": 8})
        self.assertEqual([("gpu", 16, 20, 0, 80)], self.take_totals())
        self.assertEqual([], self.take_totals())
        self.set("n1", 4)  # where the use exceeds the capacity, nothing is free: 12 of 14
        self.assertEqual([], self.take_totals())
        self.engine.capacity.set_inventories(base.ADMIN, "n2", {}, used_elsewhere={"gpu": 12})
        self.assertEqual([("gpu", 14, 14, 80, 95)], self.take_totals())
        self.quotas.rollback(self.context, [some])
        self.engine.capacity.remove_provider(base.ADMIN, "n1")
        self.assertEqual([], self.take_totals())
        self.engine.capacity.remove_provider(base.ADMIN, "n2")
        self.assertEqual([("gpu", 0, 0, 95, 0)], self.take_totals())

    def test_inventories_without_a_notice_are_not_read(self) -> None:
        """Each expirer asks for notices every minute: it reads the inventories that were or are to be reported only."""
        self.engine = self.make_engine(least_capacity=8)
        nodes = [(f"small{number}", "gpu", 7, 0) for number in range(50)]
        clouds.add_inventories(self.sql, [*nodes, *((f"free{number}", "gpu", 9, 2) for number in range(50))])
        self.quotas.reserve(self.context, {"gpu": 8}, provider="n1")
        self.set("small3", 6)
        for expected in ([("n1", 8, 0, 80), ("small3", 7, 0, OVER)], [("small3", 7, OVER, 0)], []):
            with test_pages.counted_rows() as counter:
                self.assertEqual(expected, self.take_notices())
            self.assertLess(counter["rows"], 10)
            self.set("small3", 7)

    def test_nearly_full_and_over(self) -> None:
        """C4: an inventory that was lowered below its use, or adopted claims, cause a notice, too."""
        self.quotas.reserve(self.context, {"gpu": 7}, provider="n1")
        self.assertEqual([], self.take_notices())
        (some,) = self.quotas.reserve(self.context, {"gpu": 1}, provider="n1")
        self.assertEqual([("n1", 8, 0, 80)], self.take_notices())
        self.assertEqual([], self.take_notices())
        self.set("n1", 7)
        self.assertEqual([("n1", 8, 80, OVER)], self.take_notices())
        self.quotas.rollback(self.context, [some])
        self.assertEqual([("n1", 7, OVER, 95)], self.take_notices())
        self.engine.adopt(base.ADMIN, [Claim("c", {"gpu": 1}, provider="n1")], self.context.project_id)
        self.assertEqual([("n1", 8, 95, OVER)], self.take_notices())
        self.assertRaises(cyborg_quota.exceptions.NotAuthorized, self.engine.capacity.notices, self.context)

    def test_many_are_one_line(self) -> None:
        """A capacity below 32 has no thresholds, but is reported if its use exceeds it."""
        for number in range(12):
            self.add_provider(f"pool{number}", gpu=40)
            self.quotas.reserve(self.context, {"gpu": 40}, provider=f"pool{number}")
        self.quotas.reserve(self.context, {"gpu": 10}, provider="n1")
        log = self.useFixture(fx.FakeLogger(level=logging.INFO, format="%(levelname)s %(message)s"))
        maintenance = expirer.Maintenance(fixtures.configuration(), self.make_engine(least_capacity=32))
        self.assertEqual(13, maintenance.notify())
        line, total = [line for line in log.output.splitlines() if "crossed" in line]
        self.assertTrue(line.startswith("WARNING 12 thresholds crossed: 12 at the capacity."), line)
        self.assertEqual(
            "WARNING threshold crossed: all providers, resource gpu: at the capacity (used 490, capacity 490)"
            " [owner=(all) resource=gpu limit=490 used=490 level_before=0 level=95]",
            total,
        )
        self.set("n1", 9)
        self.assertEqual(1, maintenance.notify())
        self.assertIn(
            "threshold crossed: provider n1, resource gpu: over the capacity (used 10, capacity 9)"
            " [owner=n1 resource=gpu limit=9 used=10 level_before=0 level=101]",
            log.output,
        )


class TestNotifier(base.base.BaseTestCase):
    NOTICE = Notice("p1", "gpu", 10, 9, 0, 80)

    def test_a_notification_over_a_real_transport(self) -> None:
        import oslo_messaging
        from oslo_messaging.notify import _impl_test

        self.assertIsNone(notifications.make_sender(fixtures.configuration()))
        conf = fixtures.configuration(notices__notifications=True)
        oslo_messaging.get_notification_transport(conf)  # registers its options
        conf.set_override("driver", ["test"], "oslo_messaging_notifications")
        conf.set_override("transport_url", "fake://", "oslo_messaging_notifications")
        _impl_test.reset()
        send = notifications.make_sender(conf)

        notifications.notify(self.NOTICE, send)

        ((_, message, priority, _),) = _impl_test.NOTIFICATIONS
        found = priority, message["priority"], message["event_type"], message["payload"]["owner"]
        self.assertEqual(("WARN", "WARN", "cyborg_quota.threshold", "p1"), found)

    def test_a_transport_that_fails_is_logged(self) -> None:
        log = self.useFixture(fx.FakeLogger(level=logging.INFO))
        notifications.notify(self.NOTICE, mock.Mock(side_effect=OSError("no bus")))
        line = (
            "threshold crossed: project p1, resource gpu: at 80 % of the limit (used 9, limit 10)"
            " [owner=p1 resource=gpu limit=10 used=9 level_before=0 level=80]\n"
        )
        self.assertTrue(log.output.startswith(line), log.output)
        self.assertIn("no bus", log.output)
