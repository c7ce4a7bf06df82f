# SPDX-License-Identifier: Apache-2.0
"""The cap on open reservations: it is exact in races, and does not affect other reservations."""

from __future__ import annotations

import functools
import uuid
from unittest import mock

import fixtures as fx
import testscenarios

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.db import dialects, reservations
from cyborg_quota.db.database import Connection
from cyborg_quota.ledger import open_cap
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.open_cap import OpenCap
from cyborg_quota.ledger.settings import DriverSettings
from tests import base, fixtures, hooks, trees
from tests.race.workers import once, race

load_tests = testscenarios.load_tests_apply_scenarios

TOO_MANY = exceptions.TooManyOpenReservations
CAP = 10
PROCESSES = 8


class CapTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.use(CAP)

    def use(self, most: int) -> None:
        self.engine = fixtures.make_engine(self.url, self.limits, max_open=most)
        self.addCleanup(self.engine.close)
        self.quotas = fixtures.Checked(self.engine, self.url)  # type: ignore[assignment]

    def fill(self, count: int, delta: int = 1, resource: str = "gpu") -> list[str]:
        return [self.quotas.reserve(self.context, {resource: delta})[0] for _ in range(count)]

    def refused(self, deltas: dict[str, int], **named: str) -> exceptions.TooManyOpenReservations:
        before = hooks.tables(self.sql)
        error = self.assertRaises(TOO_MANY, self.quotas.reserve, self.context, deltas, **named)
        self.assertEqual(before, hooks.tables(self.sql))
        return error


class TestCap(CapTestCase):
    def test_exactly_so_many(self) -> None:
        for delta in (1, 1000, 2**26):
            uuids = self.fill(CAP, delta)
            error = self.refused({"gpu": delta})
            self.assertEqual(("p1", "gpu", CAP), (error.project_id, error.resource, error.limit))
            for word in ("p1", "gpu", "10 open reservations", "roll back", "cyborg-quota expire"):
                self.assertIn(word, str(error))
            self.quotas.rollback(self.context, uuids)

    def test_counting_ends_after_a_flood(self) -> None:
        """Above half of the cap, the open reservations of a project are counted, but not for ever."""
        uuids = self.fill(CAP)
        self.quotas.rollback(self.context, uuids)
        counting = mock.patch.object(reservations, "count_open", wraps=reservations.count_open)
        with counting as counted:
            self.fill(1)
            self.assertGreater(counted.call_count, 0)
        with counting as counted, mock.patch.object(open_cap, "_REFUSAL_SECONDS", 0.0):
            self.fill(1)
            self.assertEqual(0, counted.call_count)

    def test_every_cap(self) -> None:
        for most in (1, 2, 3):
            self.use(most)
            uuids = self.fill(most)
            self.assertEqual(most, self.refused({"gpu": 1}).limit)
            self.quotas.release(self.context, uuids)

    def test_each_end_of_a_reservation_allows_another(self) -> None:
        uuids = self.fill(CAP)
        self.quotas.commit(self.context, uuids[:1])
        uuids += self.fill(1)
        self.quotas.rollback(self.context, uuids[1:2])
        uuids += self.fill(1)
        self.make_overdue(uuids[2])
        self.refused({"gpu": 1})
        self.quotas.expire(base.ADMIN)
        self.fill(1)
        self.refused({"gpu": 1})

    def test_committed_reservations_do_not_count(self) -> None:
        for _ in range(3):
            self.quotas.commit(self.context, self.fill(CAP))
        self.quotas.adopt(base.ADMIN, [Claim(None, {"gpu": 1})] * (CAP + 1), "p1")
        self.fill(CAP)
        self.quotas.adopt(base.ADMIN, [Claim(None, {"gpu": 1})], "p1")
        self.refused({"gpu": 1})

    def test_the_cap_is_per_project_and_resource(self) -> None:
        self.fill(CAP)
        self.fill(CAP - 1, resource="fpga")
        self.quotas.reserve(base.Context("p2"), {"gpu": 1})
        self.quotas.reserve(self.context, {"fpga": 1})
        self.assertEqual("fpga", self.refused({"fpga": 1, "gpu": 1}).resource)

    def test_claims_of_one_call_all_count(self) -> None:
        self.quotas.reserve_many(self.context, [Claim(None, {"gpu": 1})] * 7, group="g")
        self.quotas.rollback(self.context, self.fill(1, resource="fpga"))
        # (A function of PostgreSQL undoes the charges of a refused call, and leaves a new updated_at: record 0037.)
        before = hooks.tables(self.sql, without="updated_at")
        claims = [Claim(str(number), {"gpu": 1, "fpga": 1}) for number in range(4)]
        self.assertRaises(TOO_MANY, self.quotas.reserve_many, self.context, claims, group="h")
        self.assertEqual(before, hooks.tables(self.sql, without="updated_at"))
        self.quotas.reserve_many(self.context, claims[:3], group="h")
        self.refused({"gpu": 1})

    def test_a_repeated_reserve_is_answered_at_the_cap(self) -> None:
        (uuid_,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c")
        self.fill(CAP - 1)
        self.assertEqual([uuid_], self.quotas.reserve(self.context, {"gpu": 1}, consumer="c"))
        self.make_overdue(uuid_)
        self.assertNotEqual([uuid_], self.quotas.reserve(self.context, {"gpu": 1}, consumer="c"))
        self.refused({"gpu": 1}, consumer="d")

    def test_negative_deltas_fill_half(self) -> None:
        self.fill(CAP // 2, -1)
        self.refused({"gpu": -1})
        self.fill(CAP // 2)
        self.refused({"gpu": 1})
        self.refused({"gpu": -1})

    def test_an_exceeded_limit_is_reported_first(self) -> None:
        self.fill(CAP)
        self.limits.limits["p1", "gpu"] = CAP
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 1})
        self.limits.limits["p1", "gpu"] = CAP + 1
        self.limits.subtree_limits["p1", "gpu"] = CAP
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 1})
        self.limits.subtree_limits["p1", "gpu"] = CAP + 1
        self.refused({"gpu": 1})

    def test_in_a_tree(self) -> None:
        """Reservations of the children do not count against their parent, and the path is charged to its root."""
        trees.plant(hooks.database_of(self.engine), {"root": None, "p1": "root", "p3": "root"})
        for project in ("p1", "p3", "root"):
            for _ in range(CAP):
                self.quotas.reserve(base.Context(project), {"gpu": 1})
            self.assertRaises(TOO_MANY, self.quotas.reserve, base.Context(project), {"gpu": 1})

    def test_large_amounts_are_counted_not_refused(self) -> None:
        """If the amounts exceed half of the cap, they prove nothing, and the reservations are counted."""
        self.quotas.adopt(base.ADMIN, [Claim(None, {"gpu": 10**6})], "p1")
        self.fill(CAP)
        self.refused({"gpu": 1})

    def test_no_cap(self) -> None:
        self.use(-1)
        self.quotas.reserve_many(self.context, [Claim(None, {"gpu": 1})] * 200)
        self.fill(3, -1)

    def test_a_cap_of_none_is_refused(self) -> None:
        for most in (0, -2):
            settings = DriverSettings(database=fixtures.settings(self.url), max_open_reservations=most)
            error = self.assertRaises(exceptions.ConfigurationError, DbQuotaDriver, settings, self.limits)
            self.assertIn("[quota] max_open_reservations", str(error))


