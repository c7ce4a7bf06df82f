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
        """All requested tags, and the zone: see also the examples of the specification."""
        for name, zone, tags in (("a1", "a", {}), ("a2", "a", {}), ("t1", "t", {"a": "1"}), ("t2", "t", {"b": "2"})):
            self.pods.add(ADMIN, name, zone=zone, affinity={"c": "3", **tags} if tags else {})
        tagged = [self.pod_of(affinity=tags) for tags in ({"b": "2", "c": "3"}, {"c": "3"})]
        self.assertEqual(["a1", "t2", "t1"], [self.pod_of(), *tagged])
        for arguments in ({"zone": "c"}, {"zone": "t"}, {"affinity": {"a": "2"}}):
            self.assertRaises(exceptions.NoPodFits, self.select, **arguments)
        self.pods.change(ADMIN, "a2", weight=1)
        self.assertEqual("a2", self.pod_of("tenant2"), "the weight decides before the order")
        # A binding stays if no other pod fits.
        self.fill("a1")
        self.assertEqual("a2", self.pod_of(zone="a"))
        for state in ("maintenance", "disabled"):
            self.pods.change(ADMIN, "a2", state=state)
            self.assertEqual("a2", self.pod_of(zone="a"))
        error = self.assertRaises(exceptions.NoPodFits, self.select, "tenant3", zone="a")
        self.assertEqual("No available pod passes the filters (zone 'a', tags {}).", str(error))

    def test_which_measured_pods_are_full(self) -> None:
        """The requested resources decide, or all. One without capacity does not count, unless it is requested."""
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name, threshold=80)
        never, _ = self.pods.list_usages(ADMIN)
        self.assertEqual((None, None, None), (never.usage, never.measured_at, never.age))
        for number, (gpu, fpga, request, is_full) in enumerate(
            [
                ((10, 8), (10, 7), {"fpga": 1}, False),
                ((10, 8), (10, 7), {"gpu": 1}, True),
                ((10, 8), (10, 7), None, True),
                ((9, 0), (0, 0), None, False),
                ((9, 0), (0, 0), {"fpga": 1, "gpu": 1}, True),
                (None, None, None, True),
                (None, (0, 0), None, True),
                (None, (0, 1), None, True),
            ]
        ):
            usage = {name: ResourceUse(*use) for name, use in (("gpu", gpu), ("fpga", fpga)) if use is not None}
            self.pods.set_usage(ADMIN, "p1", usage)
            found, _ = self.pods.list_usages(ADMIN)
            pod = self.pod_of(f"t{number}", request=request)
            self.assertEqual((usage, "p2" if is_full else "p1"), (found.usage, pod), number)
            self.assertLess(abs(found.age.total_seconds()), 60)  # type: ignore[union-attr]
        self.fill("p2", 1)
        self.assertRaises(exceptions.NoPodFits, self.select, "t", request={"fpga": 1, "gpu": 1})
        self.assertRaises(exceptions.PodNotFound, self.fill, "p9")

    def test_a_user_does_not_see_the_name_of_the_pod(self) -> None:
        self.pods.add(ADMIN, "p1")
        binding = self.pods.select(base.Context("tenant1"))
        self.assertIsNone(binding.pod)
        self.assertEqual(binding.starts_at, self.select().starts_at)
        self.assertRaises(exceptions.NotAuthorized, self.pods.select, base.Context("x"), project_id="tenant1")
        self.patch(policy.Policy, "allows", lambda _self, _context, rule, *_rest: rule == policy.SEE_PODS)
        self.assertEqual("p1", self.pods.select(base.Context("tenant1")).pod)


class TestRepeatedSelection(PodTestCase):
    def test_a_binding_is_kept_in_one_statement(self) -> None:
        """On a Galera node it waits for the cluster: another node may have answered a change of the pod."""
        for name in ("p1", "p2"):
            self.pods.add(ADMIN, name)
        first = self.select()
        with hooks.recorded_statements(self.engine) as sent:
            self.assertEqual(first, self.select())
        self.assertEqual(1, len(sent), sent)
        if self.backend != "mariadb":
            return
        database = hooks.database_of(self.engine)
        for known in (True, None):
            database._pool.is_galera = known
            self.patch(type(database.dialect), "is_galera", lambda *_: True)
            with hooks.recorded_statements(self.engine) as sent:
                self.assertEqual(first, self.select())
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
        self.assertEqual(moved, self.pods.move_binding(ADMIN, "tenant1", "p2"), "a repeat")
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
        name = "p " + "1" * 98
        tags = {"b": "2", "a": "1"}
        added = self.pods.add(ADMIN, name, zone="z", affinity=tags, weight=-5, threshold=1, endpoint="c")
        self.assertEqual([added, added], [*self.pods.list_pods(ADMIN), self.pods.show(ADMIN, name)])
        self.assertRaises(exceptions.PodExists, self.pods.add, ADMIN, name)
        changed = self.pods.change(ADMIN, name, affinity={}, weight=7, endpoint=None)
        self.assertEqual(
            ({}, 7, None, 1), (changed.resource_affinity, changed.weight, changed.endpoint, changed.threshold)
        )
        self.assertEqual(changed, self.pods.show(ADMIN, name))
        self.select(zone="z")
        self.assertRaises(exceptions.PodInUse, self.pods.remove, ADMIN, name)
        self.pods.end_binding(ADMIN, "tenant1", "z")
        self.engine.capacity.add_provider(ADMIN, "n1", pod=name)
        self.assertRaises(exceptions.PodInUse, self.pods.remove, ADMIN, name)
        self.engine.capacity.remove_provider(ADMIN, "n1")
        self.pods.remove(ADMIN, name)
        self.assertRaises(exceptions.PodNotFound, self.pods.show, ADMIN, name)
        self.assertEqual([name], [one.pod for _, one in self.pods.list_bindings(ADMIN, history=True)])

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
        error = self.assertRaises(exceptions.PodNotAvailable, self.pods.move_binding, ADMIN, "t4", "p1")
        self.assertEqual("maintenance", error.state)
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
            (lambda: self.pods.move_binding(ADMIN, "tenant1", "p9"), exceptions.PodNotFound),
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": ResourceUse(-1, 0)}), exceptions.InvalidPod),
            (lambda: self.pods.set_usage(ADMIN, "p1", []), exceptions.InvalidPod),  # type: ignore[arg-type]
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": 5}), exceptions.InvalidPod),  # type: ignore[dict-item]
            (lambda: self.pods.set_usage(ADMIN, "p1", {"gpu": (1,)}), exceptions.InvalidPod),  # type: ignore[dict-item]
            (lambda: self.pods.add(ADMIN, "x", affinity=LONG_TAGS), exceptions.InvalidPod),
            (lambda: self.pods.select(ADMIN, request={"nothing": 1}, project_id="t"), exceptions.UnknownResource),
            (lambda: self.pods.select(ADMIN, request={"gpu": -1}, project_id="t"), exceptions.InvalidDelta),
        ):
            self.assertRaises(error, call)
        self.assertEqual((before, []), (self.pods.list_pods(ADMIN), self.pods.list_bindings(ADMIN, history=True)))
