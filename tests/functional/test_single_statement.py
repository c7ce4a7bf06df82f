# SPDX-License-Identifier: Apache-2.0
"""Reserve and settle in a single statement, where the database supports it; otherwise in several."""

from __future__ import annotations

import gc
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import Claim, exceptions
from cyborg_quota.db.connect import CachedConnection
from cyborg_quota.db.dialects.postgresql import PostgreSQL
from tests import base, fixtures, hooks

SINGLE_STATEMENT = r"^(EXECUTE|SELECT WHERE) cyborg_quota_"


class SingleStatementTestCase(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.limits.own[None, "gpu"] = 10
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))  # the usage rows exist
        self.database = hooks.database_of(self.engine)

    def assert_single_statements(self, sent: list[str], times: int) -> None:
        self.assertEqual(times, len(sent), sent)
        for statement in sent:
            self.assertRegex(statement, SINGLE_STATEMENT)


class TestAttach(SingleStatementTestCase):
    def assert_attach(self, *amounts: dict[str, int]) -> None:
        """Reserve and commit the first amounts, reserve and roll back the second, reserve the third."""
        committed, rolled_back, reserved = amounts
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, committed))  # the rows are made
        with hooks.recorded_statements(self.engine) as sent:
            self.quotas.commit(self.context, self.quotas.reserve(self.context, committed, consumer="a"))
            self.quotas.rollback(self.context, self.quotas.reserve(self.context, rolled_back))
            self.quotas.reserve(self.context, reserved, consumer="b")
        self.assert_single_statements(sent, 5)
        self.assertEqual((committed["gpu"], reserved["gpu"]), self.figures())

    def test_one_and_two_resources(self) -> None:
        self.assert_attach({"fpga": 1, "gpu": 2}, {"gpu": 4}, {"gpu": 5, "fpga": 6})

    def test_in_a_tree(self) -> None:
        self.plant({"top": None, "middle": "top", "p1": "middle"})
        self.limits.subtree_limits["top", "gpu"] = 9
        self.assert_attach({"gpu": 2}, {"gpu": 3}, {"gpu": 4})
        self.assertEqual({"p1": 6, "middle": 6, "top": 6}, self.subtrees())

    def test_names_with_every_special_character(self) -> None:
        for number, name in enumerate(('"', "\\", "{", "}", ",", "NULL", "'", "%s", "%", ":x", "a b", "\\\"{},'")):
            with hooks.recorded_statements(self.engine) as sent:
                self.quotas.reserve_many(self.context, [Claim(name, {"gpu": 1}, f"g{name}", source=f"s{name}")])
            self.assert_single_statements(sent, 1)
            stored = self.engine.list_reservations(base.ADMIN, consumer=name)
            self.assertEqual(
                [(name, f"g{name}", f"s{name}")], [(one.consumer, one.group, one.source) for one in stored]
            )
            self.engine.commit(self.context, consumer=name)
            self.limits.own[None, "gpu"] = 11 + number

    def test_several_consumers(self) -> None:
        """Each in its own group, or in that of the call."""
        claims = [Claim("a", {"gpu": 1}, "one"), *(Claim(f"arq {number}", {"gpu": 1}) for number in range(8))]
        with hooks.recorded_statements(self.engine) as sent:
            self.quotas.commit(self.context, self.quotas.reserve_many(self.context, claims, group="all"))
        self.assert_single_statements(sent, 2)
        stored = self.engine.list_reservations(base.ADMIN, state="committed")
        expected = [("a", "one"), *((f"arq {number}", "all") for number in range(8))]
        self.assertEqual(expected, [(row.consumer, row.group) for row in stored])


