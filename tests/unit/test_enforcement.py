# SPDX-License-Identifier: Apache-2.0
"""Which constraints a request would violate, without a database."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.db import charges, usages
from cyborg_quota.db.path_state import ProjectPath
from cyborg_quota.db.usages import Node
from cyborg_quota.ledger import enforcement
from cyborg_quota.ledger.project_limits import Charge
from cyborg_quota.types import MAX_AMOUNT, RESERVED, TOTAL, Constraint, Counters, Over, ResourceKey, UsageKey

names = st.sampled_from(("p", "root"))
resources = st.sampled_from(("gpu", "fpga"))
pods = st.sampled_from(("", "p1"))
constraints = st.lists(
    st.builds(Constraint, names, resources, st.integers(-1, 12), st.sampled_from(("project", "subtree")), pods),
    max_size=8,
)
figures = st.dictionaries(
    st.builds(UsageKey, names, resources, pods),
    st.builds(Counters, st.integers(0, 6), st.integers(0, 6), st.integers(0, 12)),
    max_size=5,
)
requests = st.dictionaries(st.builds(ResourceKey, resources, pods), st.integers(1, 9))


class TestFindViolations(base.BaseTestCase):
    @settings(suppress_health_check=list(HealthCheck))  # (on a busy machine, it takes long to make the inputs)
    @given(constraints, figures, requests)
    def test_agrees_with_the_bounds_of_the_charge(
        self,
        given_constraints: list[Constraint],
        given_figures: dict[UsageKey, Counters],
        request: dict[ResourceKey, int],
    ) -> None:
        """The violations are found exactly if the conditional UPDATE would refuse the request."""
        nodes = {key: tuple(Node(0, name, *key[:1], 0, 0, key.pod) for name in ("p", "root")) for key in request}
        changes = Charge("p", request, ProjectPath(["p", "root"], nodes), given_constraints).postings(request, RESERVED)
        refuses = False
        for change in changes:
            now = given_figures.get(change.node.key, Counters())
            *_, max_held, max_subtree, _, _, _ = usages.values(change)
            refuses |= now.used + now.reserved > max_held or now.subtree > max_subtree
        found = enforcement.find_violations("p", given_constraints, given_figures, request)
        self.assertEqual(refuses, bool(found))
        self.assertEqual(sorted(found, key=lambda over: (over, over.pod or "")), found)


class TestTransfers(base.BaseTestCase):
    """A transfer exceeds a limit exactly if the row counts more afterwards, and more than the limit."""

    PROJECTS = "abcdef"

    def test_random_trees(self) -> None:
        chance, number = random.Random(5), 0
        for _ in range(2_000):
            parents = {name: chance.choice([TOTAL, *self.PROJECTS[:index]]) for index, name in enumerate(self.PROJECTS)}
            used = {name: chance.randint(0, 4) for name in self.PROJECTS}
            least = {name: chance.choice([0, 0, chance.randint(1, 8)]) for name in self.PROJECTS}
            sender, receiver = chance.sample(self.PROJECTS, 2)
            amount = chance.randint(0, used[sender])
            before = self.counters(parents, used, least)
            after = self.counters(
                parents, {**used, sender: used[sender] - amount, receiver: used[receiver] + amount}, least
            )
            limits = {name: chance.randint(0, 12) for name in (*self.PROJECTS, TOTAL)}
            paths = {name: self.path(parents, name) for name in (sender, receiver)}
            bounds = [Constraint(name, "gpu", limits[name], "subtree") for name in paths[receiver]]
            bounds.append(Constraint(TOTAL, "gpu", limits[TOTAL], "total"))
            request = {ResourceKey("gpu"): amount}
            freed = charges.freed(paths[sender], before, request)
            found = enforcement.find_violations(receiver, bounds, before, request, paths[receiver], freed=freed)
            expected = {
                key.project_id: row.counted
                for key, row in after.items()
                if key.project_id in (*paths[receiver], TOTAL)
                and row.counted > max(before[key].counted, limits[key.project_id])
            }
            self.assertEqual(
                expected,
                {over.project_id: before[over.key].counted + amount - over.kept for over in found},
                (parents, used, least, sender, receiver, amount),
            )
            number += bool(expected)
        self.assertGreater(number, 100)

    @staticmethod
    def path(parents: dict[str, str], name: str) -> list[str]:
        path = [name]
        while parents[path[-1]] != TOTAL:
            path.append(parents[path[-1]])
        return path

    @staticmethod
    def counters(parents: dict[str, str], used: dict[str, int], least: dict[str, int]) -> dict[UsageKey, Counters]:
        """What each project and the total must count (G1). (A parent is before its children.)"""
        in_use, counted = {**used, TOTAL: 0}, {**used, TOTAL: 0}
        for name in reversed(parents):
            in_use[parents[name]] += in_use[name]
            counted[parents[name]] += max(counted[name], least[name])
        return {
            UsageKey(name, "gpu"): Counters(
                used.get(name, 0), 0, in_use[name], counted[name] - in_use[name], least.get(name, 0)
            )
            for name in in_use
        }


class TestText(base.BaseTestCase):
    """The refusal names descendants only if there are some, or if the limit is that of an ancestor."""

    def test_each(self) -> None:
        """What who sees all, and the user of the project p, is told."""
        plain = "project p, resource gpu: limit 5, used 3, reserved 1, requested 2"
        own = "project p, resource gpu: limit 5 (project and its descendants), used 0, reserved 1,"
        above = "project root, resource gpu: limit 5 (project and its descendants),"
        for owner, held, expected, redacted in (
            ("p", Counters(3, 1, 4), plain, plain),
            ("p", Counters(0, 1, 4), f"{own} subtree 4, requested 2", f"{own} requested 2"),
            ("root", Counters(4, 0, 4), f"{above} used 4, reserved 0, subtree 4, requested 2", f"{above} requested 2"),
        ):
            limit = Constraint(owner, "gpu", 5, "subtree")
            found = enforcement.find_violations("p", [limit], {UsageKey(owner, "gpu"): held}, {ResourceKey("gpu"): 2})
            self.assertEqual(
                [[expected], [redacted]], [[*map(str, found)], [*map(str, enforcement.redact(found, ["p", "root"]))]]
            )


class TestRedact(base.BaseTestCase):
    def test_of_each_resource_the_one_with_the_least_room(self) -> None:
        near, far = Over("mid", "gpu", "subtree", 9, 9, 0, 0, 8), Over("a", "gpu", "subtree", 7, 9, 0, 0, 7)
        other = Over("a", "fpga", "subtree", 7, 9, 0, 0, 7)
        exceeded = Over("mid", "gpu", "subtree", 5, 9, 0, 0, 8)  # (nothing fits: it does not matter by how much)
        for violations, expected in (
            ([near, far, other], ["a", "a"]),
            ([far, exceeded, Over("p", "gpu", "project", 3, 9, 1, 1)], ["mid"]),
        ):
            found = enforcement.redact(violations, ["p", "mid", "a"])
            self.assertEqual(expected, [over.project_id for over in found])

    def test_the_order_of_equal_ones(self) -> None:
        """The project, its ancestors, the total; the width of the counter; a limit per pod."""
        equal = [
            Over("p", "gpu", "project", 2, 9, 1, 1),
            Over("mid", "gpu", "subtree", 8, 9, 0, 0, 8),
            Over("a", "gpu", "subtree", 8, 9, 0, 0, 8),
            Over(TOTAL, "gpu", "total", 8, 9, 0, 0, 8),
            Over("p", "gpu", "counter", MAX_AMOUNT, 9, MAX_AMOUNT, 0),
            Over("p", "gpu", "project", 2, 9, 2, 0, pod="north"),
        ]
        for index, over in enumerate(equal):
            [seen] = enforcement.redact(reversed(equal[index:]), ["p", "mid", "a"])
            self.assertEqual((over, over.pod), (seen, seen.pod))
