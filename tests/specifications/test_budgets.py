# SPDX-License-Identifier: Apache-2.0
"""Budgets: how many device-hours a project, with all below it, may use in a period."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import random
from unittest import mock

import fixtures as fx

from cyborg_quota import exceptions
from cyborg_quota.db import usages
from cyborg_quota.hours.api import BudgetRecord
from cyborg_quota.hours.enforcer import BudgetEnforcer
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types.hours import BudgetUse, MonthlyUsage
from tests import base, clouds, fixtures, held_clock
from tests.base import ADMIN
from tests.race import workers

BEGIN = datetime.datetime(2026, 11, 2, 8)
NEXT_MONTH = datetime.datetime(2026, 12, 1)


class BudgetTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = self.useFixture(held_clock.HeldClock(self.url, BEGIN))
        self.plant({"org": None, "physics": "org", "cms": "physics"})
        self.hours = self.engine.hours
        self.cms = base.Context("cms")

    def spend(self, hours: float, amount: int = 1, project_id: str = "cms") -> None:
        """Hold this amount for this time."""
        context = base.Context(project_id)
        uuids = self.quotas.reserve(context, {"gpu": amount})
        self.clock.now += datetime.timedelta(hours=hours)
        self.quotas.release(context, uuids)

    def use(self) -> BudgetUse:
        """The use of the budget of physics."""
        (record,) = self.hours.show_budget(ADMIN, "physics")
        assert record.use is not None, "its period is going on"
        return record.use

    def assert_fits(self, amount: int) -> None:
        """H1: exactly this amount is granted at this moment, in this process and in one that has cached nothing."""
        for engine in (self.engine, self.make_engine()):
            self.assertEqual(amount, engine.headroom(ADMIN, "cms")["gpu"].fits)
            self.assertRaises(exceptions.BudgetExceeded, engine.reserve, self.cms, {"gpu": amount + 1})
            if amount:
                engine.rollback(self.cms, engine.reserve(self.cms, {"gpu": amount}))


class TestBound(BudgetTestCase):
    def test_the_refusal_names_the_ancestor(self) -> None:
        """Large numbers are written in full."""
        self.hours.set_budget(ADMIN, {"gpu": 1_234_567}, "physics")
        self.hours.adjust(ADMIN, {"gpu": 1_233_567}, "physics")
        self.spend(249.6, 4)
        held = self.quotas.reserve(self.cms, {"gpu": 1})
        error = self.assertRaises(exceptions.BudgetExceeded, self.engine.reserve, ADMIN, {"gpu": 1}, project_id="cms")
        self.assertEqual(
            "Budget exceeded for gpu: project physics, with all below it, has spent 1234565.4 of 1234567 hours since "
            "2026-11-01; 1 are held, and 1 more need 2.0 hours for the next hour; 1.6 are left. The next period begins "
            "2026-12-01T00:00Z.",
            str(error),
        )
        hidden = self.assertRaises(exceptions.BudgetExceeded, self.engine.reserve, self.cms, {"gpu": 1})
        self.assertIn("with all below it, has not enough left of its 1234567 hours for the next hour.", str(hidden))
        self.assertNotIn("1234565", str(hidden))
        (over,) = self.engine.check(self.cms, {"gpu": 1})
        self.assertEqual(("budget", None, None), (over.scope, over.limit, over.used))
        self.quotas.commit(self.cms, held)
        self.quotas.release(self.cms, held)
        self.assert_fits(1)

    def test_at_three_levels_the_least_binds(self) -> None:
        for project_id, hours in (("org", 100), ("physics", 12), ("cms", 50)):
            self.hours.set_budget(ADMIN, {"gpu": hours}, project_id)
        self.assert_fits(12)
        self.spend(1.5, 4)
        self.assert_fits(6)
        self.assertEqual("physics", self.engine.headroom(ADMIN, "cms")["gpu"].bound_by)

    def test_time_alone_spends_it(self) -> None:
        """Also for a process that has read the path before; and what is held goes on."""
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics")
        held = self.quotas.reserve(self.cms, {"gpu": 2})
        # In the end it is overspent by less than what is paid ahead, and by more.
        for hours, left, fits in ((3, 4, 2), (1, 2, 0), (1.5, -1, 0), (1.5, -4, 0)):
            self.clock.now += datetime.timedelta(hours=hours)
            self.assertEqual(left, self.use().left)
            self.assert_fits(fits)
        self.assertEqual(["budget"], [over.scope for over in self.engine.check(ADMIN, {"gpu": 1}, "cms")])
        self.quotas.commit(self.cms, held)
        self.quotas.resize(self.cms, {"gpu": 1}, reservation=held[0])
        self.assertRaises(exceptions.BudgetExceeded, self.engine.resize, self.cms, {"gpu": 2}, reservation=held[0])
        self.quotas.adopt(ADMIN, [base.claim("late", gpu=1)], "cms")
        self.quotas.release(self.cms, held)

    def test_a_limit_that_binds_too_is_named_beside_it(self) -> None:
        self.limits.own["physics", "gpu"] = 3
        self.hours.set_budget(ADMIN, {"gpu": 5}, "physics")
        error = self.assertRaises(exceptions.OverQuota, self.engine.reserve, ADMIN, {"gpu": 9}, project_id="cms")
        self.assertIn("budget", {over.scope for over in error.overs})

    def test_a_change_is_in_force_at_once(self) -> None:
        """Another process has cached the path."""
        other = self.make_engine()
        other.rollback(self.cms, other.reserve(self.cms, {"gpu": 5}))
        for hours in (3, 7, 2):
            self.hours.set_budget(ADMIN, {"gpu": hours}, "physics")
            self.assertRaises(exceptions.BudgetExceeded, other.reserve, self.cms, {"gpu": hours + 1})
            other.rollback(self.cms, other.reserve(self.cms, {"gpu": hours}))
        self.hours.delete_budget(ADMIN, "physics")
        other.reserve(self.cms, {"gpu": 9})

    def test_a_transfer_within_it_is_not_refused(self) -> None:
        self.plant({"atlas": "physics", "chem": "org"})
        self.hours.set_budget(ADMIN, {"gpu": 2}, "physics")
        self.quotas.reserve(self.cms, {"gpu": 2}, consumer="vm")
        self.clock.now += datetime.timedelta(hours=1)
        self.quotas.transfer(ADMIN, "atlas", "cms", consumer="vm")
        self.hours.set_budget(ADMIN, {"gpu": 1}, "chem")
        self.assertRaises(exceptions.BudgetExceeded, self.engine.transfer, ADMIN, "chem", "atlas", consumer="vm")
        self.assert_invariants()


class TestPeriods(BudgetTestCase):
    def test_what_is_held_over_the_end_counts_in_both(self) -> None:
        self.hours.set_budget(ADMIN, {"gpu": 100}, "physics")
        self.clock.now = NEXT_MONTH - datetime.timedelta(hours=3)
        self.spend(5, 2)
        self.assertEqual(4, self.use().spent)
        days = datetime.date(2026, 11, 1), datetime.date(2026, 12, 1)
        used = [(one.project_id, one.hours) for one in self.hours.report(ADMIN, *days, "physics")]
        self.assertEqual([("physics", 6.0), ("physics", 4.0)], used)

    def test_carry(self) -> None:
        """At most 3 hours of those that were left; and what was carried is not carried again."""
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics", carry={"gpu": 3})
        for now, left, hours, amount in (
            (BEGIN, 10, 2, 4),
            (NEXT_MONTH, 12, 1, 4),
            (datetime.datetime(2027, 1, 1), 13, 0, 1),
            (datetime.datetime(2027, 2, 1), 13, 2, 6),
            (datetime.datetime(2027, 3, 1), 10, 0, 1),
        ):
            self.clock.now = now
            self.assertEqual(left, self.use().left)
            self.spend(hours, amount)

    def test_corrections_count_in_what_is_carried(self) -> None:
        """And they end with the budget."""
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics", carry={"gpu": 5})
        self.spend(1, 8)
        self.hours.adjust(ADMIN, {"gpu": -1}, "physics")
        self.clock.now = NEXT_MONTH
        self.assertEqual(13, self.use().left)
        self.hours.adjust(ADMIN, {"gpu": 6}, "physics")
        self.hours.delete_budget(ADMIN, "physics")
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics")
        self.assertEqual(10, self.use().left)

    def test_a_day_ahead(self) -> None:
        conf = fixtures.configuration(budgets__hours_ahead=24)
        self.settings = {"hours_ahead": BudgetEnforcer.selection_of(conf)}
        self.hours.set_budget(ADMIN, {"gpu": 50}, "physics")
        self.engine = self.make_engine()
        self.assert_fits(2)
        error = self.assertRaises(exceptions.BudgetExceeded, self.engine.reserve, ADMIN, {"gpu": 3}, project_id="cms")
        self.assertIn("3 more need 72.0 hours for the next 24 hours", str(error))

    def test_a_report_of_the_present_month(self) -> None:
        """By the clock of the database."""
        self.quotas.reserve(self.cms, {"gpu": 2}, consumer="vm")
        self.clock.now += datetime.timedelta(hours=1)
        self.assertEqual([2.0], [row.hours for row in self.hours.report(ADMIN, project_id="cms")])

    def test_adjust(self) -> None:
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics")
        self.spend(3, 3)
        self.assert_fits(1)
        (record,) = self.hours.adjust(ADMIN, {"gpu": -4}, "physics", reason="node failed")
        self.assertEqual((5, 5), (self.use().spent, record.use and record.use.spent))
        self.assert_fits(5)
        self.assertEqual(9, self.hours.report(ADMIN, BEGIN, BEGIN, "physics")[0].hours)
        self.clock.now = NEXT_MONTH
        self.assertEqual(0, self.use().spent)
        last = self.engine.limits.history(ADMIN, "physics", subject="budget")[0]
        self.assertEqual("node failed", last.reason)

    def test_it_ends_with_its_project(self) -> None:
        source = DatabaseLimitDriver(Flat(), InitialLimits())
        limits = fixtures.open_engine(self, self.url, source).limits
        limits.add_project(ADMIN, "atlas", "physics")
        self.hours.set_budget(ADMIN, {"gpu": 10, "fpga": 3}, "atlas")
        self.hours.adjust(ADMIN, {"gpu": 1}, "atlas")
        limits.remove_project(ADMIN, "atlas")
        self.assertEqual([], self.hours.show_budget(ADMIN, "atlas"))
        ended = [(change.action, change.resource, change.before, change.after) for change in limits.history(ADMIN)[:3]]
        every_month = {"every": "month", "from": "2026-11-01", "until": None, "carry": 0, "enforce": "refuse"}
        self.assertEqual(
            [
                ("remove project", None, "physics", None),
                ("delete budget", "gpu", {"hours": 10, **every_month}, None),
                ("delete budget", "fpga", {"hours": 3, **every_month}, None),
            ],
            ended,
        )

    def test_a_single_period(self) -> None:
        span = {"start": datetime.date(2026, 12, 1), "until": datetime.date(2027, 2, 1)}
        self.hours.set_budget(ADMIN, {"gpu": 5}, "physics", **span)
        self.spend(1, 9)
        self.clock.now = NEXT_MONTH
        self.spend(1, 5)
        self.assert_fits(0)
        self.clock.now = datetime.datetime(2027, 1, 31)
        self.assert_fits(0)
        self.clock.now = datetime.datetime(2027, 2, 1)
        self.spend(1, 9)

    def test_another_start_of_a_single_period(self) -> None:
        """What was used since then counts."""
        self.spend(1, 5)
        until = datetime.date(2027, 2, 1)
        for start, spent in ((datetime.date(2026, 12, 1), None), (datetime.date(2026, 11, 1), 5)):
            self.hours.set_budget(ADMIN, {"gpu": 5}, "physics", start=start, until=until)
            (record,) = self.hours.show_budget(ADMIN, "physics")
            self.assertEqual(spent, record.use and record.use.spent)
        self.assert_fits(0)

    def test_a_quarter_of_a_path_without_a_row(self) -> None:
        """The budget is older than the first reserve."""
        self.hours.set_budget(ADMIN, {"gpu": 8}, "physics", every="quarter")
        self.clock.now = NEXT_MONTH
        self.assert_fits(8)
        self.spend(1, 8)
        self.clock.now = datetime.datetime(2026, 12, 31)
        self.assert_fits(0)
        self.clock.now = datetime.datetime(2027, 1, 1)
        self.assert_fits(8)


class TestRules(BudgetTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_bad_input(self) -> None:
        day = datetime.date(2026, 12, 2)
        for call, named in (
            (lambda: self.hours.set_budget(ADMIN, {}, "p"), "at least one"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": -1}, "p"), "-1"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1.5}, "p"), "1.5"),  # type: ignore[dict-item]
            (lambda: self.hours.set_budget(ADMIN, {"typo": 1}, "p"), "typo"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", every="week"), "week"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", start=day, until=day), "2026-12-02"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", every="year", start=day, until=day), "no year"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", carry={"fpga": 1}), "fpga"),
            (lambda: self.hours.adjust(ADMIN, {"gpu": 1}, "p"), "'p'"),
            (lambda: self.hours.adjust(ADMIN, {"\ud800": 1}, "p"), "'\\ud800'"),
            (lambda: self.hours.delete_budget(ADMIN, "p", ["gpu"]), "gpu"),
            (lambda: self.hours.delete_budget(ADMIN, "p", ["g\0"]), "control characters"),
            (lambda: self.hours.list_budgets(ADMIN, above=-1), "-1"),
            (lambda: self.hours.report(ADMIN, day, datetime.date(2026, 1, 1)), "2026-12 and 2026-01"),
            (lambda: self.hours.report(ADMIN, "2026-12", day), "not by 2026-12"),  # type: ignore[arg-type]
            (lambda: self.hours.report(ADMIN, day, day, after=("a\0", "gpu", day)), "control characters"),
            (lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", every=["month"]), "month"),  # type: ignore[arg-type]
            (
                lambda: self.hours.set_budget(ADMIN, {"gpu": 1}, "p", start="2026-01-01", until="2027-01-01"),  # type: ignore[arg-type]
                "not by 2026-01-01",
            ),
        ):
            error = self.assertRaises(exceptions.QuotaError, call)
            self.assertIn(named, str(error))
        self.assertEqual([], self.hours.list_budgets(ADMIN))


class TestList(BudgetTestCase):
    """Sixteen budgets, whose names the database sorts byte by byte, in pages of six."""

    NAMES = ("A", "Z", "a", "b c", "b-c", "cms", "\u00e9", "\U0001d11e")
    ROWS = 6

    def setUp(self) -> None:
        super().setUp()
        for number, name in enumerate(self.NAMES):
            self.hours.set_budget(ADMIN, {"gpu": 10, "fpga": 10}, name)
            self.hours.adjust(ADMIN, {"gpu": (0, 5, 9, 10)[number % 4]}, name)
        self.whole = list(itertools.product(self.NAMES, ("fpga", "gpu")))
        self.useFixture(fx.MonkeyPatch("cyborg_quota.hours.api._ROWS_A_PAGE", self.ROWS))

    def keys(self, records: list[BudgetRecord]) -> list[tuple[str, str]]:
        return [one.budget.key[:2] for one in records]

    def assert_bounded(self, statements: clouds.Captured, pages: int) -> None:
        """So many queries have read budgets, and none of them more than a page."""
        reads = [one for one in clouds.queries(statements) if "FROM budgets" in one[0]]
        self.assertEqual(pages, len(reads))
        with self.sql.connect() as connection:
            for read in reads:
                self.assertLessEqual(clouds.rows_returned(connection, *read), self.ROWS)

    def test_its_pages_are_the_whole(self) -> None:
        spent = {(name, "gpu"): (0, 50, 90, 100)[number % 4] for number, name in enumerate(self.NAMES)}
        for above in (None, 0, 80, 100):
            expected = [key for key in self.whole if spent.get(key, 0) >= (above or 0)]
            with clouds.captured() as statements:
                self.assertEqual(expected, self.keys(self.hours.list_budgets(ADMIN, above=above)))
            self.assert_bounded(statements, pages=3)
            found: list[tuple[str, str]] = []
            while page := self.hours.list_budgets(ADMIN, above=above, limit=2, after=found[-1] if found else None):
                found += self.keys(page)
            self.assertEqual(expected, found)

    def test_a_page_of_one_resource_or_after_a_project(self) -> None:
        for options, expected in (
            ({"limit": 3}, self.whole[:3]),
            ({"limit": 0}, []),
            ({"resource": "gpu"}, self.whole[1::2]),
            ({"resource": "gpu", "after": ("a", "gpu"), "limit": 2}, [("b c", "gpu"), ("b-c", "gpu")]),
            ({"after": ("cms", None)}, self.whole[12:]),
            ({"after": ("gone", "gpu")}, self.whole[12:]),
        ):
            self.assertEqual(expected, self.keys(self.hours.list_budgets(ADMIN, **options)), options)

    def test_the_notices(self) -> None:
        with clouds.captured() as statements:
            found = [(one.owner, one.now) for one in self.hours.notices(ADMIN)]
        self.assertEqual([("a", 80), ("b c", 100), ("\u00e9", 80), ("\U0001d11e", 100)], found)
        self.assert_bounded(statements, pages=3)

    def test_the_report_of_a_tree(self) -> None:
        """No statement names more projects than a page has."""
        names = [*(f"B{number}" for number in range(8)), *(f"b{number}" for number in range(8))]
        self.plant({"root": None, **dict.fromkeys(names, "root")})
        for name in names:
            self.engine.reserve(base.Context(name), {"gpu": 1, "fpga": 1})
        self.clock.now += datetime.timedelta(hours=2)
        expected = sorted(itertools.product(["root", *names], ("fpga", "gpu")))
        with clouds.captured() as statements:
            rows = self.hours.report(ADMIN, BEGIN, BEGIN, "root", tree=True)
        self.assertEqual(expected, sorted(row[:2] for row in rows))
        reads = [values for text, values in clouds.queries(statements) if "FROM quota_usages" in text]
        self.assertLess(max(map(len, reads)), 3 * self.ROWS)
        with clouds.captured() as of_a_page:
            self.hours.report(ADMIN, BEGIN, BEGIN, "root", tree=True, limit=1)
        self.assertEqual(5, len([text for text, _ in clouds.queries(of_a_page) if "FROM quota_usages" in text]))
        self.assertEqual(
            [], [text for text, values in clouds.queries(of_a_page) if "b7" in values], "what follows is not read"
        )
        self.assertEqual([row[:2] for row in rows], [row[:2] for row in self.in_pages("root", tree=True)])
        marker = ("b7", "gpu", BEGIN.date())
        self.assertRaises(
            exceptions.MarkerNotFound, self.hours.report, ADMIN, BEGIN, BEGIN, "B0", tree=True, after=marker
        )

    def in_pages(self, *projects: str, **tree: bool) -> list[MonthlyUsage]:
        """The report, read in pages of three rows."""
        found: list[MonthlyUsage] = []
        while page := self.hours.report(
            ADMIN, BEGIN, NEXT_MONTH, *projects, **tree, limit=3, after=found[-1][:3] if found else None
        ):
            found += page
        return found

    def test_the_report_where_names_are_not_sorted_by_bytes(self) -> None:
        if self.backend != "postgresql":
            self.skipTest("the other databases compare names by bytes")
        change = "ALTER TABLE quota_usages ALTER project_id TYPE varchar(255) COLLATE"
        self.execute(f'{change} "en-x-icu"')
        self.addCleanup(self.execute, f'{change} "default"')
        names = [f"{letter}{number}" for letter in "AbCd" for number in range(4)]
        self.plant({"root": None, **dict.fromkeys(names, "root")})
        for name in names:
            self.engine.reserve(base.Context(name), {"gpu": 1})
        self.clock.now = NEXT_MONTH + datetime.timedelta(hours=2)
        in_order = [(name, month.date()) for name in [*names, "root"] for month in (BEGIN.replace(day=1), NEXT_MONTH)]
        self.assertEqual(in_order, [(row.project_id, row.month) for row in self.in_pages()])
        for rows in (self.hours.report(ADMIN, BEGIN, NEXT_MONTH, "root", tree=True), self.in_pages("root", tree=True)):
            self.assertEqual(sorted(in_order), sorted((row.project_id, row.month) for row in rows), "each one once")


class TestRaces(BudgetTestCase):
    """B2: 8 processes charge, under a budget of 10 hours, of which 4 are spent, and which is set again meanwhile."""

    settings = workers.PATIENT

    def race(self) -> list[int]:
        """What is held at several moments, and in the end."""
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics")
        self.spend(2, 2)
        _, (seen, _) = workers.race_beside([self._charge] * 8, self._held, self._set_again)
        return [*seen, self._held()]

    def _charge(self) -> None:
        """Reserve six times, resize what is granted, and release every second one."""
        with contextlib.closing(self.make_engine()) as engine:
            for turn in range(6):
                with contextlib.suppress(exceptions.BudgetExceeded):
                    uuids = engine.reserve(self.cms, {"gpu": 1})
                    with contextlib.suppress(exceptions.BudgetExceeded):
                        engine.resize(self.cms, {"gpu": 2}, reservation=uuids[0])
                    if turn % 2:
                        engine.release(self.cms, uuids)

    def _held(self) -> int:
        return int(self.fetch("SELECT MAX(subtree) FROM quota_usages")[0][0])

    def _set_again(self) -> None:
        self.hours.set_budget(ADMIN, {"gpu": 10}, "physics", carry={"gpu": random.randrange(9)})

    def test_a_race(self) -> None:
        held = self.race()
        self.assertTrue(0 < held[-1] <= max(held) <= 6, held)
        self.assert_invariants()

    def test_the_naive_control(self) -> None:
        """Without the condition, each process decides by what it has read before."""
        values = usages.values

        def naive(posting: usages.Posting) -> tuple[int, ...]:
            posting.bound = None
            return values(posting)

        with mock.patch.object(usages, "values", naive):
            self.assertGreater(self.race()[-1], 6)
