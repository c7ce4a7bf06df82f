# SPDX-License-Identifier: Apache-2.0
"""Processes that select pods for the same projects at the same time, while a pod goes into maintenance."""

from __future__ import annotations

import collections
import functools
import random
from typing import Any

from cyborg_quota import ANY, QuotaEngine
from cyborg_quota.pods import claims as pod_claims
from cyborg_quota.pods import selection as pod_selection
from cyborg_quota.pods import tables
from cyborg_quota.types import PodChoice
from cyborg_quota.types.capacity import Candidate, ResourceUse
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.race.workers import PROCESSES, once, race

TENANTS = 200 * fixtures.MORE
RACED = 40 * fixtures.MORE
"""The number of tenants for which all processes select; and in a cluster, two of them for each of TENANTS."""
MOVED = 8
"""The number of tenants whose bindings move."""
PREFERRED = 20
"""The number of tenants whose bindings show that each call prefers another pod."""
PODS = 5
SPECS = {"purpose": "CAD", "hw:cpu_policy": "dedicated"}


class _Random(pod_selection.PodWeigher):
    def weigh(self, candidate: Candidate, request: pod_selection.PodRequest) -> float:
        return random.random()


def select_for_all(engine: QuotaEngine, number: int, tenants: int, share: int = 1) -> dict[str, str | None]:
    """The pod of each tenant; each process selects in another order.

    ``share``: into how many parts the tenants are divided; a process selects for one of them.
    """
    random.seed(number)
    names = [f"tenant{one}" for one in range(tenants) if one % share == number % share]
    random.shuffle(names)
    return {name: engine.pods.select(ADMIN, project_id=name).pod for name in names}


def prefer_random_pods(engine: QuotaEngine) -> None:
    """Each call prefers another pod, as with pods whose measurements change."""
    engine.pods._selection = pod_selection.PodSelection(weighers=[(_Random(), 1.0)])


