# SPDX-License-Identifier: Apache-2.0
"""A process is killed after each statement that writes of a claim of capacity, and of what gives the capacity back.

Quota and capacity change together or not at all, and the repeated call completes.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, Inventory, QuotaEngine
from cyborg_quota.ledger.capacity_claims import CapacityClaimer
from tests import base, invariants

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
AMOUNTS = {"gpu": 3, "fpga": 1}
MOST_STATEMENTS = 40
READS = ("SELECT", "SET ", "SHOW", "PRAGMA", "PREPARE", "DEALLOCATE")
BEGIN = ("BEGIN", "BEGIN IMMEDIATE")
"""A kill after one of these has the same effect as a kill after the statement before it."""
ATOMIC = "-- COMMIT"
"""The end of a statement that is a transaction of its own, whatever its first word is."""


class CrashTestCase(base.LedgerTestCase):
    def use_several_statements(self) -> None:
        """As on a server without single-statement transactions."""
        self.useFixture(MonkeyPatch("cyborg_quota.db.database.Database.supports_single_statement", lambda *_: False))

    def crash_after(self, number: int, call: Callable[[QuotaEngine], object], *, is_naive: bool = False) -> bool:
        """Run ``call`` in a process that kills itself after this number of writes. False: it ended before.

        ``is_naive``: each statement is committed at once.
        """
        if self.backend == "sqlite":  # which allows no open connection during a fork
            self.engine.close()
        pid = os.fork()
        if pid == 0:
            try:
                _kill_after(number, is_naive=is_naive)
                call(self.make_engine())
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return True
        self.assertEqual(0, os.waitstatus_to_exitcode(status), f"the call failed before statement {number}")
        return False

    def used(self) -> int:
        return sum(record.used for record in self.engine.capacity.list_inventories(ADMIN))


class TestCrash(CrashTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine.capacity.enable(ADMIN)
        self.engine.pods.add(ADMIN, "p1")
        self.engine.capacity.add_provider(ADMIN, "n1")
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(8), "fpga": Inventory(4)})

    def crash_everywhere(
        self, prepare: Callable[[], object], call: Callable[[QuotaEngine], object], used: int, pod: str | None
    ) -> None:
        """``used``: what is used after the complete call. ``pod``: that of the provider, which counts the claims."""
        self.engine.capacity.set_pod(ADMIN, "n1", pod)
        for number in itertools.count(1):
            self.assertLess(number, MOST_STATEMENTS)
            prepare()
            is_killed = self.crash_after(number, call)
            self.assert_invariants()
            call(self.engine)
            self.assert_invariants()
            self.assertEqual(used, self.used(), f"after a kill at statement {number}")
            self.engine.release(self.context, consumer="c")
            if not is_killed:
                break
        self.assertGreater(number, 1, "no statement was sent")

    def reserve(self, engine: QuotaEngine | None = None) -> None:
        (engine or self.engine).reserve(self.context, AMOUNTS, consumer="c", provider="n1")

    def reserve_anywhere(self, engine: QuotaEngine) -> None:
        engine.reserve(self.context, {"gpu": 4}, consumer="c", provider=ANY)

    def commit(self) -> None:
        self.reserve()
        self.engine.commit(self.context, consumer="c")

    def make_overdue(self) -> None:
        self.reserve()
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE live = 1")

    def crash_in_every_call(self, *, pods: tuple[str | None, str | None]) -> None:
        """``pods``: that of the provider, in turns: other statements end and make the claims of a pod."""

        def nothing() -> None:
            return None

        some, others = pods
        self.crash_everywhere(nothing, self.reserve, 4, some)
        self.crash_everywhere(nothing, self.reserve_anywhere, 4, some)
        self.crash_everywhere(self.reserve, lambda engine: engine.rollback(self.context, consumer="c"), 0, others)
        self.crash_everywhere(self.commit, lambda engine: engine.release(self.context, consumer="c"), 0, some)
        self.crash_everywhere(self.make_overdue, lambda engine: engine.expire(ADMIN), 0, others)

    def test_single_statements(self) -> None:
        if self.backend == "sqlite":
            self.skipTest("SQLite runs each call in several statements")
        self.crash_in_every_call(pods=(None, "p1"))
        self.engine.capacity.set_pod(ADMIN, "n1", None)
        chosen = self.spy_on_the_choice()
        self.reserve_anywhere(self.engine)
        self.assertEqual([True], chosen, "the server does not choose the provider")

    def spy_on_the_choice(self) -> list[bool]:
        """Whether the server chose the provider, for each claim with ANY from now on."""
        original, chosen = CapacityClaimer.reserve_anywhere, []

        def reserve_anywhere(*arguments: Any) -> Any:
            row = original(*arguments)
            chosen.append(row is not None)
            return row

        self.useFixture(
            MonkeyPatch("cyborg_quota.ledger.capacity_claims.CapacityClaimer.reserve_anywhere", reserve_anywhere)
        )
        return chosen

    def test_reserve_and_rollback_of_one_process(self) -> None:
        """The rollback knows the reservation, and on a server it is a single statement."""
        for amounts, pod in ((AMOUNTS, "p1"), ({"gpu": 3}, None)):

            def reserve_and_roll_back(engine: QuotaEngine, amounts: dict[str, int] = amounts) -> None:
                engine.reserve(self.context, amounts, consumer="c", provider="n1")
                engine.rollback(self.context, consumer="c")

            with self.subTest(pod=pod):
                self.crash_everywhere(lambda: None, reserve_and_roll_back, 0, pod)

    def test_several_statements(self) -> None:
        self.use_several_statements()
        self.crash_in_every_call(pods=("p1", None))

    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, a kill between two of them breaks C1 or I1."""
        self.use_several_statements()
        self.engine.capacity.set_pod(ADMIN, "n1", "p1")
        self.reserve()
        self.engine.rollback(self.context, consumer="c")
        for number in range(1, MOST_STATEMENTS):
            is_killed = self.crash_after(number, self.reserve, is_naive=True)
            self.assertTrue(is_killed, "no kill was detected")
            with self.sql.connect() as connection:
                if invariants.find_violations(connection):
                    return


def _kill_after(number: int, *, is_naive: bool) -> None:
    count = itertools.count(1)

    def after(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if is_naive:
            cursor.connection.commit()
        if _is_write(statement) and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "after_cursor_execute", after)


def _is_write(statement: str) -> bool:
    """Whether it can change something."""
    return statement.endswith(ATOMIC) or not (statement.startswith(READS) or statement in BEGIN)