def reserve_until_too_many(engine: QuotaEngine, deltas: dict[str, int]) -> int:
    admitted = 0
    while True:
        try:
            engine.reserve(base.Context("p1"), deltas, consumer=str(uuid.uuid4()))
        except TOO_MANY:
            return admitted
        admitted += 1


class RaceTestCase(CapTestCase):
    def admitted(self, *deltas: dict[str, int]) -> int:
        self.engine.get_usages(self.context)
        self.engine.close()
        jobs = [functools.partial(reserve_until_too_many, self.engine, delta) for delta in deltas]
        return sum(race(*jobs))


class TestRace(RaceTestCase):
    def test_exactly_the_cap_is_admitted(self) -> None:
        self.use(60)
        self.assertEqual(60, self.admitted(*[{"gpu": 1}] * PROCESSES))
        self.assert_invariants()

    def test_with_negative_deltas(self) -> None:
        self.use(60)
        self.assertEqual(60, self.admitted(*[{"gpu": 1}] * 4, *[{"gpu": -1}] * 4))
        with self.sql.connect() as connection:
            (usage_id,) = connection.exec_driver_sql("SELECT id FROM quota_usages").scalars()
            self.assertLessEqual(reservations.count_open_negative(connection, usage_id), 30)
        self.assert_invariants()


class TestControl(RaceTestCase):
    scenarios = fixtures.SCENARIOS[1:]  # SQLite has one writer at a time: nothing can come between

    def test_naive_is_detected(self) -> None:
        """Counting without the row lock admits too many if all count before any charges: this race can be lost."""
        self.fill(CAP - 1)
        between = once(PROCESSES)

        def charge(_cap: OpenCap, connection: Connection, changes: object, counted: object, claims: object) -> bool:
            _cap.check(connection, counted, claims)  # type: ignore[arg-type]
            between()
            return dialects.of(connection).charge_all(connection, changes)  # type: ignore[arg-type]

        self.useFixture(fx.MonkeyPatch("cyborg_quota.ledger.open_cap.OpenCap.charge_and_count", charge))
        self.assertEqual(PROCESSES, self.admitted(*[{"gpu": 1}] * PROCESSES))
