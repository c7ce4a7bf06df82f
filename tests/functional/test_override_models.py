# SPDX-License-Identifier: Apache-2.0
"""Overrides and the enforcement models: a change that the model forbids at any time is refused."""

from __future__ import annotations

from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.limits.models import StrictTwoLevel
from tests import base, fixtures
from tests.functional import test_overrides


class TestModels(test_overrides.OverridesTestCase):
    """strict_hierarchy: the limits of the children never sum up to more than the parent's, at any time."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.import_tree({"parent": None, "a": "parent", "b": "parent"}, {"parent": 10, "a": 4, "b": 6}, gpu=0)

    def test_it_must_fit_over_its_whole_span(self) -> None:
        self.assertIn("sum up to 11", self.refused("a", 5, 1, 2)[0])
        self.override("b", 1, 5, 9)
        self.override("a", 9, 5, 9)
        self.assertIn("sum up to 15", self.refused("a", 9, 4, 6)[0])
        self.assertIn(f"(from {self.time(9).isoformat(timespec='minutes')}"[:16], self.refused("a", 9, 6, 10)[0])
        self.override("parent", 20, 20, 30)
        self.override("a", 14, 21, 30)
        self.assertIn("sum up to 20", self.refused("parent", 15, 25, 26)[0])
        # Overrides that do not overlap may use the same room.
        for project_id in ("a", "b"):
            self.set(project_id, 0)
        for hour in range(40, 44):
            self.override("a" if hour % 2 else "b", 10, hour, hour + 1)
        self.assertIn("sum up to 20", self.refused("a", 10, 42.5, 42.75)[0])

    def test_every_later_change_is_checked_at_all_boundaries(self) -> None:
        parent = self.override("parent", 20, 5, 9)
        child = self.override("a", 14, 6, 8)
        self.assertRaises(exceptions.LimitRefused, self.set, "b", 7)
        refusals = [
            lambda: self.admin.cancel_overrides(base.ADMIN, [parent]),
            lambda: self.admin.set_overrides(base.ADMIN, {"gpu": 7}, "b", self.time(8), start=self.time(7)),
            lambda: self.admin.move_project(base.ADMIN, "c", "parent"),
            lambda: self.admin.import_limits(base.ADMIN, {"projects": [{"id": "parent", "children": [{"id": "c"}]}]}),
            lambda: self.admin.import_projects(base.ADMIN, {"parent": None, "c": "parent"}),
        ]
        self.make_tree({"c": None})
        self.override("c", 1, 7, 8)  # it fits nowhere below the parent then
        for call in refusals:
            before = self.rows()
            self.assertRaisesRegex(exceptions.LimitRefused, "sum up to", call)
            self.assertEqual(before, self.rows())
        self.admin.cancel_overrides(base.ADMIN, [parent, child])
        self.admin.import_limits(base.ADMIN, {"projects": [{"id": "parent", "children": [{"id": "d"}]}]})

    def test_a_default_is_checked_too(self) -> None:
        """A child without a limit of its own has the default, if that is the initial limit."""
        driver: Any = self.engine._driver
        driver.limit_driver.initial_limits = type(driver.limit_driver.initial_limits)(child=None)
        self.set("b", 0)
        self.make_tree({"c": "parent"})
        self.override("a", 8, 5, 6)
        self.set(None, 2)
        self.assertRaisesRegex(exceptions.LimitRefused, "sum up to 11", self.set, None, 3)

    def test_an_import_that_raises_the_parent(self) -> None:
        self.override("a", 1, 5, 6)
        before, entry = self.rows(), {"resource": "gpu", "limit": 5, "until": f"{self.time(2).isoformat()}Z"}

        def load(limit: int) -> Any:
            a = {"id": "a", "overrides": [entry]}
            raised = {"projects": [{"id": "parent", "limits": {"gpu": limit}, "children": [a]}]}
            return self.admin.import_limits(base.ADMIN, raised)

        self.assertRaisesRegex(exceptions.LimitRefused, "sum up to 11", load, 10)
        self.assertEqual(before, self.rows())
        self.assertEqual(2, len(load(11)))


class TestOtherModels(test_overrides.OverridesTestCase):
    scenarios = fixtures.ON_SQLITE
    policy = StrictTwoLevel

    def test_strict_two_level(self) -> None:
        self.import_tree({"parent": None, "a": "parent"}, {"parent": 10}, gpu=0)
        self.override("a", 10, 1, 2)
        self.assertIn("the limit of a in gpu would be 11", self.refused("a", 11, 1, 2)[0])
        self.assertRaises(exceptions.LimitRefused, self.set, "parent", 9)
