# SPDX-License-Identifier: Apache-2.0
"""The meter: C + S * t of a usage row is what was used there, exactly, whatever happens; on every database."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import calendar, charges, clock, path_state, usages
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.types import MAX_AMOUNT, MAX_COUNTED, TOTAL, Headroom, ResourceKey
from tests import base, fixtures, held_clock, hooks
from tests.base import ADMIN
from tests.functional import test_limits
from tests.model.meters import FloatHours, MeteredClaim, Meters

BEGIN: Final = datetime.datetime(2026, 1, 30, 12)
BEGIN_SECOND: Final = (BEGIN - calendar.date_of(0)) // datetime.timedelta(seconds=1)
HOUR: Final = 3600
DAY: Final = 86400
SEEDS: Final = {"sqlite": 3 * fixtures.MORE, "mariadb": fixtures.MORE, "postgresql": fixtures.MORE}
STEPS: Final = 60
NAMES: Final = ["p0", "p1", "p2", "p3", "p4", "p5"]
PODS: Final = {"n1": "pod1", "n2": "pod2"}


class MeterTestCase(test_limits.LimitsTestCase):
    """A ledger without limits whose database has the time ``clock.now``, and a model of its meters."""

    policy = Flat
    initial = InitialLimits(child=None, root=None)

    def setUp(self) -> None:
        super().setUp()
        self.clock = self.useFixture(held_clock.HeldClock(self.url, BEGIN))
        self.set(None, -1)
        self.set(None, -1, "fpga")
        self.meters = Meters()

    def assert_metered(self) -> None:
        self.assert_invariants()
        with self.sql.connect() as connection:
            self.assertEqual([], self.meters.find_violations(connection, self.clock.second))


@dataclasses.dataclass
class Consumer:
    """What a consumer holds, one claim a resource. ``expires``: a second; None: it is committed."""

    name: str
    claims: list[MeteredClaim]
    expires: int | None

    @property
    def project(self) -> str:
        return self.claims[0].project


class TestHistories(MeterTestCase):
    scenarios = [
        (f"{backend}, {seed}", {"backend": backend, "seed": seed})
        for backend, seeds in SEEDS.items()
        for seed in range(seeds)
    ]
    seed: int

    def test_every_meter_is_the_sum_of_its_intervals(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.consumers: list[Consumer] = []
        self.other = fixtures.Checked(self.make_limited(), self.url)
        for provider, pod in PODS.items():
            self.engine.pods.add(ADMIN, pod)
            self.add_provider(provider, pod=pod, gpu=10**9, fpga=10**9)
        calls: list[Callable[[], object]] = [
            self.reserve, self.reserve, self.reserve, self.settle, self.settle, self.settle, self.expire,
            self.resize, self.resize, self.transfer, self.transfer, self.move, self.move, self.remove, self.add,
            self.purge, self.switch_total, self.set_minimum,
        ]  # fmt: skip
        second, steps = self.clock.second, []
        for number in range(STEPS):
            second += self.pause(second)
            self.clock.second = second + rng.choice((0, 0, 0, -4, 3))
            self.engine_of_step = rng.choice([self.quotas, self.other])
            call = rng.choice(calls)
            steps.append(f"{number} {self.clock.now} {call.__name__}")
            call()
            with self.sql.connect() as connection:
                violations = self.meters.find_violations(connection, self.clock.second)
            self.assertEqual([], violations, "\n".join(steps[-12:]))
        self.check_report()
        self.assertNotEqual([], FloatHours(self.meters).find_violations(), "the known-bad way is as exact")

    def pause(self, second: int) -> int:
        """Seconds until the next call: none, some, hours; until about the end of the month; months."""
        to_end = calendar.end_of_month(second) - second
        return self.rng.choice((0, 1, 2, self.rng.randrange(HOUR), self.rng.randrange(9 * DAY), to_end - 2, 100 * DAY))

    def at(self, *claims: MeteredClaim) -> int:
        """The second of a call that changes these claims."""
        return max([self.clock.second, *(claim.start for claim in claims)])

    def any_consumer(self, is_in_flight: bool | None = None) -> Consumer | None:
        """One that is not overdue."""
        found = [
            one
            for one in self.consumers
            if (one.expires is None or one.expires > self.clock.second)
            and is_in_flight in (None, one.expires is not None)
        ]
        return self.rng.choice(found) if found else None

    def reserve(self) -> None:
        project, name = self.rng.choice(NAMES), f"c{self.clock.second}-{len(self.consumers)}-{self.rng.random()}"
        provider = self.rng.choice([None, None, *PODS])
        deltas = {one: self.rng.randint(1, 9) for one in self.rng.choice((["gpu"], ["gpu"], ["gpu", "fpga"]))}
        life = self.rng.choice((60, HOUR, 40 * DAY))
        self.engine_of_step.reserve(base.Context(project), deltas, life, consumer=name, provider=provider)
        self.meters.parents.setdefault(project, None)
        pod = PODS.get(provider or "", "")
        claims = [MeteredClaim(project, resource, pod, amount) for resource, amount in deltas.items()]
        for claim in claims:
            self.meters.begin(claim, self.clock.second)
        self.consumers.append(Consumer(name, claims, self.clock.second + life))

    def settle(self) -> None:
        call = self.rng.choice(("commit", "rollback", "release"))
        if one := self.any_consumer(is_in_flight=None if call == "release" else True):
            getattr(self.engine_of_step, call)(base.Context(one.project), consumer=one.name)
            if call == "commit":
                one.expires = None
            else:
                self.end([one])

    def expire(self) -> None:
        overdue = [one for one in self.consumers if one.expires is not None and one.expires <= self.clock.second]
        self.assertEqual(sum(len(one.claims) for one in overdue), self.engine_of_step.expire(ADMIN))
        self.end(overdue)

    def end(self, consumers: list[Consumer]) -> None:
        claims = [claim for one in consumers for claim in one.claims]
        at = self.at(*claims)
        for claim in claims:
            self.meters.end(claim, at)
        self.consumers = [one for one in self.consumers if one not in consumers]

    def resize(self) -> None:
        if one := self.any_consumer():
            claim = self.rng.choice(one.claims)
            amount = self.rng.choice([one for one in range(1, 10) if one != claim.amount])
            self.engine_of_step.resize(base.Context(one.project), {claim.resource: amount}, consumer=one.name)
            at = self.at(claim)
            self.meters.end(claim, at)
            claim.amount = amount
            self.meters.begin(claim, at)

    def transfer(self) -> None:
        if one := self.any_consumer():
            receiver = self.rng.choice([name for name in NAMES if name != one.project])
            self.engine_of_step.transfer(ADMIN, receiver, one.project, consumer=one.name)
            self.meters.parents.setdefault(receiver, None)
            at = self.at(*one.claims)
            for claim in one.claims:
                self.meters.end(claim, at)
                claim.project = receiver
                self.meters.begin(claim, at)

    def move(self) -> None:
        if not self.meters.parents:
            return
        project = self.rng.choice(sorted(self.meters.parents))
        outside = [name for name in self.meters.parents if project not in self.meters.path(name)]
        parent = self.rng.choice([None, *outside])
        self.admin.move_project(ADMIN, project, parent)
        self.meters.parents[project] = parent
        self.place()

    def place(self) -> None:
        for one in self.consumers:
            for claim in one.claims:
                self.meters.place(claim, self.clock.second)

    def remove(self) -> None:
        parents = self.meters.parents
        used = {one.project for one in self.consumers}.union(parents.values())
        if idle := sorted(set(parents) - used):
            project = self.rng.choice(idle)
            self.admin.remove_project(ADMIN, project)
            del parents[project]

    def add(self) -> None:
        if unknown := sorted(set(NAMES) - set(self.meters.parents)):
            project, parent = self.rng.choice(unknown), self.rng.choice([None, *self.meters.parents])
            self.admin.add_project(ADMIN, project, parent)
            self.meters.parents[project] = parent

    def purge(self) -> None:
        self.engine_of_step.purge(ADMIN, self.rng.choice((0, HOUR, 40 * DAY)))

    def switch_total(self) -> None:
        claims = [claim for one in self.consumers for claim in one.claims if claim.resource == "gpu"]
        if "gpu" in self.meters.totals:
            self.admin.unset_total_limits(ADMIN, ["gpu"])
            self.meters.drop_total("gpu", claims)
        else:
            self.admin.set_total_limits(ADMIN, {"gpu": 10**9})
            self.meters.count_total("gpu", claims)

    def set_minimum(self) -> None:
        if self.meters.parents:
            project = self.rng.choice(sorted(self.meters.parents))
            self.admin.set_minimums(ADMIN, {"gpu": self.rng.choice((0, 2, 5))}, project)

    def check_report(self) -> None:
        """The report has each month of each project that is over."""
        self.clock.second = self.meters.latest + 40 * DAY
        report = self.engine.hours.report(ADMIN, datetime.date(2026, 1, 1), self.clock.now.date())
        now = calendar.month_of(self.clock.second)
        expected = {
            (project, resource, month): used
            for project, resource, pod in self.meters.intervals
            if project != TOTAL and not pod
            for month in range(72, now)
            if (used := self.used_in(project, resource, month))
        }
        found = {(*one[:2], calendar.month_number(one[2])): one[3] for one in report}
        found = {key: used for key, used in found.items() if key[2] < now}
        self.assertEqual(set(), set(expected.items()) ^ set(found.items()))

    def used_in(self, project: str, resource: str, month: int) -> int:
        begin, end = (self.meters.used_before((project, resource, ""), one) for one in (month, month + 1))
        return end - begin


class MonthsTestCase(MeterTestCase):
    def hold(self, project_id: str, amount: int) -> MeteredClaim:
        """Commit a claim of a consumer that is named after the project."""
        self.quotas.reserve(base.Context(project_id), {"gpu": amount}, consumer=project_id)
        self.quotas.commit(base.Context(project_id), consumer=project_id)
        claim = MeteredClaim(project_id, "gpu", "", amount)
        self.meters.begin(claim, self.clock.second)
        return claim


class TestMonths(MonthsTestCase):
    def test_a_read_writes_nothing(self) -> None:
        """Nothing has to run at the end of a month."""
        self.hold("p1", 2)
        self.clock.now = datetime.datetime(2026, 5, 1)
        before = hooks.tables(self.sql)
        report = self.engine.hours.report(ADMIN, datetime.date(2026, 1, 1), datetime.date(2026, 5, 1))
        months = [(one.month.month, one.device_seconds) for one in report]
        self.assertEqual([(1, 2 * 36 * HOUR), (2, 2 * 28 * DAY), (3, 2 * 31 * DAY), (4, 2 * 30 * DAY)], months)
        self.engine.get_usages(ADMIN, "p1")
        self.assertEqual(before, hooks.tables(self.sql))

    def test_only_the_first_charge_of_a_month_closes_the_last_one(self) -> None:
        """It needs more statements; the next ones need as many as before."""
        self.plant({"top": None, "p1": "top"})
        self.hold("p1", 2)
        counts = []
        for second in (0, 1, DAY * 40, DAY * 40, DAY * 40 + 1):
            self.clock.now = BEGIN + datetime.timedelta(seconds=second)
            with hooks.recorded_statements(self.engine) as sent:
                self.engine.rollback(base.Context("p1"), self.engine.reserve(base.Context("p1"), {"gpu": 1}))
            counts.append(len(sent))
        usual = counts[1]
        self.assertEqual([usual, usual], counts[3:])
        self.assertGreater(counts[2], usual)
        if self.backend != "sqlite":
            self.assertEqual(2, usual)

    def test_an_end_is_not_before_its_begin(self) -> None:
        """The clock of another node is behind: neither a rollback nor a resize uses less than nothing."""
        calls: dict[str, Callable[[], object]] = {
            "rollback of this process": lambda: self.quotas.rollback(base.Context("p1"), consumer="c"),
            "rollback of another process": lambda: self.make_limited().rollback(base.Context("p1"), consumer="c"),
            "resize": lambda: self.quotas.resize(base.Context("p1"), {"gpu": 1}, consumer="c"),
            "transfer": lambda: self.quotas.transfer(ADMIN, "p2", "p1", consumer="c"),
        }
        for name, call in calls.items():
            with self.subTest(name):
                self.clock.now = BEGIN
                self.quotas.reserve(base.Context("p1"), {"gpu": 4}, consumer="c")
                self.clock.second -= 5
                call()
                self.assertEqual(0, self.used())
                for project in ("p1", "p2"):
                    self.quotas.release(base.Context(project), consumer="c")
                self.assertEqual(0, self.used())

    def used(self) -> int:
        """The device-seconds of p1 until BEGIN."""
        query = "SELECT metered + subtree * :t FROM quota_usages WHERE project_id = 'p1'"
        return int(self.fetch(query, t=BEGIN_SECOND)[0][0])

    def test_a_second_ends_at_the_next_one(self) -> None:
        for microsecond in (0, 499_999, 500_000, 999_499, 999_500, 999_999):
            self.clock.now = BEGIN.replace(microsecond=microsecond)
            self.assertEqual(BEGIN_SECOND, self.database.read(clock.read_second), microsecond)
            self.quotas.reserve(base.Context("p1"), {"gpu": 1})
        self.assertEqual([(-BEGIN_SECOND,)], list(map(tuple, self.fetch("SELECT DISTINCT meter FROM reservations"))))

    def test_all_statements_of_a_call_have_one_time(self) -> None:
        """Each statement takes a second; the meters are the sums of those of the reservations and below."""
        self.plant({"top": None, "p1": "top", "p2": "top"})

        def tick(*_statement: object) -> None:
            self.clock.second += 1

        sa.event.listen(sa.Engine, "before_cursor_execute", tick)
        self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", tick)
        for engine in (self.quotas, self.make_limited()):
            engine.reserve(base.Context("p1"), {"gpu": 4, "fpga": 2}, consumer="c")
            engine.resize(base.Context("p1"), {"gpu": 7}, consumer="c")
            engine.commit(base.Context("p1"), consumer="c")
            engine.transfer(ADMIN, "p2", "p1", consumer="c")
            engine.limits.move_project(ADMIN, "p2", None)
            self.assert_invariants()
            engine.release(base.Context("p2"), consumer="c")
            engine.limits.move_project(ADMIN, "p2", "top")
            self.assert_invariants()


class TestMoveThatWaits(MonthsTestCase):
    scenarios = [(backend, {"backend": backend}) for backend in ("mariadb", "postgresql")]

    def test_what_is_reserved_meanwhile(self) -> None:
        """It counts at the new parent alone, and not less than nothing at the old one."""
        self.plant({"a": None, "b": None, "m": "a"})
        self.meters.parents.update({"a": None, "b": None, "m": "a"})
        self.quotas.rollback(base.Context("m"), self.quotas.reserve(base.Context("m"), {"gpu": 1}))
        claims, lock = [], charges.lock

        def wait(*arguments: Any) -> Any:
            self.clock.second += 3
            claims.append(self.hold("m", 100))
            self.clock.second += 4
            return lock(*arguments)

        with mock.patch.object(charges, "lock", wait):
            self.admin.move_project(ADMIN, "m", "b")
        self.meters.parents["m"] = "b"
        self.meters.place(claims[0], self.clock.second)
        self.assert_metered()
        used = dict(map(tuple, self.fetch("SELECT project_id, metered FROM quota_usages WHERE subtree = 0")))
        self.assertEqual({"a": 400}, used)


class TestAudit(MonthsTestCase):
    """``x`` is below ``m``, which was moved below ``a``; a total is set; a claim was purged, and another resized."""

    def setUp(self) -> None:
        super().setUp()
        self.plant({"a": None, "m": None, "x": "m"})
        self.meters.parents.update({"a": None, "m": None, "x": "m"})
        self.admin.set_total_limits(ADMIN, {"gpu": 99})
        self.meters.totals.add("gpu")
        claims = [self.hold("x", 3), self.hold("m", 2), self.hold("a", 1)]
        self.clock.second += 100
        self.admin.move_project(ADMIN, "m", "a")
        self.meters.parents["m"] = "a"
        for claim in claims:
            self.meters.place(claim, self.clock.second)
        self.clock.second += 100
        self.quotas.resize(base.Context("x"), {"gpu": 5}, consumer="x")
        self.quotas.release(base.Context("m"), consumer="m")
        for claim in claims[:2]:
            self.meters.end(claim, self.clock.second)
        claims[0].amount = 5
        self.meters.begin(claims[0], self.clock.second)
        self.clock.second += 100
        self.assertEqual(1, self.quotas.purge(ADMIN, 50))
        self.assert_metered()

    def test_what_was_tampered_with_is_found_and_repaired(self) -> None:
        """A meter is repaired from the sums. If these were tampered with, it becomes consistent with them."""
        meter = "UPDATE quota_usages SET metered = metered + 7 WHERE project_id ="
        for statement, reported, is_exact in (
            (f"{meter} 'x'", {"x", "m"}, True),
            (f"{meter} 'm'", {"m", "a"}, True),
            (f"{meter} 'a'", {"a", TOTAL}, True),
            (f"{meter} '{TOTAL}'", {TOTAL}, True),
            ("UPDATE quota_usages SET meter_base = meter_base + 7 WHERE project_id = 'm'", {"m"}, False),
            ("UPDATE reservations SET meter = meter - 7 WHERE project_id = 'x'", {"x"}, False),
        ):
            with self.subTest(statement):
                self.execute(statement)
                drifts = self.engine.audit(ADMIN)
                self.assertEqual(reported, {drift.key.project_id for drift in drifts})
                self.assertTrue(all("metered" in str(drift) for drift in drifts))
                self.engine.heal(ADMIN)
                self.assertEqual([], self.engine.audit(ADMIN))
                self.assert_invariants()
                if is_exact:
                    self.assert_metered()

    def test_a_deleted_row(self) -> None:
        """What is still recorded is metered again; what purges and moves had left there is lost. No call fails."""
        saved = hooks.SavedRows(self.sql, ["reservations", "reservation_changes", "quota_usages"])
        for project, heals in itertools.product(("x", "m", "a", TOTAL), (True, False)):
            with self.subTest(project, heals=heals):
                saved.put_back()
                self.execute("DELETE FROM quota_usages WHERE project_id = :p", p=project)
                engine = self.make_limited()
                if heals:
                    engine.heal(ADMIN)
                    self.assertEqual([], engine.audit(ADMIN))
                engine.rollback(base.Context("x"), engine.reserve(base.Context("x"), {"gpu": 1}))
                engine.resize(base.Context("x"), {"gpu": 2}, consumer="x")
                engine.transfer(ADMIN, "m", "x", consumer="x")
                engine.release(base.Context("m"), consumer="x")
                engine.purge(ADMIN, 0)
                engine.heal(ADMIN)
                self.assertEqual([], engine.audit(ADMIN))
                engine.close()


class TestWidths(MeterTestCase):
    """A meter has 64 bits."""

    def test_the_largest_counters_at_three_levels_in_2040(self) -> None:
        # (MariaDB has no later time.)
        now = datetime.datetime(2038, 1, 18) if self.backend == "mariadb" else datetime.datetime(2040, 7, 1)
        for engine in (self.make_limited(), self.make_limited()):
            self.clock.now = now
            self.plant({"top": None, "middle": "top", "leaf": "middle"})
            contexts = [base.Context(name) for name in ("leaf", "middle", "top")]
            uuids = [engine.reserve(context, {"gpu": MAX_AMOUNT}) for context in contexts]
            self.assert_invariants()
            self.clock.second += HOUR
            engine.rollback(contexts[0], uuids[0])
            engine.commit(contexts[1], uuids[1])
            engine.purge(ADMIN, 0)
            engine.release(contexts[1], uuids[1])
            engine.rollback(contexts[2], uuids[2])
            engine.purge(ADMIN, 0)
            self.assert_invariants()
            self.assertEqual([], engine.audit(ADMIN))
        used = dict(map(tuple, self.fetch("SELECT project_id, metered FROM quota_usages")))
        expected = {name: 2 * MAX_AMOUNT * HOUR * number for number, name in enumerate(("leaf", "middle", "top"), 1)}
        self.assertEqual(expected, used)

    def test_the_largest_sum_at_the_latest_second(self) -> None:
        """No intermediate value leaves 64 bits, either: of 8 589 934 591 devices in the year 2054."""
        self.engine.reserve(base.Context("p1"), {"gpu": 3})
        at = 2**30 - 1 - HOUR
        held = MAX_COUNTED - 5
        self.execute(f"UPDATE quota_usages SET subtree = {held}, metered = {-at * held}, month_ends = 2147483647")
        path = self.database.read(lambda connection: path_state.read_path(connection, "p1", [ResourceKey("gpu")]))
        for amount, granted in ((5, True), (1, False), (-5, True)):
            (posting,) = usages.along(path.charged[ResourceKey("gpu")], amount, 0)
            posting.bound = mock.Mock(at_most=2**62, ahead=HOUR)
            work = functools.partial(usages.charge, posting=posting, at=at)
            self.assertEqual(granted, self.database.write(work), amount)
        row = self.fetch("SELECT subtree, metered FROM quota_usages")[0]
        self.assertEqual((held, -at * held), tuple(row))

    def test_a_sum_that_would_leave_them_is_refused(self) -> None:
        """8 589 934 591 of a resource are the most that a project can hold together with those below it."""
        self.plant({"top": None, **dict.fromkeys(("c1", "c2", "c3", "c4", "c5"), "top"), "other": None})
        for name in ("c1", "c2", "c3", "c4"):
            self.engine.reserve(base.Context(name), {"gpu": MAX_AMOUNT}, consumer=name)
        self.quotas.reserve(base.Context("c5"), {"gpu": 2}, consumer="c5")
        self.quotas.reserve(base.Context("other"), {"gpu": 4}, consumer="other")
        before = hooks.tables(self.sql)
        context = base.Context("c5")
        calls: dict[str, Callable[[], object]] = {
            "reserve": lambda: self.quotas.reserve(context, {"gpu": 2}),
            "adopt": lambda: self.quotas.adopt(ADMIN, [base.claim("new", gpu=2)], "c5"),
            "resize": lambda: self.quotas.resize(context, {"gpu": 4}, consumer="c5"),
            "transfer": lambda: self.quotas.transfer(ADMIN, "c5", "other", consumer="other"),
        }
        for name, call in calls.items():
            with self.subTest(name):
                error = self.assertRaises(exceptions.MeterOverflow, call)
                self.assertEqual(("c5", "gpu"), (error.project_id, error.resource))
                self.assertIn("device-seconds", str(error))
                self.assertEqual(before, hooks.tables(self.sql))
        self.quotas.resize(context, {"gpu": 3}, consumer="c5")

    def test_what_fits_below_the_largest_sum(self) -> None:
        """H1, where ``top``, or all projects together, hold nearly as much as a meter can count."""
        self.plant({"top": None, "c1": "top", "other": None})
        for name in ("c1", "other"):
            self.engine.reserve(base.Context(name), {"gpu": 1})
        for owner, left in (("top", 2), ("top", 0), ("top", MAX_AMOUNT - 2), (TOTAL, 7)):
            if owner == TOTAL:
                self.admin.set_total_limits(ADMIN, {"gpu": 10**12})
            held = MAX_COUNTED - left
            self.execute("UPDATE quota_usages SET subtree = :n, metered = 0 WHERE project_id = :p", n=held, p=owner)
            self.assert_fits("c1", left, owner)
            if owner == TOTAL:
                self.execute("UPDATE quota_usages SET subtree = 1 WHERE project_id = 'top'")
                self.assert_fits("other", left, owner)

    def assert_fits(self, project_id: str, amount: int, owner: str) -> None:
        """H1; ``owner``: the project that bounds it; TOTAL: all together."""
        context = base.Context(project_id)
        for engine in (self.engine, self.make_limited()):
            scope, bound_by = ("total", None) if owner == TOTAL else ("subtree", owner)
            expected = Headroom(amount, bound_by, scope, MAX_COUNTED)
            (detail,) = [one for one in engine.get_detail(context) if one.resource == "gpu"]
            self.assertEqual([expected, expected], [engine.headroom(context)["gpu"], detail.headroom])
            self.assertEqual(amount // 2, engine.how_many(context, {"gpu": 2}).number)
            (over,) = engine.check(context, {"gpu": amount + 1})
            self.assertEqual((owner, MAX_COUNTED, amount), (over.project_id, over.limit, over.fits))
            self.assertRaises(exceptions.MeterOverflow, engine.reserve, context, {"gpu": amount + 1})
            if amount:
                self.assertEqual([], engine.check(context, {"gpu": amount}))
                engine.rollback(context, engine.reserve(context, {"gpu": amount}))
