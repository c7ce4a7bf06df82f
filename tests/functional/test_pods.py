# SPDX-License-Identifier: Apache-2.0
"""Pods: adding and changing them, and the selection of the pod of a project."""

from __future__ import annotations

import functools
from typing import Any

from cyborg_quota import exceptions, policy
from cyborg_quota.pods import tables
from cyborg_quota.types.capacity import Binding, ResourceUse
from tests import base, fixtures, hooks
from tests.base import ADMIN

CAD = {"resource": "CAD Modeling"}

LONG_TAGS = {chr(0x4E00 + number) * 255: chr(0x4E00 + number) * 255 for number in range(32)}
"""Each is valid. All of them need 98,113 bytes as JSON, of which MariaDB does not store more than 65,535."""


class PodTestCase(base.LedgerTestCase):
    def select(self, project_id: str = "tenant1", **arguments: Any) -> Binding:
        return self.pods.select(ADMIN, project_id=project_id, **arguments)

    def pod_of(self, project_id: str = "tenant1", **arguments: Any) -> str | None:
        return self.select(project_id, **arguments).pod

    def fill(self, pod: str, used: int = 10, capacity: int = 10) -> None:
        self.pods.set_usage(ADMIN, pod, {"gpu": ResourceUse(capacity, used)})


class TestSelection(PodTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_which_pods_pass_the_filters(self) -> None:
        """The zone, and all requested tags. Zones have bindings of their own."""
        for name, zone, tags in (
            ("a1", "a", {}),
            ("b1", "b", {}),
            ("b2", "b", {}),
            ("t1", "t", {"a": "1"}),
            ("t2", "t", {"a": "1", "b": "2"}),
        ):
            self.pods.add(ADMIN, name, zone=zone, affinity=tags)
        self.assertEqual(["b1", "a1", "b1"], [self.pod_of(zone="b"), self.pod_of(zone="a"), self.pod_of()])
        self.assertEqual(2, len(self.pods.list_bindings(ADMIN, "tenant1")))
        self.assertEqual("t2", self.pod_of(affinity={"b": "2", "a": "1"}))
        self.assertEqual("t1", self.pod_of(affinity={"a": "1"}))
        for arguments in ({"zone": "c"}, {"zone": "t"}, {"affinity": {"a": "2"}}):
            self.assertRaises(exceptions.NoPodFits, self.select, **arguments)
        self.pods.change(ADMIN, "b2", weight=1)
        self.assertEqual("b2", self.pod_of("tenant2"), "the weight decides before the order")
        # A binding stays if no other pod fits.
        first = self.select(zone="a")
        self.fill("a1")
        self.assertEqual(first, self.select(zone="a"))
        self.pods.change(ADMIN, "a1", state="disabled")
        self.assertEqual(first, self.select(zone="a"))
        error = self.assertRaises(exceptions.NoPodFits, self.select, "tenant2", zone="a")
        self.assertEqual("No available pod passes the filters (zone 'a', tags {}).", str(error))

    def test_only_the_requested_resources_decide_whether_a_pod_is_full(self) -> None:
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name, threshold=80)
        never, _ = self.pods.list_usages(ADMIN)
        self.assertEqual((None, None, None), (never.usage, never.measured_at, never.age))
        self.fill("p1", 1)
        usages = {"gpu": ResourceUse(10, 8), "fpga": ResourceUse(10, 7)}
        self.pods.set_usage(ADMIN, "p1", usages)
        usage, _ = self.pods.list_usages(ADMIN)
        self.assertEqual(usages, usage.usage)
        self.assertLess(abs(usage.age.total_seconds()), 60)  # type: ignore[union-attr]
        self.assertEqual("p1", self.pod_of("t1", request={"fpga": 1}))
        self.assertEqual("p2", self.pod_of("t2", request={"gpu": 1}))
        self.assertEqual("p2", self.pod_of("t3"))
        self.pods.set_usage(ADMIN, "p2", {"gpu": ResourceUse(10, 1)})
        self.assertRaises(exceptions.NoPodFits, self.select, "t4", request={"fpga": 1, "gpu": 1})
        self.assertRaises(exceptions.PodNotFound, self.fill, "p9")

    def test_a_user_does_not_see_the_name_of_the_pod(self) -> None:
        self.pods.add(ADMIN, "p1")
        binding = self.pods.select(base.Context("tenant1"))
        self.assertIsNone(binding.pod)
        self.assertEqual(binding.starts_at, self.select().starts_at)
        self.assertRaises(exceptions.NotAuthorized, self.pods.select, base.Context("x"), project_id="tenant1")
        self.patch(policy.Policy, "allows", lambda _self, _context, rule, *_rest: rule == policy.SEE_PODS)
        self.assertEqual("p1", self.pods.select(base.Context("tenant1")).pod)

    def test_an_operator_moves_a_binding(self) -> None:
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name)
        self.select()
        moved = self.pods.move_binding(ADMIN, "tenant1", "p2")
        self.assertEqual(("p2", "operator"), (moved.pod, moved.reason))
        self.assertEqual(moved, self.pods.move_binding(ADMIN, "tenant1", "p2"))
        self.assertEqual(moved, self.select())
        self.pods.change(ADMIN, "p2", state="maintenance")
        error = self.assertRaises(exceptions.PodNotAvailable, self.pods.move_binding, ADMIN, "tenant1", "p2")
        self.assertEqual("maintenance", error.state)
        self.assertRaises(exceptions.PodNotFound, self.pods.move_binding, ADMIN, "tenant1", "p9")


