# SPDX-License-Identifier: Apache-2.0
"""Random changes of limits and overrides, compared with a simple model."""

from __future__ import annotations

import random

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.limits import changes as limit_changes
from tests import base
from tests.functional.test_overrides import OverridesTestCase

load_tests = testscenarios.load_tests_apply_scenarios

CHANGES = {"sqlite": 60, "mariadb": 20, "postgresql": 20}


class TestRandom(OverridesTestCase):
    """After any changes, the limits are valid at every boundary, and those that apply are those of a simple model."""

    def test_random_changes(self) -> None:
        chance = random.Random(33)
        names = ["a", "b", "c", "d"]
        self.import_tree({"a": None, "b": "a", "c": "a", "d": "b"}, {"a": 30, "b": 10, "c": 10, "d": 5}, gpu=0)
        outcomes = {True: 0, False: 0}
        for _ in range(CHANGES[self.backend]):
            outcomes[self.change(chance, names)] += 1
            self.check_all()
        self.assertGreater(min(outcomes.values()), CHANGES[self.backend] // 12, outcomes)

    def change(self, chance: random.Random, names: list[str]) -> bool:
        project, limit = chance.choice(names), chance.choice([0, 2, 5, 8, 12, 20, 40])
        start = chance.randrange(10)
        live = self.admin.list_overrides(base.ADMIN)[0]
        try:
            turn = chance.random()
            if turn < 0.5:
                self.override(project, limit, start, start + chance.randint(1, 5))
            elif turn < 0.65 and live:
                self.admin.cancel_overrides(base.ADMIN, [chance.choice(live).id])
            elif turn < 0.75:
                self.admin.move_project(base.ADMIN, "d", chance.choice(["b", "c"]))
            elif turn < 0.85:
                self.let_hours_pass(chance.choice([1, 1, 30]))
            elif turn < 0.9:
                self.admin.purge_history(base.ADMIN, 0)
            else:
                self.set(project, limit)
        except exceptions.LimitRefused:
            return False
        return True

    def check_all(self) -> None:
        """By code of its own: at each boundary, the sum of the children's limits is within the parent's."""
        live, now = self.admin.list_overrides(base.ADMIN)
        tree = limit_changes.read_all(
            self.engine._driver._untimed, self.engine._driver.limit_driver.initial_limits
        ).tree
        moments = [now] if now is not None else []
        moments += [moment for one in live for moment in (one.starts_at, one.until) if now is None or moment > now]
        for moment in moments:
            limits = {name: tree.limit(name, "gpu") or 0 for name in tree.parents}
            for one in sorted(live, key=lambda one: one.made):
                if one.starts_at <= moment < one.until:
                    limits[one.project_id] = one.limit
            for parent in tree.parents:
                total = sum(limits[child] for child, above in tree.parents.items() if above == parent)
                self.assertLessEqual(total, limits[parent] if total else total, (moment, limits))
