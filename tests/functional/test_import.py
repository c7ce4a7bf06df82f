# SPDX-License-Identifier: Apache-2.0
"""Whole documents of limits and projects: imported in one transaction or not at all; on every database."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from typing import Any

import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import projects
from cyborg_quota.limits import document
from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.limits.models.flat import Flat
from cyborg_quota.limits.models.strict_hierarchy import StrictHierarchy
from tests import base, fixtures
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

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
        """Import; returns the changes as short lines."""
        found = self.admin.import_limits(base.ADMIN, document.parse(text), **changes)
        self.assert_invariants()
        return [
            " ".join(str(word) for word in (one.action, one.project_id, one.resource, one.before, one.after))
            for one in found
        ]

    def refused(self, text: str, **changes: Any) -> list[str]:
        before = self.state()
        error = self.assertRaises(exceptions.LimitRefused, self.take, text, **changes)
        self.assertEqual(before, self.state())
        return error.problems

    def state(self) -> Any:
        """Everything an import might write, but times."""
        with self.sql.connect() as connection:
            return [
                connection.exec_driver_sql(f"SELECT {columns} FROM {table} ORDER BY 1, 2").all()
                for table, columns in (
                    ("projects", "project_id, parent_id, generation"),
                    ("quota_usages", "project_id, resource, used, reserved, subtree, generation"),
                    ("limit_defaults", "resource, most"),
                    ("project_limits", "project_id, resource, most"),
                )
            ]

    def subtrees(self) -> dict[str, int]:
        return {row.project_id: row.subtree for row in self.admin.tree(base.ADMIN) if row.subtree}


class SlowPolicy(StrictHierarchy):
    """Thinks as long as that of a large cloud may."""

    def problems(self, tree: LimitTree, projects: Collection[str], resources: Collection[str]) -> list[str]:
        time.sleep(1.6)
        return super().problems(tree, projects, resources)


class TestLargeCloud(ImportTestCase):
    scenarios = fixtures.SCENARIOS[1:]
    policy = SlowPolicy

    def test_a_change_may_think_inside_its_transaction(self) -> None:
        """Longer than a server waits for the next word of those who charge (here: a second)."""
        admin = self.make_limited(statement_timeout_seconds=1).administration
        admin.import_limits(base.ADMIN, {"projects": [{"id": "atlas", "limits": {"gpu": 100}}]})
        admin.set_limit(base.ADMIN, "gpu", 50, "atlas")
        admin.add_project(base.ADMIN, "physics", "atlas")
        self.assert_invariants()


class TestImport(ImportTestCase):
    def test_from_nothing_and_back(self) -> None:
        self.assertEqual(
            [
                "set limit None gpu None 0",
                "add project atlas None None None",
                "set limit atlas gpu None 100",
                "add project operations None None atlas",
                "set limit operations gpu None 70",
                "add project physics None None atlas",
                "set limit physics gpu None 30",
                "add project higgs None None physics",
                "set limit higgs gpu None 10",
            ],
            self.take(EXAMPLE),
        )
        self.assertEqual(document.parse(EXAMPLE), self.admin.export_limits(base.ADMIN))
        before = self.state()
        self.assertEqual([], self.take(document.render(self.admin.export_limits(base.ADMIN))))
        self.assertEqual(before[0], self.state()[0])

    def test_what_the_file_does_not_mention_stays(self) -> None:
        self.take(EXAMPLE)
        self.grow({"other": None, "small": "higgs"})
        self.assertEqual(["set limit atlas gpu 100 120"], self.take("projects: [{id: atlas, limits: {gpu: 120}}]"))
        self.assertEqual(6, len(self.admin.list_projects(base.ADMIN)))

    def test_limits_are_judged_as_they_will_be_together(self) -> None:
        """One by one, each of these would be refused or not by its order; as a whole they fit."""
        self.take(EXAMPLE)
        self.take(EXAMPLE.replace("gpu: 70", "gpu: 40").replace("gpu: 30", "gpu: 60"))
        self.take(EXAMPLE)

    def test_every_problem_is_listed_and_nothing_written(self) -> None:
        self.take(EXAMPLE)
        bad = EXAMPLE.replace("gpu: 30", "gpu: 31").replace("gpu: 10}", "gpu: 32}").replace("gpu: 0", "gpu: 5")
        for dry_run in (False, True):
            problems = self.refused(bad, dry_run=dry_run)
            self.assertEqual(2, len(problems), problems)
            self.assertIn("children of atlas would sum up to 101", problems[0])
            self.assertIn("children of physics would sum up to 32", problems[1])

    def test_a_refused_move_leaves_usage_alone(self) -> None:
        self.take(EXAMPLE)
        self.hold("higgs", 5)
        bad = "projects: [{id: top, limits: {gpu: 3}, children: [{id: higgs}]}]"
        self.assertIn("children of top would sum up to 10", self.refused(bad)[0])

    def test_a_dry_run_says_the_same_and_writes_nothing(self) -> None:
        before = self.state()
        told = self.take(EXAMPLE, dry_run=True)
        self.assertEqual(before, self.state())
        self.assertEqual(told, self.take(EXAMPLE))

    def test_too_deep(self) -> None:
        engine = self.make_limited(max_depth=3)
        self.admin = engine.administration
        self.take(EXAMPLE)
        self.assertEqual(
            ["project higgs would lie at level 4; [limits] max_depth is 3"],
            self.refused("projects: [{id: top, limits: {gpu: 100}, children: [{id: atlas}]}]"),
        )

    def test_bad_ones(self) -> None:
        self.assertRaises(exceptions.UnknownResource, self.take, "defaults: {tpu: 1}")
        self.assertRaises(exceptions.InvalidDocument, self.take, "projects: [{id: a}, {id: a}]")
        self.assertRaises(exceptions.NotAuthorized, self.admin.import_limits, self.context, {})
        self.assertRaises(exceptions.NotAuthorized, self.admin.export_limits, self.context)
        self.assertEqual([], self.take("{}"))

    def test_a_project_that_is_first_charged_meanwhile(self) -> None:
        """It was to be added, and is known by the time of the INSERT: it is moved then."""
        others = iter(["higgs"])
        bare = projects.insert_many

        def late(connection: Any, *args: Any) -> None:
            for project_id in others:
                projects.ensure(connection, project_id)
            bare(connection, *args)

        self.patch(projects, "insert_many", late)
        self.take(EXAMPLE)
        self.assertIn(("higgs", "physics"), self.admin.list_projects(base.ADMIN))


class TestImportedMoves(ImportTestCase):
    policy = Flat

    def make_limited(self, **changes: Any) -> QuotaEngine:
        """With the default for children too: what is looked at here is what they hold."""
        engine = super().make_limited(**changes)
        driver: Any = engine._driver
        driver.limits.initial_limits = InitialLimits(child=None)
        return engine

    def test_a_flat_cloud_gets_a_tree(self) -> None:
        self.set(None, 100)
        for project_id, amount in (("a", 1), ("b", 2), ("c", 4)):
            self.hold(project_id, amount)
        self.take("projects: [{id: new, children: [{id: a, children: [{id: b}]}, {id: empty, children: [{id: c}]}]}]")
        self.assertEqual({"new": 7, "a": 3, "b": 2, "empty": 4, "c": 4}, self.subtrees())
        self.hold("c", 1)  # along rows that its engine has not seen
        self.assertEqual(8, self.subtrees()["new"])

    def test_upside_down(self) -> None:
        self.set(None, 100)
        self.grow({"a": None, "b": "a", "c": "b"})
        for project_id, amount in (("a", 1), ("b", 2), ("c", 4)):
            self.hold(project_id, amount)
        self.take("projects: [{id: c, children: [{id: b, children: [{id: a}]}]}]")
        self.assertEqual({"c": 7, "b": 3, "a": 1}, self.subtrees())
        self.hold("a", 8)
        self.assertEqual({"c": 15, "b": 11, "a": 9}, self.subtrees())

    def test_any_tree_into_any_other(self) -> None:
        """Projects that hold, in flight too, thrown from tree to tree; other engines go on with what they remember."""
        self.set(None, 1000)
        self.set(None, 1000, "fpga")
        chance = random.Random(3)
        names = [f"p{number}" for number in range(9)]
        other = self.make_limited()
        for turn in range(12):
            for project_id in chance.sample(names, 3):
                resource = chance.choice(["gpu", "fpga"])
                uuids = other.reserve(base.Context(project_id), {resource: chance.randint(1, 5)})
                if chance.random() < 0.5:
                    other.commit(base.Context(project_id), uuids)
            mentioned = chance.sample([*names, f"new{turn}"], chance.randint(2, 9))
            self.admin.import_limits(base.ADMIN, {"projects": any_forest(chance, mentioned)})
            self.assert_invariants()
        self.assertEqual([], other.audit(base.ADMIN))


def any_forest(chance: random.Random, names: list[str]) -> list[dict[str, Any]]:
    """These projects in a tree or several."""
    roots: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for name in names:
        entry: dict[str, Any] = {"id": name}
        above = chance.choice([None, *entries[-3:]])
        (roots if above is None else above.setdefault("children", [])).append(entry)
        entries.append(entry)
    return roots
