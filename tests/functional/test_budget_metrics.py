# SPDX-License-Identifier: Apache-2.0
"""The metrics of accelerator-hours and of budgets; on every database."""

from __future__ import annotations

import datetime
from unittest import mock

import fixtures as fx

from cyborg_quota import exceptions
from cyborg_quota.db import clock
from cyborg_quota.metrics.exporter import LedgerApplication
from cyborg_quota.types.hours import HOUR
from cyborg_quota.types.metrics import ProjectMetrics
from tests import base, clouds, fixtures, hooks
from tests.functional import test_limits

ADMIN = base.ADMIN
TREE = {"org": None, "physics": "org", "cms": "physics"}


class HoursTestCase(test_limits.LimitsTestCase):
    """A tree of three levels. ``age`` makes what is held there begin earlier."""

    def setUp(self) -> None:
        super().setUp()
        self.import_tree(TREE, dict.fromkeys(TREE, 100), gpu=0)
        self.hours = self.engine.hours

    def take(self, amount: int, project_id: str = "cms") -> list[str]:
        uuids: list[str] = self.engine.reserve(base.Context(project_id), {"gpu": amount})
        return uuids

    def age(self, uuid: str, seconds: int) -> None:
        """Let a reservation of cms begin ``seconds`` earlier."""
        ((delta,),) = self.fetch("SELECT delta FROM reservations WHERE uuid = :uuid", uuid=uuid)
        added = delta * seconds
        self.execute("UPDATE reservations SET meter = meter + :added WHERE uuid = :uuid", added=added, uuid=uuid)
        self.execute("UPDATE quota_usages SET metered = metered + :added", added=added)
        self.assert_invariants()

    def read(self, *project_ids: str) -> dict[tuple[str, str], ProjectMetrics]:
        rows = self.engine.monitoring.read(ADMIN, project_ids or None).projects
        return {(row.project_id, row.resource): row for row in rows}

    def second(self) -> int:
        return hooks.database_of(self.engine).read(clock.read_second)


class TestMetrics(HoursTestCase):
    def test_device_seconds_without_a_budget(self) -> None:
        before = self.second()
        (uuid,) = self.take(3)
        self.age(uuid, 1000)
        found = self.read()
        most = 3 * (1000 + self.second() - before)
        for row in (found[project_id, "gpu"] for project_id in TREE):
            self.assertTrue(3000 <= row.device_seconds_total <= most, row)
            self.assertEqual((None, None, None), row[-3:])
        self.engine.release(base.Context("cms"), [uuid])
        ended = self.read()["cms", "gpu"].device_seconds_total
        self.assertGreaterEqual(ended, 3000)
        self.engine.purge(ADMIN, 0)
        self.admin.remove_project(ADMIN, "cms")
        totals = {key: row.device_seconds_total for key, row in self.read().items() if row.device_seconds_total}
        self.assertEqual({(project_id, "gpu"): ended for project_id in TREE}, totals)

    def test_a_budget(self) -> None:
        self.hours.set_budget(ADMIN, {"gpu": 100}, "physics")
        self.assertEqual((100, 0, None), self.read()["physics", "gpu"][-3:], "nothing is held")
        (uuid,) = self.take(50)
        self.age(uuid, HOUR)
        found = self.read()
        hours, spent, left = found["physics", "gpu"][-3:]
        self.assertTrue(hours == 100 and 50 <= spent < 52 and 3500 < left <= 3600, found)
        self.assertEqual((None, None, None), found["org", "gpu"][-3:])
        self.assertEqual(self.engine.headroom(ADMIN, "cms")["gpu"].fits, found["cms", "gpu"].fits)
        self.assertEqual(found["physics", "gpu"][7:9], self.read("physics")["physics", "gpu"][7:9])
        self.age(uuid, HOUR)
        self.assertEqual(0, self.read("physics")["physics", "gpu"].budget_seconds_left, "it is spent")
        self.hours.set_budget(ADMIN, {"gpu": 10_000_000}, "physics")
        self.assertIsNone(self.read()["physics", "gpu"].budget_seconds_left, "the period ends before")
        self.admin.add_project(ADMIN, "new", "org")
        self.hours.set_budget(ADMIN, {"gpu": 100}, "new")
        for found in (self.read(), self.read("new")):
            self.assertEqual(100, found["new", "gpu"].budget_hours, "it has nothing else")

    def test_the_number_of_statements_is_fixed(self) -> None:
        """Also if more projects are read than one statement names."""
        self.hours.set_budget(ADMIN, {"gpu": 100}, "physics")
        counts = []
        for first, last in ((0, 5), (5, 60)):
            clouds.add_projects(self.sql, first, last)
            self.read()
            with clouds.captured() as statements:
                found = self.read()
            self.assertEqual(100, found["physics", "gpu"].budget_hours)
            counts.append(len(clouds.queries(statements)))
        self.assertEqual([11, 11], counts)
        self.useFixture(fx.MonkeyPatch("cyborg_quota.db.path_state.MAX_PROJECTS", 10))
        self.assertEqual(found["physics", "gpu"][:-4], self.read()["physics", "gpu"][:-4])

    def test_far_ends_of_a_budget_and_of_an_override(self) -> None:
        """What ends at the last date that can be given limits charges until then. (No clock is held here.)"""
        for name, start in (("physics", datetime.date(2026, 1, 1)), ("org", datetime.date(9998, 1, 1))):
            self.hours.set_budget(ADMIN, {"gpu": 10}, name, start=start, until=datetime.date(9999, 1, 1))
        self.engine.commit(base.Context("cms"), self.take(10))
        self.assertRaises(exceptions.BudgetExceeded, self.take, 1)
        self.hours.delete_budget(ADMIN, "physics")
        self.admin.set_overrides(ADMIN, {"gpu": 12}, "cms", datetime.datetime(9998, 1, 1))
        self.engine.commit(base.Context("cms"), self.take(2))
        self.assertRaises(exceptions.OverQuota, self.take, 1)


class TestExport(HoursTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_counter_never_falls(self) -> None:
        """The clock of another database node is some seconds behind."""
        (uuid,) = self.take(2)
        self.age(uuid, 100)
        application = LedgerApplication(self.engine, ["*"])
        name = 'cyborg_quota_device_seconds_total{project_id="cms",resource="gpu"} '
        values = []
        for behind in (0, 30, 0):
            now = clock.read_second
            with mock.patch.object(clock, "read_second", lambda connection: now(connection) - behind):  # noqa: B023
                text = application.text()
            values.append(int(text.partition(name)[2].partition("\n")[0]))
        self.assertEqual(sorted(values), values)
        self.assertGreaterEqual(values[0], 200)
        self.assertIn("# TYPE cyborg_quota_device_seconds_total counter\n", text)
        self.assertNotIn("cyborg_quota_budget", text)
