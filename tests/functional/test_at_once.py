# SPDX-License-Identifier: Apache-2.0
"""Reserve and settle as one statement, on the servers that can: what it does, and when the ordinary way takes over."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import Claim, exceptions
from cyborg_quota.db.connection_cache import CachedConnection
from cyborg_quota.db.dialects import postgresql
from tests import base, fixtures, hooks, trees

load_tests = testscenarios.load_tests_apply_scenarios


class AtOnceTestCase(base.LedgerTestCase):
    """PostgreSQL's statement comes in two: most calls do not look whether others wait (db/scripts.py)."""

    looks_one_in = 10**9
    scenarios = [
        *fixtures.SCENARIOS[1:],
        *((f"{name}, looking", {**one, "looks_one_in": 1}) for name, one in fixtures.SCENARIOS if name == "postgresql"),
    ]

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", self.looks_one_in)
        )
        self.limits.limits[None, "gpu"] = 10
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))  # the rows are made
        self.database = hooks.database_of(self.engine)

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """What the engine sends, but for PREPARE."""
        sent: list[str] = []

        def note(_connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            if not statement.startswith("PREPARE"):
                sent.append(statement)

        sa.event.listen(self.database.engine, "before_cursor_execute", note)
        try:
            yield sent
        finally:
            sa.event.remove(self.database.engine, "before_cursor_execute", note)

    def assert_at_once(self, sent: list[str], times: int) -> None:
        self.assertEqual(times, len(sent), sent)
        for statement in sent:
            self.assertRegex(statement, "^EXECUTE cyborg_quota_")


_POSTGRESQL = [one for one in AtOnceTestCase.scenarios if one[1]["backend"] == "postgresql"]


class TestVariants(AtOnceTestCase):
    scenarios = _POSTGRESQL

    def test_who_looks(self) -> None:
        for call, size in ((self.quotas.commit, 2), (self.quotas.rollback, 1)):
            claims = [Claim(f"{size} {number}", {"gpu": 1}) for number in range(size)]
            call(self.context, self.quotas.reserve_many(self.context, claims))
        prepared = self.database.read(
            lambda connection: (
                connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all()
            )
        )
        self.assertGreaterEqual(len(prepared), 4)
        self.assertEqual({self.looks_one_in == 1}, {"AS before" in statement for statement in prepared})


class TestAttach(AtOnceTestCase):
    def test_reserve_commit_and_rollback(self) -> None:
        with self.statements() as sent:
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 2}, consumer="a"))
            self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 3}))
            self.quotas.reserve(self.context, {"gpu": 4})
        self.assert_at_once(sent, 5)
        self.assertEqual((2, 4), self.figures())

    def test_eight_consumers(self) -> None:
        claims = [Claim(f"arq {number}", {"gpu": 1}) for number in range(8)]
        with self.statements() as sent:
            uuids = self.quotas.reserve_many(self.context, claims, group="instance")
            self.quotas.commit(self.context, uuids)
        self.assert_at_once(sent, 2)
        self.assertEqual((8, 0), self.figures())

    def test_a_claims_own_group(self) -> None:
        claims = [Claim("a", {"gpu": 1}, "one"), Claim("b", {"gpu": 1}, "two"), Claim("c", {"gpu": 1})]
        with self.statements() as sent:
            self.quotas.reserve_many(self.context, claims, group="all")
        self.assert_at_once(sent, 1)
        stored = self.engine.list_reservations(base.ADMIN, state="reserved")
        self.assertEqual([("a", "one"), ("b", "two"), ("c", "all")], [(one.consumer, one.group) for one in stored])

    def test_an_expiry_is_kept(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, expire=base.milliseconds(30))
        with self.sql.connect() as connection:
            connection.exec_driver_sql("SELECT SLEEP(0.1)" if self.backend == "mariadb" else "SELECT pg_sleep(0.1)")
        self.assertRaises(exceptions.ReservationExpired, self.quotas.commit, self.context, [uuid])
        self.assertEqual((0, 0), self.figures())


