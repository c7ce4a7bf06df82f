# SPDX-License-Identifier: Apache-2.0
"""Limits are checked at every moment at which an override begins or ends, at a cost that grows with their number."""

from __future__ import annotations

import datetime
import random
import unittest
from collections.abc import Collection

from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.limits.models import EnforcementModel, StrictHierarchy, StrictTwoLevel
from cyborg_quota.limits.timeline import Timeline, problems
from cyborg_quota.types import LimitOverride, ResourceKey, UsageKey
from cyborg_quota.types.limits import Violation

NOW = datetime.datetime(2026, 12, 1)
MINUTE = datetime.timedelta(minutes=1)
GPU = [ResourceKey("gpu")]


class CountingModel(StrictHierarchy):
    """Counts the projects that it is asked to check."""

    def __init__(self) -> None:
        self.checked = 0

    def problems(self, tree: LimitTree, projects: Collection[str], keys: Collection[ResourceKey]) -> list[Violation]:
        self.checked += len(projects)
        return super().problems(tree, projects, keys)


def override(number: int, project_id: str, limit: int, begin: int, end: int) -> LimitOverride:
    """An override that begins and ends these minutes after NOW."""
    return LimitOverride((1, number), project_id, "gpu", limit, NOW + begin * MINUTE, NOW + end * MINUTE)


class TestCost(unittest.TestCase):
    CHILDREN = 200

    def setUp(self) -> None:
        super().setUp()
        self.children = [f"c{number}" for number in range(self.CHILDREN)]
        parents: dict[str, str | None] = {"top": None, **dict.fromkeys(self.children, "top")}
        limits = {UsageKey("top", "gpu"): 10**6, **{UsageKey(child, "gpu"): 1 for child in self.children}}
        tree = LimitTree({}, limits, parents, InitialLimits())
        overrides = [override(number, child, 2, -1, number + 1) for number, child in enumerate(self.children)]
        self.timeline = Timeline(tree, overrides, NOW)
        self.model = CountingModel()

    def test_change_of_one_limit_checks_one_project_at_each_boundary(self) -> None:
        self.assertEqual([], problems(self.model, self.timeline, ["c0"], GPU))
        self.assertEqual(1 + len({NOW, *self.timeline.by_boundary()}), self.model.checked)
        self.timeline.tree.parents["other"] = None
        self.model.checked = 0
        self.assertEqual([], problems(self.model, self.timeline, ["other"], GPU))
        self.assertEqual(1, self.model.checked, "overrides of other families are not checked")

    def test_import_checks_each_override_where_it_begins_and_ends(self) -> None:
        self.assertEqual([], problems(self.model, self.timeline, self.timeline.tree.projects, GPU))
        self.assertEqual(1 + self.CHILDREN + 2 * self.CHILDREN, self.model.checked)


class CountedOverride(LimitOverride):
    """Counts how often the start of any of them is read."""

    reads = 0

    def __getattribute__(self, name: str) -> object:
        CountedOverride.reads += name == "starts_at"
        return super().__getattribute__(name)


class TestSweep(unittest.TestCase):
    def reads(self, number: int) -> int:
        """Check a change of a parent with this number of children, each with an override."""
        children = [f"c{index}" for index in range(number)]
        parents: dict[str, str | None] = {"top": None, **dict.fromkeys(children, "top")}
        tree = LimitTree({}, {UsageKey("top", "gpu"): 10**6}, parents, InitialLimits())
        spans = [(NOW + index * MINUTE, NOW + (index + 1) * MINUTE) for index in range(number)]
        overrides = [CountedOverride((1, index), children[index], "gpu", 2, *spans[index]) for index in range(number)]
        CountedOverride.reads = 0
        self.assertEqual([], problems(CountingModel(), Timeline(tree, overrides, NOW), ["top"], GPU))
        return CountedOverride.reads

    def test_the_cost_grows_with_the_number_of_overrides(self) -> None:
        self.assertLess(self.reads(400), 3 * self.reads(200))


class TestEveryViolationIsFound(unittest.TestCase):
    """Random trees: a change is refused exactly if the model finds a violation at one of the boundaries."""

    MODELS: tuple[EnforcementModel, ...] = (StrictHierarchy(), StrictTwoLevel())

    def test_random(self) -> None:
        refused = 0
        for seed in range(400):
            choice = random.Random(seed)
            model = self.MODELS[seed % 2]
            timeline = random_timeline(choice)
            changed = choice.sample(timeline.tree.projects, choice.choice((1, 2, 7)))
            expected = {
                str(problem)
                for limits in (timeline.tree, *map(timeline.at, [NOW, *timeline.by_boundary()]))
                for problem in model.problems(limits, changed, GPU)
            }
            found = {str(problem).split(" (from ")[0] for problem in problems(model, timeline, changed, GPU)}
            self.assertEqual(expected, found, seed)
            refused += bool(found)
        self.assertTrue(100 < refused < 300, refused)


def random_timeline(choice: random.Random) -> Timeline:
    """A tree of 7 projects with limits, and up to 8 overrides of which some have begun."""
    names = [f"p{number}" for number in range(7)]
    parents: dict[str, str | None] = {names[0]: None}
    for number, name in enumerate(names[1:], start=1):
        parents[name] = choice.choice([None, *names[:number]])
    limits = {UsageKey(name, "gpu"): choice.randrange(0, 6) * (8 if parents[name] is None else 1) for name in names}
    overrides = []
    for number in range(choice.randrange(9)):
        begin = choice.randrange(-5, 10)
        end = max(begin, 0) + choice.randrange(1, 9)
        overrides.append(override(number, choice.choice(names), choice.randrange(0, 9), begin, end))
    return Timeline(LimitTree({}, limits, parents, InitialLimits()), overrides, NOW)
