# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a claim that moves the binding of its project.

The binding and the claim change together or not at all, and the repeated call completes.
"""

from __future__ import annotations

import testscenarios

from cyborg_quota import ANY, SELECT, Inventory, QuotaEngine
from tests import base
from tests.faults import kill_points
from tests.faults import test_capacity_crash as capacity_crash

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
CONSISTENT = (("full", 0), ("free", 2))
"""The pod of the project and what it holds, before and after the claim."""


class TestCrash(capacity_crash.CrashTestCase):
    """The project is bound to the pod ``full``, and the claim needs the pod ``free``."""

    def setUp(self) -> None:
        super().setUp()
        for pod, total in (("full", 1), ("free", 9)):
            self.engine.pods.add(ADMIN, pod)
            self.engine.capacity.add_provider(ADMIN, pod, pod=pod)
            self.engine.capacity.set_inventories(ADMIN, pod, {"gpu": Inventory(total)})
        self.engine.reserve(base.Context("other"), {"gpu": 1}, provider="full")

    def claim(self, engine: QuotaEngine) -> None:
        engine.reserve(self.context, {"gpu": 2}, consumer="c", provider=ANY, pod=SELECT)

    def begin(self) -> None:
        self.engine.release(self.context, consumer="c")
        self.engine.pods.move_binding(ADMIN, "p1", "full")

    def state(self) -> tuple[str | None, int]:
        """The pod to which the project is bound (None: none), and what it holds."""
        bindings = self.engine.pods.list_bindings(ADMIN, "p1")
        self.assertLessEqual(len(bindings), 1)
        return (bindings[0][1].pod if bindings else None), self.used() - 1

    def test_a_move(self) -> None:
        points: list[int | None] = [0, None]  # the first kill is in a first use, which sends other statements
        for at in points:
            self.begin()
            ends = self.crash(at, self.claim)
            kill_points.add(points, ends)
            if at is None:
                self.assertGreater(len(ends or ()), 6)  # (only statements that write are counted)
            self.assert_invariants()
            self.assertIn(self.state(), CONSISTENT, f"after a kill at statement {at}")
            self.claim(self.engine)
            self.assert_invariants()
            self.assertEqual(("free", 2), self.state(), f"after a kill at statement {at}")

    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, the binding moves without the claim."""
        self.begin()
        self.claim(self.engine)  # makes the usage rows: the later calls all send the same statements
        points: list[int | None] = [None]
        for at in points:
            self.begin()
            ends = self.crash(at, self.claim, is_naive=True)
            kill_points.add(points, ends)
            if self.state() not in CONSISTENT:
                return
        self.fail("no kill was detected")
