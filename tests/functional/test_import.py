# SPDX-License-Identifier: Apache-2.0
"""Documents of limits and projects are imported in one transaction or not at all; on every database."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import fixtures as fx

from cyborg_quota import exceptions
from cyborg_quota.db import projects
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits import document
from cyborg_quota.limits.changes import LimitChanges
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.models import StrictHierarchy
from cyborg_quota.types import ResourceKey
from cyborg_quota.types.limits import Violation
from tests import base, fixtures, hooks, on_sqlite
from tests.functional import test_limits

EXAMPLE = """
defaults: {gpu: 0}
projects:
- id: atlas
  limits: {gpu: 100}
  children:
  - {id: operations, limits: {gpu: 70}}
  - {id: physics, limits: {gpu: 30}, children: [{id: higgs, limits: {gpu: 10}}]}
"""


class ImportTestCase(test_limits.LimitsTestCase):
    def take(self, text: str, **changes: Any) -> list[str]:
        """Import a document; returns the changes as short lines."""
        found = self.admin.import_limits(base.ADMIN, document.parse(text), **changes)
        self.assert_invariants()
        return [
            f"{change.action} {change.project_id} {change.resource} {change.before} {change.after}" for change in found
        ]

    def refused(self, text: str, **changes: Any) -> list[str]:
        before = hooks.tables(self.sql)
        error = self.assertRaises(exceptions.LimitRefused, self.take, text, **changes)
        self.assertEqual(before, hooks.tables(self.sql))
        return error.problems


class SlowModel(StrictHierarchy):
    """An enforcement model that takes as long as in a large cloud."""

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        time.sleep(1.6)
        return super().problems(tree, projects, keys)


class TestLargeCloud(ImportTestCase):
    scenarios = fixtures.SCENARIOS[1:]
    policy = SlowModel

    def test_a_limit_change_may_pause_inside_its_transaction(self) -> None:
        """It takes longer than the idle-in-transaction timeout of the calls that charge (here: a second)."""
        admin = self.make_limited(statement_timeout_seconds=1).limits
        admin.import_limits(base.ADMIN, {"projects": [{"id": "atlas", "limits": {"gpu": 100}}]})
        admin.set_limit(base.ADMIN, "gpu", 50, "atlas")
        admin.add_project(base.ADMIN, "physics", "atlas")
        self.assert_invariants()


class TestImport(ImportTestCase):
    def test_from_nothing_and_back(self) -> None:
        """A dry run reports the same, and writes nothing."""
        expected = [
            "set limit None gpu None 0",
            "add project atlas None None None",
            "set limit atlas gpu None 100",
            "add project operations None None atlas",
            "set limit operations gpu None 70",
            "add project physics None None atlas",
            "set limit physics gpu None 30",
            "add project higgs None None physics",
            "set limit higgs gpu None 10",
        ]
        self.assertEqual([], self.take("{}"))
        before = hooks.tables(self.sql)
        self.assertRaises(exceptions.UnknownResource, self.take, "defaults: {tpu: 1}")
        self.assertEqual(expected, self.take(EXAMPLE, dry_run=True))
        self.assertEqual(before, hooks.tables(self.sql))
        self.assertEqual(expected, self.take(EXAMPLE))
        self.assertEqual(document.parse(EXAMPLE), self.admin.export_limits(base.ADMIN))
        self.assertEqual([], self.take(document.render(self.admin.export_limits(base.ADMIN))))

    @on_sqlite
    def test_limits_are_checked_together(self) -> None:
        """One by one, some limits would be refused, depending on their order. All problems are listed."""
        for text in (EXAMPLE, EXAMPLE.replace("gpu: 70", "gpu: 40").replace("gpu: 30", "gpu: 60"), EXAMPLE):
            self.take(text)
        bad = EXAMPLE.replace("gpu: 30", "gpu: 31").replace("gpu: 10}", "gpu: 32}").replace("gpu: 0", "gpu: 5")
        for dry_run in (False, True):
            of_atlas, of_physics = self.refused(bad, dry_run=dry_run)
            self.assertIn("children of atlas would sum up to 101", of_atlas)
            self.assertIn("children of physics would sum up to 32", of_physics)
        self.hold("higgs", 5)
        move = "projects: [{id: top, limits: {gpu: 3}, children: [{id: higgs}]}]"
        self.assertIn("children of top would sum up to 10", self.refused(move)[0])
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.changes.MAX_DEPTH", 3))
        self.assertEqual(
            ["project higgs would lie at level 4; at most 3 are possible"],
            self.refused("projects: [{id: top, limits: {gpu: 100}, children: [{id: atlas}]}]"),
        )

    def test_a_minimum_that_is_set_between_its_transactions(self) -> None:
        """The total cannot keep it any more: the error says what is set nevertheless."""
        self.take(EXAMPLE + "total: {gpu: 50}")
        set_totals = LimitChanges.set_totals

        def overtaken(*arguments: Any, **options: Any) -> None:
            if arguments[1] == {"gpu": 4}:
                self.admin.set_minimums(base.ADMIN, {"gpu": 6}, "higgs")
            set_totals(*arguments, **options)

        self.patch(LimitChanges, "set_totals", overtaken)
        text = "{total: {gpu: 4}, projects: [{id: other, limits: {gpu: 7}}]}"
        error = self.assertRaises(exceptions.LimitRefused, self.take, text)
        self.assertIn("0 are used there, and 6 more are promised to minimums. The limits of projects", str(error))
        self.assertNotIn("Nothing was changed", str(error))
        limits = [one.limit for one in self.admin.list_limits(base.ADMIN, "other") if one.is_own]
        self.assertEqual(([7], [50]), (limits, [total.limit for total in self.admin.list_total_limits(base.ADMIN)]))

    def test_a_project_that_is_first_charged_during_the_import(self) -> None:
        """It becomes known after the comparison and before the INSERT: then it is moved instead."""
        bare = projects.insert_many

        def insert_after_charge(connection: Any, *args: Any) -> None:
            self.patch(projects, "insert_many", bare)
            projects.ensure(connection, "higgs")
            bare(connection, *args)

        self.patch(projects, "insert_many", insert_after_charge)
        self.take(EXAMPLE)
        self.assertIn(("higgs", "physics"), self.admin.list_projects(base.ADMIN))


class TestBatches(ImportTestCase):
    """Between two batches of an import of the tree, others change what it was compared with."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(limit_changes, "BATCH_PROJECTS", 1)
        self.take("projects: [{id: p, limits: {gpu: 100}}, {id: c1, limits: {gpu: 50}}, {id: c2, limits: {gpu: 50}}]")

    def test_a_limit_is_lowered(self) -> None:
        """The children do not exceed it together."""
        error = self.assertRaises(
            exceptions.LimitRefused,
            self.admin.import_projects,
            base.ADMIN,
            {"c1": "p", "c2": "p"},
            progress=lambda _size: self.set("p", 50),
        )
        self.assertRegex(str(error), "(?s)sum up to 100.*1 of 2 projects were added or moved.")
        self.assertEqual({"c1": "p", "c2": None, "p": None}, dict(self.admin.list_projects(base.ADMIN)))

    def test_the_parent_is_moved_down(self) -> None:
        chain = {f"d{level}": f"d{level - 1}" if level else None for level in range(7)}
        self.make_tree({**chain, "p2": None})
        error = self.assertRaises(
            exceptions.ProjectRefused,
            self.admin.import_projects,
            base.ADMIN,
            {"c1": "d0", "c2": "p2"},
            progress=lambda _size: self.admin.move_project(base.ADMIN, "p2", "d6"),
        )
        self.assertIn("level 9 of 8", str(error))
        self.assert_invariants()
