# SPDX-License-Identifier: Apache-2.0
"""Which constraints a request would violate, without a database."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.db import usages
from cyborg_quota.db.path_state import ProjectPath
from cyborg_quota.db.usages import Node
from cyborg_quota.exceptions import OverQuota
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


class TestText(base.BaseTestCase):
    """The refusal names descendants only if there are some, or if the limit is that of an ancestor."""

    def text(self, held: Counters, *, owner: str = "p", sees_all: bool = True) -> str:
        limit = Constraint(owner, "gpu", 5, "subtree")
        key = UsageKey(owner, "gpu")
        found = enforcement.find_violations("p", [limit], {key: held}, {ResourceKey("gpu"): 2})
        return str(*(found if sees_all else enforcement.redact(found, ["p", "root"])))

    def test_no_descendants(self) -> None:
        for sees_all in (True, False):
            text = self.text(Counters(3, 1, 4), sees_all=sees_all)
            self.assertEqual("project p, resource gpu: limit 5, used 3, reserved 1, requested 2", text)

    def test_descendants_that_hold_something(self) -> None:
        words = "project p, resource gpu: limit 5 (project and its descendants), used 0, reserved 1,"
        self.assertEqual(f"{words} subtree 4, requested 2", self.text(Counters(0, 1, 4)))
        self.assertEqual(f"{words} requested 2", self.text(Counters(0, 1, 4), sees_all=False))

    def test_an_ancestor(self) -> None:
        words = "project root, resource gpu: limit 5 (project and its descendants),"
        expected = f"{words} used 4, reserved 0, subtree 4, requested 2"
        self.assertEqual(expected, self.text(Counters(4, 0, 4), owner="root"))
        self.assertEqual(f"{words} requested 2", self.text(Counters(4, 0, 4), owner="root", sees_all=False))


class TestRedact(base.BaseTestCase):
    def test_of_each_resource_the_one_with_the_least_room(self) -> None:
        near, far = Over("mid", "gpu", "subtree", 9, 9, 0, 0, 8), Over("a", "gpu", "subtree", 7, 9, 0, 0, 7)
        other = Over("a", "fpga", "subtree", 7, 9, 0, 0, 7)
        self.assertEqual(["a", "a"], self.seen([near, far, other]))
        exceeded = Over("mid", "gpu", "subtree", 5, 9, 0, 0, 8)  # (nothing fits: it does not matter by how much)
        self.assertEqual(["mid"], self.seen([far, exceeded, Over("p", "gpu", "project", 3, 9, 1, 1)]))

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

    def seen(self, violations: list[Over]) -> list[str]:
        return [over.project_id for over in enforcement.redact(violations, ["p", "mid", "a"])]

    def test_not_changed_by_its_reader(self) -> None:
        over = copy.copy(OverQuota([Over("p", "gpu", "project", 5, 1, 4, 1)]).overs[0])
        self.assertRaises(AttributeError, setattr, over, "limit", 9)