class TestRefused(AtOnceTestCase):
    def test_over_the_limit(self) -> None:
        self.quotas.reserve(self.context, {"gpu": 9})
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 2})
        self.assertEqual([(10, 9)], [(over.limit, over.reserved) for over in error.overs])
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual((0, 10), self.figures())

    def test_over_the_limit_of_an_ancestor(self) -> None:
        trees.plant(self.database, {"top": None, "p1": "top"})
        self.limits.subtree_limits["top", "gpu"] = 3
        self.quotas.reserve(self.context, {"gpu": 2})
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 2})
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual((0, 3), self.figures())

    def test_the_consumer_holds_something(self) -> None:
        first = self.quotas.reserve(self.context, {"gpu": 2}, consumer="arq")
        self.assertEqual(first, self.quotas.reserve(self.context, {"gpu": 2}, consumer="arq"))
        self.assertRaises(exceptions.ReservationConflict, self.quotas.reserve, self.context, {"gpu": 1}, consumer="arq")
        self.assertRaises(
            exceptions.ReservationConflict, self.quotas.reserve, self.context, {"fpga": 1}, consumer="arq"
        )
        self.assertEqual((0, 2), self.figures())

    def test_a_part_of_the_consumers_claim_is_left(self) -> None:
        """Its first row has ended: no unique key stands in the way."""
        uuids = self.quotas.reserve(self.context, {"fpga": 1, "gpu": 1}, consumer="arq")
        self.quotas.rollback(self.context, uuids[:1])
        self.assertRaises(
            exceptions.ReservationConflict, self.quotas.reserve, self.context, {"fpga": 1}, consumer="arq"
        )

    def test_somebody_else_has_settled_one_of_two(self) -> None:
        claims = [Claim("a", {"gpu": 1}), Claim("b", {"gpu": 1})]
        uuids = self.quotas.reserve_many(self.context, claims)
        self.make_engine().rollback(self.context, uuids[:1])
        self.assertRaises(exceptions.ReservationRolledBack, self.quotas.commit, self.context, uuids)
        self.assertEqual(["rolled_back", "reserved"], self.states(*uuids))

    def test_the_counter_has_drifted(self) -> None:
        """The reservation could end, its row refuses: neither happens at once, and the ordinary way counts anew."""
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.execute("UPDATE quota_usages SET reserved = 1, subtree = 1")
        self.engine.commit(self.context, uuids)
        self.assertEqual((2, 0), self.figures())
        self.assert_invariants()

    def test_the_usage_row_is_gone(self) -> None:
        """Neither ends at once: nobody would count it."""
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.execute("DELETE FROM quota_usages")
        with mock.patch.object(self.database, "_once", side_effect=KeyError("the ordinary way")):
            self.assertRaises(KeyError, self.engine.commit, self.context, uuids)
        self.assertEqual(["reserved"], self.states(*uuids))

    def test_the_project_has_moved(self) -> None:
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        trees.plant(self.database, {"top": None})
        self.engine.reserve(base.Context("top"), {"gpu": 1})
        other = self.make_engine()
        trees.move(hooks.database_of(other), "p1", "top")
        self.quotas.rollback(self.context, uuids)
        self.quotas.reserve(self.context, {"gpu": 3})
        with self.sql.connect() as connection:
            self.assertEqual({"p1": 3, "top": 4}, trees.subtrees(connection, "gpu"))


