# SPDX-License-Identifier: Apache-2.0
"""Overrides: limits that apply for a span of time; their rules, on every database."""

from __future__ import annotations

import datetime
from typing import Any
from unittest import mock

from cyborg_quota import exceptions
from cyborg_quota.db import overrides as tables
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.config import ConfigLimitDriver, NoopLimitDriver
from cyborg_quota.limits.sources.keystone import KeystoneLimitDriver
from cyborg_quota.types import LimitOverride, LimitRecord
from tests import base, fixtures, held_clock, history_replay, hooks
from tests.functional import test_limits

HOUR = datetime.timedelta(hours=1)
ZERO = datetime.datetime(2026, 5, 4, 12)


class OverridesTestCase(test_limits.LimitsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = self.useFixture(held_clock.HeldClock(self.url, ZERO))

    def time(self, hours: float) -> datetime.datetime:
        """A time in hours from the start of the test."""
        return ZERO + hours * HOUR

    def override(self, project_id: str, limit: int, start: float, end: float, resource: str = "gpu") -> str:
        """Make an override; returns its id."""
        (made,) = self.admin.set_overrides(
            base.ADMIN, {resource: limit}, project_id, self.time(end), start=self.time(start), reason="workshop"
        )
        self.assert_invariants()
        return made.id

    def refused(self, *arguments: Any) -> list[str]:
        before = self.rows()
        error = self.assertRaises(exceptions.LimitRefused, self.override, *arguments)
        self.assertEqual(before, self.rows())
        return error.problems

    def rows(self) -> Any:
        return self.fetch("SELECT generation, project_id, resource, hard_limit FROM limit_overrides ORDER BY 1, 2, 3")

    def let_hours_pass(self, hours: float) -> None:
        self.clock.now += hours * HOUR

    def room(self, project_id: str = "p") -> int:
        """How many a reserve would be granted: by check, get_usages, headroom and a reserve itself."""
        usage = self.engine.get_usages(base.ADMIN, project_id)["gpu"]
        self.assertEqual(max(usage.available, 0), self.engine.headroom(base.ADMIN, project_id)["gpu"].fits)
        self.assertEqual([], self.blockers(project_id, usage.available) if usage.available > 0 else [])
        self.assertEqual([project_id], self.blockers(project_id, max(usage.available, 0) + 1))
        return usage.available


class TestNumber(OverridesTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_an_equal_one_is_returned(self) -> None:
        """Without a start, it may have begun earlier. One in whose place another applies is made again."""
        self.set("p", 5)
        first = self.override("p", 8, -1, 3)
        self.assertEqual(first, self.override("p", 8, -1, 3))
        until = self.time(3)
        [again] = self.admin.set_overrides(base.ADMIN, {"gpu": 8}, "p", until)
        self.assertEqual((first, self.time(-1)), (again.id, again.starts_at))
        both = self.admin.set_overrides(base.ADMIN, {"fpga": 1, "gpu": 8}, "p", until, start=self.time(-1))
        self.assertEqual(first, both[1].id)
        others = [self.override("p", *span) for span in ((8, 0, 3), (9, -1, 3), (8, -1, 4), (8, -1, 3))]
        self.assertEqual(4, len({first, both[0].id, *others}) - 2)
        self.assertEqual([], history_replay.differences(self.engine))

    def test_the_maximum(self) -> None:
        """Of a limit; the ended ones do not count. An import is refused too."""
        for number in range(limit_changes.MAX_OVERRIDES):
            self.override("p", 6, number + 1, number + 2)
        before = self.rows()
        error = self.assertRaises(exceptions.TooManyOverrides, self.override, "p", 6, 0, 1)
        self.assertEqual(("p", "gpu", 100), (error.project_id, error.resource, error.maximum))
        entry = {"resource": "gpu", "limit": 7, "until": (self.time(500)).isoformat()}
        document = {"projects": [{"id": "p", "overrides": [entry]}]}
        self.assertRaises(exceptions.TooManyOverrides, self.admin.import_limits, base.ADMIN, document)
        self.assertEqual(before, self.rows())
        self.override("p", 6, 50, 51)  # (an equal one)
        self.override("p", 6, 0, 1, "fpga")
        self.override("q", 6, 0, 1)
        self.let_hours_pass(2.5)
        self.override("p", 6, 200, 201)


class TestSpan(OverridesTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_before_during_and_after(self) -> None:
        self.set("p", 5)
        self.override("p", 8, 1, 3)
        self.override("p", 0, 5, 6)
        self.assertEqual(5, self.room())
        self.let_hours_pass(2)
        self.assertEqual(8, self.room())
        self.hold("p", 8)
        self.let_hours_pass(2)  # between the two
        self.assertEqual([-3], [row.available for row in self.admin.list_over(base.ADMIN)])
        self.assertEqual(["p"], self.blockers("p"))
        self.let_hours_pass(1)
        self.assertEqual(0, self.admin.list_over(base.ADMIN)[0].limit)
        self.let_hours_pass(1)
        found = (
            self.admin.list_over(base.ADMIN)[0].limit,
            self.admin.list_overrides(base.ADMIN)[0],
            self.engine.get_usages(base.ADMIN, "p")["gpu"].used,
            history_replay.differences(self.engine),
        )
        self.assertEqual((5, [], 8, []), found)

    def test_the_notices_follow_the_override(self) -> None:
        self.set("p", 100)
        self.hold("p", 50)
        self.override("p", 60, 1, 3)
        self.assertEqual([], self.quotas.notices(base.ADMIN))
        self.let_hours_pass(2)
        self.assertEqual([(60, 80)], [(one.limit, one.now) for one in self.quotas.notices(base.ADMIN)])
        self.let_hours_pass(1.5)
        self.assertEqual([(100, 0)], [(one.limit, one.now) for one in self.quotas.notices(base.ADMIN)])

    def test_every_view_shows_the_limit_that_applies(self) -> None:
        self.make_tree({"p": None, "q": "p"})
        self.set("p", 5)
        self.assertEqual(["q"], self.blockers("q"), "a child without a limit may hold nothing")
        self.override("p", 8, -1, 1)
        self.override("q", 3, 0, 1)
        self.assertEqual(3, self.room("q"))
        self.assertEqual([8, 3], [row.limit for row in self.admin.tree(base.ADMIN) if row.resource == "gpu"])
        self.assertEqual([8], [row.limit for row in self.admin.path(base.ADMIN, "p")])
        (record,) = self.admin.list_limits(base.ADMIN, "p")
        self.assertEqual((8, True), (record.limit, record.is_own))
        self.assertEqual(self.time(1), record.override and record.override.until)
        (record,) = [one for one in self.admin.list_limits(base.ADMIN, "q") if one.resource == "gpu"]
        self.assertEqual((3, False, 3), (record.limit, record.is_own, record.override and record.override.limit))
        self.assertEqual([("p", 5)], [(one.project_id, one.limit) for one in self.admin.list_limits(base.ADMIN)])
        self.engine.reserve(base.Context("p"), {"gpu": 1})
        self.assertEqual([8], [record.usage.limit for record in self.engine.list_usages(base.ADMIN, "p")])
        self.let_hours_pass(2)
        self.assertEqual([5], [row.limit for row in self.admin.path(base.ADMIN, "p")])
        self.assertEqual([LimitRecord("p", "gpu", 5)], self.admin.list_limits(base.ADMIN, "p"))


class TestOverlaps(OverridesTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_the_one_made_last_applies(self) -> None:
        """Whatever their spans and whatever the times at which the rows were written."""
        self.set("p", 1)
        first, second, third = (2, -3, 3), (3, -2, 2), (4, -1, 4)
        orders = [(first, second, third), (second, third, first), (third, first, second), (third, second, first)]
        for order in orders:
            ids = [self.override("p", *one) for one in order]
            update = "UPDATE limit_overrides SET created_at = '2001-01-01 00:00:00' WHERE hard_limit = :m"
            self.execute(update, m=order[2][0])
            self.assertEqual(order[2][0], self.room())
            self.admin.cancel_overrides(base.ADMIN, ids[2:])
            self.assertEqual(order[1][0], self.room())
            self.admin.cancel_overrides(base.ADMIN, ids[:2])
            self.assertEqual(1, self.room())
        self.assertEqual([], history_replay.differences(self.engine))

    def test_a_later_limit_does_not_end_an_override(self) -> None:
        """Nor does one of another resource; -1 and 0 are limits."""
        self.set("p", 1)
        self.override("p", 9, 0, 2, "fpga")
        self.assertEqual(1, self.room())
        self.override("p", -1, 0, 2)
        self.assertIsNone(self.engine.get_usages(base.ADMIN, "p")["gpu"].available)
        self.override("p", 0, 0, 2)
        self.assertEqual(0, self.room())
        self.override("p", 7, 0, 2)
        self.set("p", 3)
        self.assertEqual(7, self.room())
        self.let_hours_pass(3)
        self.assertEqual(3, self.room())


class TestCalls(OverridesTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_bad_input(self) -> None:
        def set_overrides(**changes: Any) -> None:
            given = {"limits": {"gpu": 1}, "project_id": "p", "until": self.time(1), **changes}
            self.admin.set_overrides(base.ADMIN, **given)

        for changes in (
            {"limits": {}},
            {"limits": {"gpu": -2}},
            {"limits": {"gpu": None}},
            {"limits": {"vpu": 1}},
            {"limits": ["gpu"]},
            {"project_id": ""},
            {"project_id": None},
            {"until": None},
            {"until": "tomorrow"},
            {"until": self.time(-1)},
            {"until": datetime.datetime.max},
            {"start": self.time(1)},
            {"start": self.time(2)},
            {"start": 7},
            {"reason": ""},
        ):
            self.assertRaises(exceptions.InvalidRequest, set_overrides, **changes)
        self.assertEqual([], self.rows())

    def test_only_the_ids_of_overrides_can_be_cancelled(self) -> None:
        known = self.override("p", 1, 0, 1)
        ended = self.override("p", 1, 0, 0.5)
        self.let_hours_pass(0.75)
        for unknown in ("0-0", "x", "", "01-0", f"{2**31}-0", f"1-{10**30}", ended):
            error = self.assertRaises(
                exceptions.OverrideNotFound, self.admin.cancel_overrides, base.ADMIN, [known, unknown]
            )
            self.assertEqual(unknown, error.override_id)
        for wrong in (None, 5, known, [5], "1-0"):
            self.assertRaises(exceptions.InvalidRequest, self.admin.cancel_overrides, base.ADMIN, wrong)
        self.assertEqual([known], [one.id for one in self.admin.list_overrides(base.ADMIN, "p")[0]])
        (cancelled,) = self.admin.cancel_overrides(base.ADMIN, iter([known, known]), reason="over")
        self.assertEqual(known, cancelled.id)
        self.assertRaises(exceptions.OverrideNotFound, self.admin.cancel_overrides, base.ADMIN, [known])
        entries = self.admin.history(base.ADMIN)
        self.assertEqual(["cancel override", "set override", "set override"], [one.action for one in entries])
        entry = entries[0]
        self.assertEqual((known, "over", 1, None), (entry.override_id, entry.reason, entry.before, entry.after))
        self.assertEqual([], history_replay.differences(self.engine))

    def test_several_resources_and_a_dry_run(self) -> None:
        """It raises or returns the same, and writes nothing."""
        self.import_tree({"top": None, "child": "top"}, {"top": {"gpu": 10, "fpga": 5}}, gpu=0, fpga=0)

        def make(limit: int, *, dry_run: bool) -> Any:
            limits, until = {"gpu": limit, "fpga": 1}, self.time(1)
            return self.admin.set_overrides(base.ADMIN, limits, "child", until, dry_run=dry_run)

        before = self.rows(), self.admin.history(base.ADMIN)
        refusals = [self.assertRaises(exceptions.LimitRefused, make, 11, dry_run=dry) for dry in (True, False)]
        self.assertEqual(str(refusals[1]), str(refusals[0]))
        self.assertEqual([("fpga", 1), ("gpu", 11)], [(one.resource, one.after) for one in refusals[0].changes])
        expected = make(10, dry_run=True)
        self.assertEqual(before, (self.rows(), self.admin.history(base.ADMIN)))
        made = make(10, dry_run=False)
        spans = [[(one.resource, one.limit, one.until) for one in some] for some in (made, expected)]
        self.assertEqual([[("fpga", 1, self.time(1)), ("gpu", 10, self.time(1))]] * 2, spans)
        listed, now = self.admin.list_overrides(base.ADMIN)
        self.assertEqual((made, [True] * 2), (listed, [one.starts_at <= now for one in made]))
        self.admin.cancel_overrides(base.ADMIN, [one.id for one in made])
        self.assertEqual(([], None), self.admin.list_overrides(base.ADMIN))

    def test_a_removed_project(self) -> None:
        self.make_tree({"p": None})
        self.override("p", 1, 0, 1)
        self.admin.remove_project(base.ADMIN, "p")
        self.assertEqual([], self.rows())
        actions = [one.action for one in self.admin.history(base.ADMIN, "p")]
        self.assertEqual(["remove project", "cancel override", "set override", "add project"], actions)
        self.assertEqual([], history_replay.differences(self.engine))

    def test_ended_overrides_are_deleted_after_a_day(self) -> None:
        for number, kept in enumerate(([1], [1, 2], [2, 3])):
            self.override("p", number + 1, 20 * number, 20 * number + 1)
            self.assertEqual(kept, [row.hard_limit for row in self.rows()])
            self.let_hours_pass(20)
        self.assertEqual([], history_replay.differences(self.engine))


class TestPurge(OverridesTestCase):
    def test_a_purge_keeps_the_overrides_that_have_not_ended(self) -> None:
        """One that has ended is not imported."""
        for hour in range(3):
            self.override("p", 4 + hour, hour, hour + 1)
        live = self.override("p", 8, 0, 60)
        for kept in ({4, 5, 6, 8}, {8}):
            self.set("q", len(self.admin.history(base.ADMIN)))
            self.set("q", 1000)
            self.assertGreater(self.admin.purge_history(base.ADMIN, 0), 0)  # all but a new entry
            self.assertEqual([], history_replay.differences(self.engine, is_purged=True))
            self.assertEqual(kept, {one.after for one in self.admin.history(base.ADMIN) if one.override_id is not None})
            self.let_hours_pass(20)
        self.assertEqual(8, self.room())
        self.admin.cancel_overrides(base.ADMIN, [live])
        self.assertEqual([], history_replay.differences(self.engine, is_purged=True))
        entry = {"resource": "gpu", "limit": 1, "from": "2001-01-01T00:00Z", "until": "2001-01-02T00:00+02:00"}
        self.admin.import_limits(base.ADMIN, {"projects": [{"id": "r", "overrides": [entry]}]})
        self.assertNotIn("r", {row.project_id for row in self.rows()})


class TestCost(OverridesTestCase):
    policy = Flat

    def test_no_statement_is_added(self) -> None:
        """With a thousand live overrides, one of them of the project p0, a reserve sends the same statements."""
        self.set(None, 10)
        made = [
            LimitOverride((1000, number), f"p{number}", "gpu", 11, self.time(-1), self.time(1))
            for number in range(1000)
        ]
        self.database.write(lambda connection: tables.insert(connection, made))
        self.assertEqual((11, 10), (self.room("p0"), self.room("other")))
        without, with_one = self.statements("other"), self.statements("p0")
        self.assertEqual(len(without), len(with_one))
        self.assertNotIn("limit_overrides", " ".join(with_one))

    def statements(self, project_id: str) -> list[str]:
        """The fewest statements of a reserve and its rollback. (At first, some prepare others; some see who waits.)"""
        context, found = base.Context(project_id), []
        for _ in range(12):
            with hooks.recorded_statements(self.engine) as sent:
                self.engine.rollback(context, self.engine.reserve(context, {"gpu": 2}))
            found.append(sent)
        return min(found, key=len)


class TestOtherDrivers(OverridesTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_they_are_refused_with_a_clear_error(self) -> None:
        """The error says where the limits of the driver are set. No driver is asked for limits."""
        of_keystone = "in Keystone (openstack registered limit set, openstack limit set)"
        for limits, place in (
            (ConfigLimitDriver({"gpu": 1}), "in the configuration, [limits] limits"),
            (KeystoneLimitDriver(mock.Mock(), mock.Mock()), of_keystone),
            (NoopLimitDriver(), "[limits] driver"),
        ):
            admin = fixtures.open_engine(self, self.url, limits).limits
            for call, arguments in (
                (admin.set_overrides, ({"gpu": 1}, "p", self.time(1))),
                (admin.list_overrides, ()),
                (admin.cancel_overrides, (["1-0"],)),
            ):
                error = str(self.assertRaises(exceptions.LimitsReadOnly, call, base.ADMIN, *arguments))  # type: ignore[arg-type]
                self.assertIn("[limits] driver", error)
                self.assertIn(place, error)
        self.assertEqual([], self.rows())
