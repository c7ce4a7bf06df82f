# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a claim of capacity, and of what gives the capacity back.

Quota and capacity change together or not at all, and the repeated call completes.
"""

from __future__ import annotations

from collections.abc import Callable

import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, Inventory, QuotaEngine
from tests import base, hooks, invariants
from tests.faults import kill_points

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
AMOUNTS = {"gpu": 3, "fpga": 1}


class CrashTestCase(base.LedgerTestCase):
    def use_several_statements(self) -> None:
        """As on a server without single-statement transactions."""
        self.useFixture(MonkeyPatch("cyborg_quota.db.database.Database._run_single_statement", lambda *_: None))

    def crash(
        self, at: int | None, call: Callable[[QuotaEngine], object], *, is_naive: bool = False
    ) -> list[bool] | None:
        """Run ``call`` in a process that is killed after its write or COMMIT ``at``: see kill_points.run."""
        if self.backend == "sqlite":  # which allows no open connection during a fork
            self.engine.close()
        return kill_points.run(self.make_engine, call, at, is_naive=is_naive)

    def used(self) -> int:
        return sum(record.used for record in self.engine.capacity.list_inventories(ADMIN))


class TestCrash(CrashTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine.pods.add(ADMIN, "p1")
        self.engine.capacity.add_provider(ADMIN, "n1")
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(8), "fpga": Inventory(4)})

    def crash_everywhere(
        self, prepare: Callable[[], object], call: Callable[[QuotaEngine], object], used: int, pod: str | None
    ) -> None:
        """``used``: what is used after the complete call. ``pod``: that of the provider, which counts the claims."""
        self.engine.capacity.set_pod(ADMIN, "n1", pod)
        content = None
        points: list[int | None] = [0, None]  # the first kill is in a first use, which sends other statements
        for at in points:
            if content is None:
                prepare()
                content = hooks.tables(self.sql)
            ends = self.crash(at, call)
            kill_points.add(points, ends)
            if ends is None and hooks.tables(self.sql) == content:
                continue  # the next one is killed on the same content
            content = None
            self.assert_invariants()
            call(self.engine)
            self.assert_invariants()
            self.assertEqual(used, self.used(), f"after a kill at statement {at}")
            self.engine.release(self.context, consumer="c")
        self.assertGreater(len(points), 2, "no statement was sent")

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

    def test_reserve_and_rollback_of_one_process(self) -> None:
        """The rollback knows the reservation, and does not read it first."""
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
        points: list[int | None] = [None]
        for at in points:
            self.engine.release(self.context, consumer="c")
            ends = self.crash(at, self.reserve, is_naive=True)
            kill_points.add(points, ends)
            with self.sql.connect() as connection:
                if invariants.find_violations(connection):
                    return
        self.fail("no kill was detected")
