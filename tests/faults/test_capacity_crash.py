# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a claim of capacity, and of what changes or ends the claim.

Quota and capacity change together or not at all, and the repeated call completes.
"""

from __future__ import annotations

from collections.abc import Callable

import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, QuotaEngine
from tests import base, invariants, on_sqlite
from tests.base import ADMIN
from tests.faults import kill_points

load_tests = testscenarios.load_tests_apply_scenarios

AMOUNTS = {"gpu": 3, "fpga": 1}
Figures = tuple[int, int]


class TestCrash(kill_points.KillTestCase):
    settings = {"batch_rows": 1}  # an expiry of two resources takes several transactions

    def setUp(self) -> None:
        super().setUp()
        self.engine.pods.add(ADMIN, "p1")
        self.add_provider("n1", gpu=8, fpga=4)

    def crash_everywhere(
        self,
        prepare: Callable[[], object],
        call: Callable[[QuotaEngine], object],
        expected: Figures,
        pod: str | None,
        received: Figures = (0, 0),
    ) -> None:
        """``expected``: the figures of gpu after the call; ``received``: those of the project p2.

        ``pod``: that of the provider, which counts the claims.
        """

        def begin() -> None:
            self.end_claims()
            prepare()

        self.end_claims()
        self.engine.capacity.set_provider(ADMIN, "n1", pod=pod)
        for kill in self.kills(begin, call, first=[0]):
            if not kill.has_effect:
                continue
            self.assert_invariants()
            call(self.engine)
            self.assert_invariants()
            self.assertEqual((expected, received), (self.figures(), self.figures("p2")), kill)
            (gpu,) = self.engine.capacity.list_inventories(ADMIN, resource="gpu")
            self.assertEqual(sum((*expected, *received)), gpu.used, kill)

    def end_claims(self) -> None:
        for project_id in ("p1", "p2"):
            self.engine.release(base.Context(project_id), consumer="c")

    def reserve(self, engine: QuotaEngine | None = None) -> None:
        (engine or self.engine).reserve(self.context, AMOUNTS, consumer="c", provider="n1")

    def commit(self) -> None:
        self.reserve()
        self.engine.commit(self.context, consumer="c")

    def release(self, engine: QuotaEngine) -> None:
        engine.release(self.context, consumer="c")

    def nothing(self) -> None:
        """The call needs nothing."""

    def test_every_call(self) -> None:
        """In single statements, but on SQLite. The pod changes in turns: other statements make and end its claims."""
        uuids: list[str] = []

        def have_overdue() -> None:
            self.reserve()
            self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE live = 1")

        def reserve_and_roll_back(engine: QuotaEngine) -> None:
            """The rollback knows the reservation, and does not read it first."""
            self.reserve(engine)
            engine.rollback(self.context, consumer="c")

        def reserve_without_a_name() -> None:
            uuids[:] = self.engine.reserve(self.context, {"gpu": 2}, provider="n1")

        reserve_anywhere = lambda engine: engine.reserve(self.context, {"gpu": 4}, consumer="c", provider=ANY)  # noqa: E731
        resize = lambda engine: engine.resize(ADMIN, {"gpu": 4, "fpga": 1}, "p1", consumer="c")  # noqa: E731
        transfer = lambda engine: engine.transfer(ADMIN, "p2", "p1", consumer="c")  # noqa: E731
        name = lambda engine: engine.commit(ADMIN, uuids, known_as="c")  # noqa: E731
        self.crash_everywhere(self.nothing, self.reserve, (0, 3), "p1")
        self.crash_everywhere(self.nothing, reserve_anywhere, (0, 4), None)
        self.crash_everywhere(self.reserve, lambda engine: engine.rollback(self.context, consumer="c"), (0, 0), "p1")
        self.crash_everywhere(self.nothing, reserve_and_roll_back, (0, 0), "p1")
        self.crash_everywhere(self.commit, self.release, (0, 0), None)
        self.crash_everywhere(have_overdue, lambda engine: engine.expire(ADMIN), (0, 0), "p1")
        self.crash_everywhere(self.reserve, resize, (0, 4), None)
        self.crash_everywhere(self.reserve, transfer, (0, 0), None, received=(0, 3))
        self.crash_everywhere(reserve_without_a_name, name, (2, 0), None)

    def test_several_statements(self) -> None:
        """As on a server without single-statement transactions."""
        if self.backend == "sqlite":
            self.skipTest("SQLite runs each call in several statements")
        self.useFixture(MonkeyPatch("cyborg_quota.db.database.Database._run_single_statement", lambda *_: None))
        self.crash_everywhere(self.nothing, self.reserve, (0, 3), None)
        self.crash_everywhere(self.commit, self.release, (0, 0), "p1")

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, a kill between two of them breaks C1 or I1."""
        self.engine.capacity.set_provider(ADMIN, "n1", pod="p1")
        self.reserve()
        for _ in self.kills(lambda: self.release(self.engine), self.reserve, is_naive=True):
            with self.sql.connect() as connection:
                if invariants.find_violations(connection):
                    return
        self.fail("no kill was detected")