class TestRepeatedSelection(PodTestCase):
    """A selection that keeps the binding."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name)
        self.first = self.select()

    def test_one_statement(self) -> None:
        with hooks.recorded_statements(self.engine) as sent:
            self.assertEqual(self.first, self.select())
        self.assertEqual(1, len(sent), sent)

    def test_on_a_galera_node_it_waits_for_the_cluster(self) -> None:
        """Another node may have answered a change of the pod."""
        if self.backend != "mariadb":
            self.skipTest("only MariaDB has Galera clusters")
        database = hooks.database_of(self.engine)
        for known in (True, None):
            database._pool.is_galera = known
            self.patch(type(database.dialect), "is_galera", lambda *_: True)
            with hooks.recorded_statements(self.engine) as sent:
                self.assertEqual(self.first, self.select())
            self.assertIn("SET SESSION wsrep_sync_wait = 7", sent)


class TestConcurrency(PodTestCase):
    """Another call creates the binding between the read and the INSERT of this one."""

    scenarios = fixtures.SCENARIOS[1:]  # SQLite has one writer

    def meanwhile(self, project_id: str) -> hooks.Meanwhile:
        select = functools.partial(self.make_engine().pods.select, ADMIN, project_id=project_id)
        return hooks.Meanwhile(tables, "insert_binding", select)

    def test_a_move_and_a_selection(self) -> None:
        """A move moves the binding that the other call has created; a selection returns it."""
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name)
        with self.meanwhile("tenant1"):
            moved = self.pods.move_binding(ADMIN, "tenant1", "p2")
        self.assertEqual(("p2", "operator"), (moved.pod, moved.reason))
        self.pods.change(ADMIN, "p1", weight=-1)
        with self.meanwhile("tenant2"):
            self.assertEqual("p2", self.pod_of("tenant2"))
        history = [(one.pod, one.reason) for _, one in self.pods.list_bindings(ADMIN, history=True)]
        self.assertEqual([("p1", "first"), ("p2", "operator"), ("p2", "first")], history)


class TestPods(PodTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_add_change_remove(self) -> None:
        """A longer name would leave no room for the name of a resource in the names of the pod's counters."""
        error = self.assertRaises(exceptions.InvalidName, self.pods.add, ADMIN, "p" * 101)
        self.assertEqual(("p" * 101, "it has 101 characters, at most 100 fit"), (error.value, error.reason))
        self.pods.add(ADMIN, "p" * 100)
        self.pods.remove(ADMIN, "p" * 100)
        added = self.pods.add(
            ADMIN, "p 1", zone="z", affinity={"b": "2", "a": "1"}, weight=-5, threshold=1, endpoint="c"
        )
        self.assertEqual([added], self.pods.list_pods(ADMIN))
        self.assertEqual(added, self.pods.show(ADMIN, "p 1"))
        self.assertRaises(exceptions.PodExists, self.pods.add, ADMIN, "p 1")
        changed = self.pods.change(ADMIN, "p 1", affinity={}, weight=7, endpoint=None)
        self.assertEqual(
            ({}, 7, None, 1), (changed.resource_affinity, changed.weight, changed.endpoint, changed.threshold)
        )
        self.assertEqual(changed, self.pods.show(ADMIN, "p 1"))
        self.select(zone="z")
        self.assertRaises(exceptions.PodInUse, self.pods.remove, ADMIN, "p 1")
        self.pods.end_binding(ADMIN, "tenant1", "z")
        self.engine.capacity.add_provider(ADMIN, "n1", pod="p 1")
        self.assertRaises(exceptions.PodInUse, self.pods.remove, ADMIN, "p 1")
        self.engine.capacity.remove_provider(ADMIN, "n1")
        self.pods.remove(ADMIN, "p 1")
        self.assertRaises(exceptions.PodNotFound, self.pods.show, ADMIN, "p 1")
        self.assertEqual(["p 1"], [one.pod for _, one in self.pods.list_bindings(ADMIN, history=True)])

    def test_all_bindings_to_a_pod_are_ended(self) -> None:
        """Those to other pods stay, and the next selection of each project creates another."""
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name)
        tenants = [f"t{number}" for number in range(5)]
        for tenant in tenants:
            self.select(tenant)
        kept = self.pods.move_binding(ADMIN, "t4", "p2")
        self.pods.change(ADMIN, "p1", state="maintenance")
        self.assertRaises(exceptions.PodInUse, self.pods.remove, ADMIN, "p1")
        self.assertEqual([4, 0], [self.pods.end_bindings(ADMIN, "p1") for _ in range(2)])
        self.assertEqual([kept], [one for _, one in self.pods.list_bindings(ADMIN)])
        self.assertRaises(exceptions.PodNotFound, self.pods.end_bindings, ADMIN, "p9")
        self.pods.remove(ADMIN, "p1")
        self.assertEqual({"p2"}, {self.pod_of(tenant) for tenant in tenants})

    def test_bad_input_writes_nothing(self) -> None:
        self.pods.add(ADMIN, "p1")
        before = self.pods.list_pods(ADMIN)
        for call, error in (
            (lambda: self.pods.add(ADMIN, ""), exceptions.InvalidName),
            (lambda: self.pods.add(ADMIN, "x", weight=True), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", threshold=0), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", threshold=101), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", affinity={"a=b": "c"}), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", affinity={"a": "b,c"}), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", affinity={"a,b": "c"}), exceptions.InvalidPod),
            (lambda: self.pods.add(ADMIN, "x", affinity={"a": 1}), exceptions.InvalidName),  # type: ignore[dict-item]
            (lambda: self.pods.add(ADMIN, "x", affinity="a=b"), exceptions.InvalidPod),  # type: ignore[arg-type]
            (lambda: self.pods.change(ADMIN, "p1"), exceptions.InvalidRequest),
            (lambda: self.pods.change(ADMIN, "p1", state="full"), exceptions.InvalidPod),  # type: ignore[arg-type]
            (lambda: self.pods.change(ADMIN, "p9", weight=1), exceptions.PodNotFound),
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": ResourceUse(-1, 0)}), exceptions.InvalidPod),
            (lambda: self.pods.set_usage(ADMIN, "p1", []), exceptions.InvalidPod),  # type: ignore[arg-type]
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": 5}), exceptions.InvalidPod),  # type: ignore[dict-item]
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": (1,)}), exceptions.InvalidPod),  # type: ignore[dict-item]
            (lambda: self.pods.add(ADMIN, "x", affinity=LONG_TAGS), exceptions.InvalidPod),
            (lambda: self.pods.select(ADMIN, request={"nothing": 1}, project_id="t"), exceptions.UnknownResource),
            (lambda: self.pods.select(ADMIN, request={"gpu": -1}, project_id="t"), exceptions.InvalidDelta),
        ):
            self.assertRaises(error, call)
        self.assertEqual(before, self.pods.list_pods(ADMIN))
        self.assertEqual([], self.pods.list_bindings(ADMIN, history=True))