class TestRefused(SingleStatementTestCase):
    def test_nothing_is_left_of_a_refused_charge_in_a_tree(self) -> None:
        """The rows that were charged before the refusal are as before, also without the multi-statement transaction."""
        self.plant({"top": None, "middle": "top", "p1": "middle"})
        self.limits.subtree_limits["top", "gpu"] = 3
        self.quotas.reserve(self.context, {"gpu": 2})
        before = hooks.tables(self.sql)["reservations"]
        with (
            mock.patch.object(self.database, "_run_once", side_effect=KeyError("the multi-statement transaction")),
            hooks.recorded_statements(self.engine) as sent,
        ):
            self.assertRaises(KeyError, self.quotas.reserve, self.context, {"gpu": 2})
        self.assert_single_statements(sent, 1)
        self.assertEqual(before, hooks.tables(self.sql)["reservations"])
        self.assertEqual({"p1": 2, "middle": 2, "top": 2}, self.subtrees())

    def test_part_of_the_consumers_claim_has_ended(self) -> None:
        """The first row of the claim has ended, so no unique key prevents the reserve."""
        uuids = self.quotas.reserve(self.context, {"fpga": 1, "gpu": 1}, consumer="arq")
        self.quotas.rollback(self.context, uuids[:1])
        reserve = self.quotas.reserve
        self.assertRaises(exceptions.ReservationConflict, reserve, self.context, {"fpga": 1}, consumer="arq")

    def test_the_usage_row_is_gone(self) -> None:
        """The statement settles nothing, because no counter would change with it."""
        uuids = self.quotas.reserve(self.context, {"gpu": 2})
        self.execute("DELETE FROM quota_usages")
        with mock.patch.object(self.database, "_run_once", side_effect=KeyError("multi-statement transaction")):
            self.assertRaises(KeyError, self.engine.commit, self.context, uuids)
        self.assertEqual(["reserved"], self.states(*uuids))


class TestPrepared(SingleStatementTestCase):
    """MariaDB's blocks are prepared statements."""

    scenarios = [item for item in fixtures.SCENARIOS if item[0] == "mariadb"]

    def test_a_pooler_has_changed_the_session(self) -> None:
        """The prepared statements are gone: calls use the multi-statement transaction from then on, and succeed."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.database.write(self._deallocate)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.assertEqual((3, 0), self.figures())

    def _deallocate(self, connection: sa.Connection) -> None:
        for name in connection.info["cyborg_quota_prepared"]:
            connection.exec_driver_sql(f"DEALLOCATE PREPARE {name}")

    def test_interrupted_before_a_block_is_rolled_back(self) -> None:
        """A block fails, and a signal arrives."""

        def fail(connection: sa.Connection) -> None:
            connection.exec_driver_sql("UPDATE quota_usages SET reserved = reserved + 7")
            raise ValueError

        with (
            mock.patch.object(CachedConnection, "leave_autocommit", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.database._run_once_in_autocommit(fail)
        self.engine.reserve(self.context, {"gpu": 1})
        self.database.write(lambda connection: connection.exec_driver_sql("SELECT 1").all())
        self.assert_invariants()

    def test_many_shapes(self) -> None:
        """A connection prepares a bounded number of statements; further shapes use the multi-statement transaction."""
        self.limits.own[None, "gpu"] = 10_000
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


class TestInterrupted(SingleStatementTestCase):
    """A connection in autocommit mode is interrupted by a signal. (PostgreSQL's driver keeps the mode.)"""

    scenarios = [item for item in fixtures.SCENARIOS if item[0] == "postgresql"]

    def test_while_it_leaves_autocommit(self) -> None:
        """A call fails, and a signal arrives while its connection leaves autocommit mode."""
        self.useFixture(hooks.Interleaved(self.engine, "SELECT ", self.fail_and_interrupt))
        with self.assertRaises(KeyboardInterrupt):
            self.engine.reserve(self.context, {"gpu": 1})
        self.interruption.stop()
        with self.assertRaises(ZeroDivisionError):
            self.database.write(self.fail_after_update)
        self.assert_invariants()

    def test_between_two_calls(self) -> None:
        """The connection belongs to no thread, and returns to the pool in autocommit mode."""
        self.engine.reserve(self.context, {"gpu": 1})
        _, kept = self.database._acquire()
        self.assertTrue(kept.autocommit)
        del kept
        gc.collect()
        with self.assertRaises(ZeroDivisionError):
            self.database.write(self.fail_after_update)
        self.assert_invariants()

    def test_returned_to_the_pool(self) -> None:
        idle, kept = self.database._acquire()
        idle.put(kept)
        idle._enabled = False
        self.engine.reserve(self.context, {"gpu": 1})
        with self.database.engine.connect() as connection:
            self.assertFalse(connection.connection.dbapi_connection.autocommit)

    interruption = mock.patch.object(PostgreSQL, "set_autocommit", side_effect=KeyboardInterrupt)

    def fail_and_interrupt(self) -> None:
        self.interruption.start()
        self.addCleanup(mock.patch.stopall)
        raise ValueError

    def fail_after_update(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("UPDATE quota_usages SET reserved = reserved + 7")
        raise ZeroDivisionError
