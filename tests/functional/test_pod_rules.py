# SPDX-License-Identifier: Apache-2.0
"""The rules by which claims choose a pod: full pods, groups within one call, and what a refused claim tries next.

The rules are the same on each database; these tests use SQLite.
"""

from __future__ import annotations

from collections.abc import Callable

from cyborg_quota import ANY, SELECT, Claim, Inventory, exceptions
from cyborg_quota.capacity import tables
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.types import PodChoice
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional import test_pod_claims

CAD = test_pod_claims.CAD
TENANT = test_pod_claims.TENANT


class RuleTestCase(test_pod_claims.PodClaimTestCase):
    scenarios = fixtures.ON_SQLITE

    def reserve_all(self, *claims: Claim, group: str | None = None) -> dict[str | None, str | None]:
        """The provider of each consumer."""
        uuids = self.quotas.reserve_many(ADMIN, claims, None, "tenant1", group=group)
        return {row.consumer: row.provider for row in self.engine.list_reservations(ADMIN, reservations=uuids)}


class TestGroupOfOneCall(RuleTestCase):
    """A claim that selects its pod follows a claim of its group and call that names a provider or a pod."""

    def setUp(self) -> None:
        super().setUp()
        for pod in ("p1", "p2"):
            self.add(pod, 3)

    def test_a_group_stays_together(self) -> None:
        selecting = Claim("b", {"gpu": 1}, provider=ANY, pod=SELECT)
        for number, named in enumerate(
            [Claim("a", {"gpu": 1}, provider="p2"), Claim("a", {"gpu": 1}, provider=ANY, pod="p2")]
        ):
            for claims in ([named, selecting], [selecting, named]):
                group = f"vm{number}"
                self.assertEqual({"a": "p2", "b": "p2"}, self.reserve_all(*claims, group=group))
                self.assertEqual("p2", self.claim(group=group), "and so does the next call")
                self.engine.release(ADMIN, group=group, project_id="tenant1")
        self.assertEqual([], self.history())
        # Another group, and a provider in no pod, decide nothing. What the group holds comes first.
        self.add_provider("free", gpu=9)
        for named in (Claim("a", {"gpu": 1}, provider="p2", group="x"), Claim("c", {"gpu": 1}, provider="free")):
            self.assertEqual("p1", self.reserve_all(named, selecting, group="vm")["b"])
            self.engine.release(ADMIN, consumer="b", project_id="tenant1")
        self.claim(group="vm")
        found = self.reserve_all(Claim("d", {"gpu": 1}, provider="p2"), selecting, group="vm")
        self.assertEqual({"d": "p2", "b": "p1"}, found)

    def test_what_its_group_holds_decides(self) -> None:
        """Whatever the binding, the tags, the measurement and the state of the pod are."""
        self.assertEqual("p1", self.claim(group="vm"))
        self.pods.move_binding(ADMIN, "tenant1", "p2")
        self.assertEqual(("p1", "p2"), (self.claim(group="vm"), self.claim(group="other")))
        self.fill("p1")
        self.pods.change(ADMIN, "p1", state="maintenance")
        self.assertEqual("p1", self.claim(group="vm", pod=PodChoice(affinity=CAD)))
        self.refused(group="vm")
        self.engine.release(TENANT, group="vm")
        self.engine.reserve(TENANT, {"gpu": 1}, group="vm")  # without a provider: in no pod
        self.claim(group="vm", context=base.Context("tenant2"))
        self.assertEqual("p2", self.claim(group="vm"), "it holds nothing in p1")
        self.assertEqual([("p1", "first"), ("p2", "operator")], self.history())

    def test_groups_that_hold_something_in_several_pods_are_placed_one_by_one(self) -> None:
        """One call claims for two groups, of which each fits in another pod."""
        for group in ("g1", "g2"):
            for pod in ("p1", "p2"):
                self.reserve_all(Claim(f"{group} {pod}", {"gpu": 1}, provider=pod), group=group)
        claims = [Claim(f"more {one}", {"gpu": 1}, one, provider=ANY, pod=SELECT) for one in ("g1", "g2")]
        self.assertEqual({"more g1": "p1", "more g2": "p2"}, self.reserve_all(*claims))


