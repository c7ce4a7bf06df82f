# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a selection, or of a claim, that makes or moves a binding.

The project has its former binding or the next one, and never none; the binding and the claim change together or not at
all, and the repeated call completes. (The control is that of test_capacity_crash.py.)
"""

from __future__ import annotations

import testscenarios

from cyborg_quota import ANY, SELECT, QuotaEngine
from cyborg_quota.types.capacity import ResourceUse
from tests import base
from tests.base import ADMIN
from tests.faults import kill_points

load_tests = testscenarios.load_tests_apply_scenarios


class TestCrash(kill_points.KillTestCase):
    def test_a_first_binding_and_a_move(self) -> None:
        """The pod ``full`` has no unit left, and the pod ``free`` has 9."""
        for pod, total in (("full", 1), ("free", 9)):
            self.engine.pods.add(ADMIN, pod)
            self.add_provider(pod, pod=pod, gpu=total)
        self.engine.reserve(base.Context("other"), {"gpu": 1}, provider="full")
        self.engine.pods.set_usage(ADMIN, "full", {"gpu": ResourceUse(1, 1)})

        def begin_unbound() -> None:
            if self.engine.pods.list_bindings(ADMIN, "p1"):
                self.engine.pods.end_binding(ADMIN, "p1")

        def begin() -> None:
            self.engine.release(self.context, consumer="c")
            self.engine.pods.move_binding(ADMIN, "p1", "full")

        def select(engine: QuotaEngine) -> None:
            engine.pods.select(ADMIN, project_id="p1")

        def claim(engine: QuotaEngine) -> None:
            engine.reserve(self.context, {"gpu": 2}, consumer="c", provider=ANY, pod=SELECT)

        for prepare, call, before, after in (
            (begin_unbound, select, (None, 0), ("free", 0)),
            (begin, select, ("full", 0), ("free", 0)),
            (begin, claim, ("full", 0), ("free", 2)),
        ):
            for kill in self.kills(prepare, call, first=[0]):
                self.assertIn(self.state(), (before, after), kill)
                if kill.has_effect:
                    self.assert_invariants()
                    call(self.engine)
                    self.assert_invariants()
                    self.assertEqual(after, self.state(), kill)

    def state(self) -> tuple[str | None, int]:
        """The pod to which the project is bound (None: none), and what it holds."""
        bindings = self.engine.pods.list_bindings(ADMIN, "p1")
        self.assertLessEqual(len(bindings), 1)
        held = self.engine.get_usages(ADMIN, "p1")["gpu"].reserved
        return (bindings[0][1].pod if bindings else None), held