class TestPrepared(AtOnceTestCase):
    def test_a_pooler_has_changed_the_session(self) -> None:
        """Prepared statements that are gone: the ordinary way from then on, and the caller notices nothing."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.database.write(self._forget)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.assertEqual((3, 0), self.figures())

    def _forget(self, connection: sa.Connection) -> None:
        for name in connection.info["cyborg_quota_prepared"]:
            connection.exec_driver_sql(f"DEALLOCATE PREPARE {name}")

    def test_no_room_to_prepare_the_look(self) -> None:
        """It does without."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        known: list[int] = []
        self.database.read(lambda connection: known.append(len(connection.info["cyborg_quota_prepared"])))
        self.useFixture(MonkeyPatch("cyborg_quota.db.prepared._MAX_PREPARED", known[0]))
        self.useFixture(MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", 1))
        with self.statements() as sent:
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.assert_at_once(sent, 2)

    def test_many_shapes(self) -> None:
        """A connection prepares a bounded number; what comes after goes the ordinary way."""
        self.limits.limits[None, "gpu"] = 10_000
        for size in range(1, 17):
            for consumers in (True, False):
                claims = [Claim(f"{size} {number}" if consumers else None, {"gpu": 1}) for number in range(size)]
                self.engine.commit(self.context, self.engine.reserve_many(self.context, claims))
                more = [Claim(claim.consumer and f"{claim.consumer} again", claim.deltas) for claim in claims]
                self.engine.rollback(self.context, self.engine.reserve_many(self.context, more))
        self.assert_invariants()
        known: list[int] = []
        self.database.read(lambda connection: known.append(len(connection.info["cyborg_quota_prepared"])))
        self.assertLessEqual(known[0], 64)


class TestKilled(AtOnceTestCase):
    """PostgreSQL's driver is told which statements are transactions of their own."""

    scenarios = _POSTGRESQL

    def test_between_two_ways(self) -> None:
        """A script fails, and the signal strikes while its connection is put back to the ordinary way."""
        self.useFixture(hooks.Interleaved(self.engine, "EXECUTE ", self.fail_and_strike))
        with self.assertRaises(KeyboardInterrupt):
            self.engine.reserve(self.context, {"gpu": 1})
        postgresql._driver_connection = self.driver
        with self.assertRaises(ZeroDivisionError):
            self.database.write(self.half)
        self.assert_invariants()

    def test_between_two_hands(self) -> None:
        """Nobody holds the connection, and it goes to the pool by itself, as it is."""
        self.engine.reserve(self.context, {"gpu": 1})
        _, kept = self.database._acquire()
        self.assertTrue(kept.autocommit)
        del kept
        gc.collect()
        with self.assertRaises(ZeroDivisionError):
            self.database.write(self.half)
        self.assert_invariants()

    def test_given_to_the_pool(self) -> None:
        idle, kept = self.database._acquire()
        idle.put(kept)
        idle._may_keep = False
        self.engine.reserve(self.context, {"gpu": 1})
        with self.database.engine.connect() as connection:
            self.assertFalse(postgresql._driver_connection(connection).autocommit)

    driver = staticmethod(postgresql._driver_connection)

    def fail_and_strike(self) -> None:
        def strike(_connection: sa.Connection) -> None:
            raise KeyboardInterrupt

        self.addCleanup(setattr, postgresql, "_driver_connection", self.driver)
        postgresql._driver_connection = strike
        raise ValueError

    def half(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("UPDATE quota_usages SET reserved = reserved + 7")
        raise ZeroDivisionError


class TestKilledInABlock(AtOnceTestCase):
    scenarios = [one for one in fixtures.SCENARIOS if one[0] == "mariadb"]

    def test_before_it_is_rolled_back(self) -> None:
        """A block fails half way, and the signal strikes before anything is done about it."""

        def fail(connection: sa.Connection) -> None:
            connection.exec_driver_sql("UPDATE quota_usages SET reserved = reserved + 7")
            raise ValueError

        with (
            mock.patch.object(CachedConnection, "leave_autocommit", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.database._once_in_autocommit(fail)
        self.engine.reserve(self.context, {"gpu": 1})
        self.database.write(lambda connection: connection.exec_driver_sql("SELECT 1").all())
        self.assert_invariants()
