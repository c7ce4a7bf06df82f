# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a selection, or of a claim, that makes or moves a binding.

The project has its former binding or the next one, and never none; the binding and the claim change together or not at
all, and the repeated call completes.
"""

from __future__ import annotations

from collections.abc import Callable

import testscenarios

from cyborg_quota import ANY, SELECT, Inventory, QuotaEngine
from cyborg_quota.types.capacity import ResourceUse
from tests import base, on_sqlite
from tests.faults import kill_points

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
State = tuple[str | None, int]


class TestCrash(kill_points.KillTestCase):
    """The pod ``full`` has no unit left, and the pod ``free`` has 9."""

    def setUp(self) -> None:
        super().setUp()
        for pod, total in (("full", 1), ("free", 9)):
            self.engine.pods.add(ADMIN, pod)
            self.engine.capacity.add_provider(ADMIN, pod, pod=pod)
            self.engine.capacity.set_inventories(ADMIN, pod, {"gpu": Inventory(total)})
        self.engine.reserve(base.Context("other"), {"gpu": 1}, provider="full")
        self.engine.pods.set_usage(ADMIN, "full", {"gpu": ResourceUse(1, 1)})

    def select(self, engine: QuotaEngine) -> None:
        engine.pods.select(ADMIN, project_id="p1")

    def claim(self, engine: QuotaEngine) -> None:
        engine.reserve(self.context, {"gpu": 2}, consumer="c", provider=ANY, pod=SELECT)

    def begin(self) -> None:
        self.engine.release(self.context, consumer="c")
        self.engine.pods.move_binding(ADMIN, "p1", "full")

    def begin_unbound(self) -> None:
        if self.engine.pods.list_bindings(ADMIN, "p1"):
            self.engine.pods.end_binding(ADMIN, "p1")

    def state(self) -> State:
        """The pod to which the project is bound (None: none), and what it holds."""
        bindings = self.engine.pods.list_bindings(ADMIN, "p1")
        self.assertLessEqual(len(bindings), 1)
        held = self.engine.get_usages(ADMIN, "p1")["gpu"].reserved
        return (bindings[0][1].pod if bindings else None), held

    def crash_everywhere(
        self, begin: Callable[[], None], call: Callable[[QuotaEngine], None], before: State, after: State
    ) -> None:
        for kill in self.kills(begin, call, first=[0]):
            self.assertIn(self.state(), (before, after), kill)
            if kill.has_effect:
                self.assert_invariants()
                call(self.engine)
                self.assert_invariants()
                self.assertEqual(after, self.state(), kill)

    def test_a_first_binding_and_a_move(self) -> None:
        self.crash_everywhere(self.begin_unbound, self.select, (None, 0), ("free", 0))
        self.crash_everywhere(self.begin, self.select, ("full", 0), ("free", 0))

    def test_a_claim(self) -> None:
        self.crash_everywhere(self.begin, self.claim, ("full", 0), ("free", 2))

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, a kill leaves another state."""
        for call, held in ((self.select, 0), (self.claim, 2)):
            states = {self.state() for _ in self.kills(self.begin, call, is_naive=True)}
            self.assertLess({("full", 0), ("free", held)}, states)