class TestSelect(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        for number in range(PODS):
            self.pods.add(ADMIN, f"pod{number}")
        prefer_random_pods(self.engine)
        self.pods.select(ADMIN, project_id="warm")  # forked processes find the statements compiled
        self.engine.close()

    def test_each_tenant_gets_one_pod(self) -> None:
        answers = race(*(functools.partial(select_for_all, self.engine, number, RACED) for number in range(PROCESSES)))
        self.assertEqual([answers[0]] * PROCESSES, answers)
        self.assertEqual((RACED, RACED + 1), (len(answers[0]), len(self.pods.list_bindings(ADMIN, history=True))))
        # All pods but one become full: every binding moves once, at the most.
        for number in range(PODS - 1):
            self.pods.set_usage(ADMIN, f"pod{number}", {"gpu": ResourceUse(1, 1)})
        self.engine.close()
        answers = race(*(functools.partial(select_for_all, self.engine, number, MOVED) for number in range(PROCESSES)))
        self.assertEqual([dict.fromkeys(answers[0], f"pod{PODS - 1}")] * PROCESSES, answers)
        bindings = self.pods.list_bindings(ADMIN, history=True)
        ended = collections.Counter(binding.project_id for _, binding in bindings if binding.ends_at is not None)
        self.assertLessEqual(max(ended.values()), 1)

    def test_no_binding_is_created_after_the_switch_to_maintenance(self) -> None:
        def drain() -> int:
            """The number of bindings to the pod when the switch has been answered, and a moment later."""
            self.pods.change(ADMIN, "pod0", state="maintenance")
            before = len(self.pods.list_bindings(ADMIN, pod="pod0", history=True))
            for _ in range(20):
                self.pods.select(ADMIN, project_id=f"late{random.random()}")
            return len(self.pods.list_bindings(ADMIN, pod="pod0", history=True)) - before

        jobs: list[Any] = [functools.partial(select_for_all, self.engine, number, MOVED) for number in range(3)]
        self.assertEqual(0, race(drain, *jobs)[0])

    def test_without_the_lock_a_binding_is_created_in_maintenance(self) -> None:
        """The control: read the state, and insert without the conditional UPDATE of the pod's row."""
        find = lambda connection, pod_id: next(pod for pod in tables.list_pods(connection) if pod.id == pod_id)  # noqa: E731
        self.patch(tables, "hold_available", find)
        if self.backend == "sqlite":
            self.skipTest("SQLite has one writer: the switch waits for the transaction of the selection")
        self.pods.change(ADMIN, "pod0", weight=1)
        self.engine.pods._selection = pod_selection.PodSelection()
        drain = lambda: self.make_engine().pods.change(ADMIN, "pod0", state="maintenance")  # noqa: E731
        self.useFixture(hooks.Meanwhile(tables, "insert_binding", drain))
        self.assertEqual("pod0", self.pods.select(ADMIN, project_id="p").pod)
        self.assertEqual("maintenance", self.pods.show(ADMIN, "pod0").state)


class TestZones(base.LedgerTestCase):
    """Requests without a zone prefer pods in different zones: one of them makes the binding, and all join it (P1)."""

    def setUp(self) -> None:
        super().setUp()
        for number in range(PODS):
            self.pods.add(ADMIN, f"pod{number}", zone=f"az{number}", affinity={"purpose": "CAD"})
            self.add_provider(f"node{number}", pod=f"pod{number}", gpu=TENANTS)
        prefer_random_pods(self.engine)
        self.select("warm", None)  # forked processes find the statements compiled
        self.claim("warm", None)
        self.engine.close()

    def select(self, project_id: str, zone: str | None) -> str | None:
        return self.pods.select(ADMIN, zone, SPECS, project_id=project_id).pod

    def claim(self, project_id: str, zone: str | None) -> str | None:
        pod = PodChoice(zone, SPECS)
        uuids = self.engine.reserve(ADMIN, {"gpu": 1}, project_id=project_id, provider=ANY, pod=pod)
        (row,) = self.engine.list_reservations(ADMIN, reservations=uuids)
        return str(row.provider).replace("node", "pod")

    def race(self, *zones: str | None) -> list[list[str | None]]:
        """The pods that each process gets, by tenant: half of them select, the others claim."""

        def of_each_tenant(number: int) -> list[str | None]:
            random.seed(number)
            call = (self.select, self.claim)[number // 2 % 2]
            return [call(f"tenant{one}", zones[number % len(zones)]) for one in range(MOVED)]

        if self.backend != "sqlite":  # (there, a selection reads in the one transaction that may write)
            wait = once(PROCESSES)  # all have found no binding before any of them makes one
            self.useFixture(hooks.Meanwhile(pod_claims, "change_bindings", wait))
        self.engine.close()
        found = race(*(functools.partial(of_each_tenant, number) for number in range(PROCESSES)))
        return [list(pods) for pods in zip(*found, strict=True)]

    def bound(self, tenant: int) -> list[tuple[str | None, str | None]]:
        """The zones and pods of the current bindings of a tenant, the oldest first."""
        found = self.pods.list_bindings(ADMIN, f"tenant{tenant}")
        return [(one.availability_zone, one.pod) for _, one in found]

    def test_without_a_zone(self) -> None:
        preferred = {self.select(f"other{number}", None) for number in range(PREFERRED)}
        self.assertGreater(len(preferred), 1, "each call prefers another pod")
        for tenant, found in enumerate(self.race(None)):
            ((_, pod),) = self.bound(tenant)
            self.assertEqual({pod}, set(found))
        history = self.pods.list_bindings(ADMIN, history=True)
        self.assertEqual(PREFERRED + MOVED + 1, len(history), "no binding has moved")
        self.assert_invariants()

    def test_with_and_without_a_zone(self) -> None:
        """Requests with the zone get its pod; the others get one pod, that of the first binding in whatever zone."""
        for tenant, found in enumerate(self.race(None, "az3")):
            current = self.bound(tenant)
            self.assertEqual({"pod3"}, set(found[1::2]))
            self.assertEqual({current[0][1]}, set(found[::2]))
            self.assertEqual({pod for _, pod in current}, set(found))
            self.assertEqual(len(current), len(set(found)))
        self.assert_invariants()

    def test_without_the_key_two_bindings_are_made(self) -> None:
        """The control: look for a binding in whatever zone, and insert one if there is none."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has one writer: the second one finds the binding of the first one")
        insert = tables.insert_binding
        self.patch(tables, "insert_binding", lambda *what, **_: insert(*what, is_first=False))
        self.pods.change(ADMIN, "pod1", weight=1)
        self.engine.pods._selection = pod_selection.PodSelection()
        other = self.make_engine()
        other.pods._selection = pod_selection.PodSelection(weighers=[(pod_selection.CreationTime(), 1.0)])
        meanwhile = functools.partial(other.pods.select, ADMIN, None, SPECS, project_id="tenant0")
        self.useFixture(hooks.Meanwhile(tables, "insert_binding", meanwhile))
        self.assertEqual("pod1", self.select("tenant0", None))
        self.assertEqual([("az0", "pod0"), ("az1", "pod1")], sorted(self.bound(0)))  # type: ignore[type-var]