class TestStatements(RuleTestCase):
    """The number of statements does not grow with the number of pods."""

    def sent(self, call: Callable[[], object]) -> list[str]:
        with hooks.recorded_statements(self.engine) as sent:
            call()
        return sent

    def test_a_pod_that_has_only_a_pool_fits_nothing(self) -> None:
        """(An attempt there would be refused.)"""
        self.add("p3")
        self.add_provider("p3", pod="p3", can_host=False, gpu=9)
        with self.sql.connect() as connection:
            self.assertEqual(set(), tables.pods_that_fit(connection, {"gpu": 2}))

    def test_a_selection_that_keeps_the_binding(self) -> None:
        """One query while the pod serves the request, and also if it is full, and no other pod passes the filters.

        For the second case the answers of the filters are remembered, until a pod is added, changed or measured.
        """
        for number in range(3):
            self.add(f"p{number}", 9)
        self.select()
        self.assertEqual(1, len(self.sent(self.select)))
        self.add("tagged", 9, affinity={"x": "1"})
        for pod in ("p0", "p1", "p2", "tagged"):
            self.fill(pod)
        self.assertEqual(["SELECT"] * 3, [statement.split()[0] for statement in self.sent(self.select)])
        for tags in ({}, {"x": "1"}):
            self.pods.move_binding(ADMIN, "tenant1", "p0", affinity=tags)
            self.assertEqual("p0", self.pod_of(affinity=tags), "each request has its own answer")
            self.assertEqual(1, len(self.sent(lambda tags=tags: self.select(affinity=tags))))  # type: ignore[misc]
        other = self.make_engine().pods
        changes: list[tuple[str, Callable[[], object]]] = [
            ("p2", lambda: other.set_usage(ADMIN, "p2", {"gpu": ResourceUse(10, 1)})),
            ("p3", lambda: other.add(ADMIN, "p3")),
            ("p1", lambda: other.change(ADMIN, "p1", threshold=100, state="available")),
        ]
        self.pods.set_usage(ADMIN, "p1", {"gpu": ResourceUse(100, 95)})
        self.pods.change(ADMIN, "p1", threshold=90)
        for pod, change in changes:
            self.assertNotEqual(pod, self.pod_of())
            change()
            self.assertEqual(pod, self.pod_of())
            self.fill(pod)
        self.pods.move_binding(ADMIN, "tenant1", "p0")
        self.assertEqual("p0", self.pod_of())
        other.change(ADMIN, "p2", state="maintenance")
        other.set_usage(ADMIN, "p2", {"gpu": ResourceUse(10, 1)})
        self.assertEqual("p0", self.pod_of(), "p2 has room, but is not available")
        other.change(ADMIN, "p2", state="available")
        self.assertEqual("p2", self.pod_of())

    def test_a_refused_named_provider(self) -> None:
        """No other provider helps the call, of another resource at the same provider or of the same one."""
        self.add("p1", 1)
        self.add("p2", 8)
        self.capacity.set_inventories(ADMIN, "p1", {"fpga": Inventory(5)})
        self.select()
        for how in (None, SELECT):
            for other in ("fpga", "gpu"):
                claims = [Claim("a", {"gpu": 2}, provider="p1"), Claim("b", {other: 1}, provider=ANY, pod=how)]
                with hooks.Meanwhile(CapacityEnforcer, "prepare", lambda: None) as calls:
                    self.assertRaises(exceptions.OverCapacity, self.engine.reserve_many, TENANT, claims)
                self.assertLessEqual(calls.count, 2)

    def test_a_refused_claim(self) -> None:
        for number in range(12):
            self.add(f"p{number}", 1)
        self.claim()
        for number in range(1, 12):
            self.engine.reserve(base.Context("x"), {"gpu": 1}, provider=f"p{number}")
        self.assertLessEqual(len(self.sent(self.refused)), 16)
        self.engine.release(ADMIN, [one.uuid for one in self.engine.list_reservations(ADMIN, "x")][-1:])
        sent = self.sent(lambda: self.assertEqual("p11", self.claim()))
        self.assertEqual(4, sum("inventory_0" in one for one in sent), sent)
        self.refused()
        claims = [Claim(None, {"gpu": amount}, provider=ANY, pod=SELECT) for amount in (1, 2)]
        self.add("p12", 2)
        self.add("p13", 3)
        self.assertEqual(["p13", "p13"], self.reserve_each(*claims))
        self.add("p14", 1)
        self.capacity.set_inventories(ADMIN, "p14", {"fpga": Inventory(1)})
        both = Claim(None, {"fpga": 1, "gpu": 1}, provider=ANY, pod=SELECT)
        self.assertEqual(["p14", "p14"], self.reserve_each(both))
