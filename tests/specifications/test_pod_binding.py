# SPDX-License-Identifier: Apache-2.0
"""The specification "Dynamic Pod Binding in Tricircle", with its example: two groups of three pods, and tenant1.

GroupA(Pod1, Pod2, Pod3) for general purpose VMs, GroupB(Pod4, Pod5, Pod6) for CAD modeling
"""

from __future__ import annotations

from typing import Any

import cyborg_quota
from cyborg_quota import ANY, SELECT, Claim, exceptions
from cyborg_quota.pods.selection import AllPods, AvailabilityZone, PodSelection, ResourceAffinity
from cyborg_quota.types import PodChoice
from cyborg_quota.types.capacity import Binding, Pod, ResourceUse
from tests import base, fixtures
from tests.base import ADMIN

CAD = {"resource": "CAD Modeling"}
FLAVOR = {"hw:cpu_policy": "dedicated", "accel:device_profile": "fpga", "hw:numa_cpus.0": "0,1"}
"""Extra specs that are no tag of a pod."""


class PodBindingTestCase(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE  # tests/model/test_pod_model.py selects and claims on each database

    def add_groups(self, **options: Any) -> None:
        """Add GroupA and GroupB."""
        for number in range(1, 7):
            self.pods.add(ADMIN, f"Pod{number}", affinity=CAD if number > 3 else {}, **options)

    def select(self, zone: str | None = None, affinity: Any = None, project_id: str = "tenant1") -> Binding:
        return self.pods.select(ADMIN, zone, affinity, project_id=project_id)

    def pod_of(self, zone: str | None = None, affinity: Any = None, project_id: str = "tenant1") -> str | None:
        return self.select(zone, affinity, project_id).pod

    def fill(self, *pods: str, used: int = 10) -> None:
        for pod in pods:
            self.pods.set_usage(ADMIN, pod, {"gpu": ResourceUse(10, used)})

    def providers(self, amount: int, choices: list[PodChoice]) -> list[str | None]:
        """The providers of claims of one call, which has one for each of these choices."""
        claims = [Claim(f"c{number}", {"gpu": amount}, provider=ANY, pod=one) for number, one in enumerate(choices)]
        uuids = self.quotas.reserve_many(ADMIN, claims, project_id="tenant1")
        rows = {row.uuid: row.provider for row in self.engine.list_reservations(ADMIN, reservations=uuids)}
        return [rows[uuid] for uuid in uuids]

    def current(self, project_id: str = "tenant1") -> list[tuple[str | None, str | None]]:
        """The zones and pods of the current bindings, the oldest first."""
        return [(one.availability_zone, one.pod) for _, one in self.pods.list_bindings(ADMIN, project_id)]


class TestGroups(PodBindingTestCase):
    def test_the_names_of_the_specification(self) -> None:
        """The configuration and programs may use them."""
        names = ["AllPodsFilter", "AvailabilityZoneFilter", "ResourceAffinityFilter"]
        engine = cyborg_quota.make_engine(fixtures.configuration(pods__filters=names))
        self.addCleanup(engine.close)
        self.assertEqual([AllPods, AvailabilityZone, ResourceAffinity], list(map(type, engine.pods._selection.filters)))
        self.assertEqual(CAD, Pod("Pod4", resource_affinity=CAD).resource_affinity_tag)

    def test_both_phases_and_maintenance(self) -> None:
        self.add_groups()
        for used, expected in ((0, ["Pod1", "Pod4"]), (9, ["Pod1", "Pod4"]), (10, ["Pod2", "Pod5"])):
            self.fill("Pod1", "Pod4", used=used)
            self.assertEqual(expected, [self.pod_of(), self.pod_of(affinity=CAD)], used)
        self.pods.change(ADMIN, "Pod2", state="maintenance")
        self.assertEqual(["Pod3", "Pod5"], [self.pod_of(), self.pod_of(affinity=CAD)])
        history = [one for _, one in self.pods.list_bindings(ADMIN, "tenant1", history=True)]
        self.assertEqual(
            [
                ("Pod1", {}, "first", False),
                ("Pod4", CAD, "first", False),
                ("Pod2", {}, "full", False),
                ("Pod5", CAD, "full", True),
                ("Pod3", {}, "maintenance", True),
            ],
            [(one.pod, one.resource_affinity, one.reason, one.ends_at is None) for one in history],
        )
        self.assertEqual([(None, "Pod5"), (None, "Pod3")], self.current())


class TestExtraSpecs(PodBindingTestCase):
    """The pods are selected by a match in the extra specs of a flavor, which has other extra specs too."""

    def test_only_keys_that_some_pod_has_are_compared(self) -> None:
        self.add_groups()
        self.assertEqual(["Pod1", "Pod4"], [self.pod_of(affinity=one) for one in (FLAVOR, {**FLAVOR, **CAD})])
        # Two flavors that differ in other keys use the same binding, which has the compared tags alone.
        first = self.select(affinity=CAD)
        self.assertEqual(first, self.select(affinity={"quota:cpu_shares": "64", **CAD}))
        self.assertEqual((CAD, 2), (first.resource_affinity, len(self.current())))
        error = self.assertRaises(exceptions.NoPodFits, self.select, affinity={"resource": "Rendering", **FLAVOR})
        self.assertEqual((True, False), ("Rendering" in str(error), "hw:" in str(error)), error)

    def test_claims_and_moves(self) -> None:
        self.add_groups()
        for number in range(1, 7):
            self.add_provider(f"node{number}", pod=f"Pod{number}", gpu=8)
        flavors: list[dict[str, str]] = [{**FLAVOR, **CAD}, {"hw:cpu_policy": "shared", **CAD}, FLAVOR]
        self.assertEqual(["node4", "node4", "node1"], self.providers(1, [PodChoice(affinity=one) for one in flavors]))
        self.pods.move_binding(ADMIN, "tenant1", "Pod6", affinity=flavors[0])
        self.assertEqual("Pod6", self.pod_of(affinity=CAD))
        self.pods.end_binding(ADMIN, "tenant1", affinity=CAD)
        self.assertEqual([(None, "Pod1")], self.current())

    def test_a_pod_that_is_not_available_keeps_its_keys(self) -> None:
        """A CAD request does not get a general pod while all CAD pods are maintained."""
        self.add_groups()
        for number in (4, 5, 6):
            self.pods.change(ADMIN, f"Pod{number}", state="maintenance")
        self.assertRaises(exceptions.NoPodFits, self.select, affinity=CAD)

    def test_bad_extra_specs(self) -> None:
        for specs in ({"a": 1}, {1: "a"}, "a=b", {"a": "x" * 256}, {str(key): "" for key in range(257)}):
            error = self.assertRaises(exceptions.InvalidPod, self.select, affinity=specs)
            self.assertEqual("affinity", error.field)
            claim = Claim(None, {"gpu": 1}, provider=ANY, pod=PodChoice(affinity=specs))  # type: ignore[arg-type]
            self.assertRaises(exceptions.InvalidPod, self.engine.reserve_many, ADMIN, [claim], project_id="tenant1")
        self.assertEqual([], self.current())


class TestCyborgOfOnePod(PodBindingTestCase):
    """What the integration with Cyborg does where [cyborg] pod is set: it claims in this pod, without a provider."""

    scenarios = fixtures.SCENARIOS

    class Bind(base.Context):
        """The context of a bind."""

        names_pods = True

    def setUp(self) -> None:
        super().setUp()
        self.add_groups()

    def bind(self, consumer: str, amount: int = 1, pod: str = "Pod2", **more: Any) -> list[str]:
        return self.quotas.reserve(self.Bind("tenant1"), {"gpu": amount}, consumer=consumer, pod=pod, **more)

    def pods_of(self, consumer: str) -> set[str | None]:
        query = "SELECT pod FROM reservations WHERE live = 1 AND consumer_id = :c"
        return {row.pod for row in self.fetch(query, c=consumer)}

    def test_the_limits_of_the_pod_apply(self) -> None:
        self.limits.own["tenant1", "gpu in pod Pod2"] = 3
        first = self.bind("arq1", 2)
        self.assertEqual({"Pod2"}, self.pods_of("arq1"))
        self.assertEqual(first, self.bind("arq1", 2), "a repeat")
        error = self.assertRaises(exceptions.OverQuota, self.bind, "arq2", 2)
        self.assertEqual([3], [over.limit for over in error.overs])
        self.bind("arq2", 2, "Pod3")
        self.assertRaises(exceptions.ReservationConflict, self.bind, "arq2", 2)
        self.quotas.commit(ADMIN, first)
        self.quotas.release(ADMIN, consumer="arq1", project_id="tenant1")
        self.bind("arq3", 3)
        self.assertEqual([], self.engine.audit(ADMIN))

    def test_what_belongs_to_a_server_follows(self) -> None:
        """The binding of the project stays, and what the group of the claim selects later is in the same pod."""
        self.pod_of()
        for number in (1, 2):
            self.add_provider(f"node{number}", pod=f"Pod{number}", gpu=8)
        self.bind("arq1", group="server")
        self.quotas.reserve(ADMIN, {"gpu": 1}, None, "tenant1", consumer="c", group="server", provider=ANY, pod=SELECT)
        self.assertEqual({"Pod2"}, self.pods_of("c"))
        self.assertEqual([(None, "Pod1")], self.current())

    def test_a_pod_that_is_not_available(self) -> None:
        """It takes no bind; what is attached there already is adopted."""
        self.pods.change(ADMIN, "Pod2", state="maintenance")
        self.assertRaises(exceptions.PodNotAvailable, self.bind, "arq1")
        self.assertRaises(exceptions.PodNotFound, self.bind, "arq1", 1, "Pod9")
        self.quotas.adopt(ADMIN, [Claim("arq1", {"gpu": 1}, pod="Pod2")], "tenant1")
        self.assertEqual({"Pod2"}, self.pods_of("arq1"))
        user = base.Context("tenant1")
        self.assertRaises(exceptions.NotAuthorized, self.engine.reserve, user, {"gpu": 1}, pod="Pod1")


class TestOnePodPerTenantAndGroup(PodBindingTestCase):
    """ "A tenant will be bound to one pod in one group of pods with same resource_affinity_tag." """

    def test_a_request_with_the_zone_and_one_without(self) -> None:
        """They get the same pod, whichever comes first, and although another pod is the best one by now."""
        self.add_groups(zone="az1")
        zones = ("az1", None)
        for project_id, order in (("tenant1", zones), ("tenant2", zones[::-1])):
            self.pods.change(ADMIN, "Pod2", weight=0)
            first = self.pod_of(order[0], project_id=project_id)
            self.pods.change(ADMIN, "Pod2", weight=9)
            self.assertEqual(["Pod1"] * 2, [first, self.pod_of(order[1], project_id=project_id)])
            self.assertEqual([("az1", "Pod1")], self.current(project_id), "the zone of the pod")

    def test_without_a_zone_the_oldest_binding_is_joined(self) -> None:
        for number in range(1, 4):
            self.pods.add(ADMIN, f"Pod{number}", zone=f"az{number}")
        self.assertEqual(["Pod2", "Pod1", "Pod2"], [self.pod_of(zone) for zone in ("az2", "az1", None)])
        self.assertEqual([("az2", "Pod2"), ("az1", "Pod1")], self.current())
        # Its pod is full: the next one; if both are, the oldest moves to another zone.
        self.fill("Pod2")
        self.assertEqual("Pod1", self.pod_of())
        self.pods.change(ADMIN, "Pod1", state="maintenance")
        self.assertEqual(["Pod3", "Pod3"], [self.pod_of(), self.pod_of()])
        self.assertEqual([("az1", "Pod1"), ("az3", "Pod3")], self.current())
        self.fill("Pod3")
        self.assertEqual("Pod3", self.pod_of(), "no other pod passes the filters, and Pod1 is not available")

    def test_a_move_within_the_zone_of_another_binding(self) -> None:
        """The binding that was made without a zone stays; a binding in the zone of the best pod moves there."""
        self.pods.add(ADMIN, "Pod1", zone="az1")
        for name in ("Pod2", "Pod3"):
            self.pods.add(ADMIN, name, zone="az2")
        self.assertEqual(["Pod1", "Pod2"], [self.pod_of(), self.pod_of("az2")])
        self.fill("Pod1", "Pod2")
        self.assertEqual("Pod3", self.pod_of())
        self.assertEqual([("az1", "Pod1"), ("az2", "Pod3")], self.current())

    def test_claims_of_one_call(self) -> None:
        """One names the zone and one does not: they share the binding, although not both fit in the best pod."""
        for number, total in enumerate((3, 4), 1):
            self.pods.add(ADMIN, f"Pod{number}", zone="az1")
            self.add_provider(f"node{number}", pod=f"Pod{number}", gpu=total)
        self.assertEqual(["node2", "node2"], self.providers(2, [PodChoice(), PodChoice("az1")]))
        self.assertEqual([("az1", "Pod2")], self.current())

    def test_filters_without_zones(self) -> None:
        """With AllPods alone, a zone decides nothing: each request has the same binding."""
        self.engine.pods._selection = PodSelection(filters=[AllPods()])
        self.pods.add(ADMIN, "Pod1", zone="az1")
        self.assertEqual(["Pod1"] * 3, [self.pod_of("az9"), self.pod_of("az1"), self.pod_of()])
        self.assertEqual([("az1", "Pod1")], self.current())

    def test_an_operator_moves_and_ends_bindings(self) -> None:
        for number in range(1, 4):
            self.pods.add(ADMIN, f"Pod{number}", zone=f"az{(number + 1) // 2}")
        error = self.assertRaises(exceptions.InvalidPod, self.pods.move_binding, ADMIN, "tenant1", "Pod3", "az1")
        self.assertEqual(("zone", "az1"), (error.field, error.value))
        self.pod_of()
        self.pod_of("az2")
        self.pods.move_binding(ADMIN, "tenant1", "Pod2", "az1")
        self.assertEqual([("az2", "Pod3"), ("az1", "Pod2")], self.current())
        self.pods.move_binding(ADMIN, "tenant1", "Pod2")
        self.assertEqual(([("az1", "Pod2")], "Pod2"), (self.current(), self.pod_of()))
        self.pod_of("az2")
        self.pods.end_binding(ADMIN, "tenant1")
        self.assertEqual([], self.current())
        self.assertRaises(exceptions.BindingNotFound, self.pods.end_binding, ADMIN, "tenant1")

    def test_a_selection_says_where_to_forward_the_request(self) -> None:
        self.pods.add(ADMIN, "Pod1", endpoint="pods/north", region="RegionOne")
        for binding in (self.select(), self.select()):
            self.assertEqual(("pods/north", "RegionOne"), (binding.endpoint, binding.region))
        self.pods.change(ADMIN, "Pod1", region=None)
        self.assertIsNone(self.select().region)
        of_user = self.pods.select(base.Context("tenant1"))
        self.assertEqual((None, None, None), (of_user.pod, of_user.endpoint, of_user.region))
