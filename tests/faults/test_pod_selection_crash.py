# SPDX-License-Identifier: Apache-2.0
"""A process is killed after each write, and after the COMMIT, of a selection that creates or moves a binding.

The project has its former binding or the next one, and never none, and the repeated call completes.
"""

from __future__ import annotations

import testscenarios

from cyborg_quota import QuotaEngine
from cyborg_quota.types.capacity import ResourceUse
from tests import base, hooks
from tests.faults import test_capacity_crash as capacity_crash

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN


class TestCrash(capacity_crash.CrashTestCase):
    def setUp(self) -> None:
        super().setUp()
        for pod in ("full", "free"):
            self.engine.pods.add(ADMIN, pod)
        self.engine.pods.set_usage(ADMIN, "full", {"gpu": ResourceUse(1, 1)})

    def select(self, engine: QuotaEngine) -> str | None:
        return engine.pods.select(ADMIN, project_id="p1").pod

    def bindings(self, *, history: bool = False) -> list[tuple[str | None, str]]:
        found = self.engine.pods.list_bindings(ADMIN, "p1", history=history)
        return [(one.pod, one.reason) for _, one in found]

    def crash_until_committed(self) -> int:
        """Kill the process after each write in turn, and at last after the COMMIT, the first kill that has an effect.

        Returns the number of kills without one.
        """
        before = hooks.tables(self.sql)
        kills = 0
        while hooks.tables(self.sql) == before:
            self.assertIsNone(self.crash(kills, self.select), f"there is no write {kills}")
            kills += 1
        return kills - 1

    def test_first_binding_and_move(self) -> None:
        self.assertGreaterEqual(self.crash_until_committed(), 2, "lock the pod, insert")
        self.assertEqual([("free", "first")], self.bindings())
        self.engine.pods.move_binding(ADMIN, "p1", "full")
        self.assertGreaterEqual(self.crash_until_committed(), 3, "lock the pod, end, insert")
        self.assertEqual([("free", "full")], self.bindings())
        self.assertEqual("free", self.select(self.engine))
        self.assertEqual(["free", "full", "free"], [pod for pod, _ in self.bindings(history=True)])

    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, a kill after the end of the former binding leaves none."""
        self.engine.pods.move_binding(ADMIN, "p1", "full")
        before, kills = self.bindings(), 0
        while self.bindings() == before:
            self.assertIsNone(self.crash(kills, self.select, is_naive=True), "no kill was detected")
            kills += 1
        self.assertEqual([], self.bindings())
