# SPDX-License-Identifier: Apache-2.0
"""The measurement of pods: what is stored, which process measures, and the notices of thresholds; on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import fixtures as fx

from cyborg_quota import Inventory, exceptions
from cyborg_quota.cli import expirer, pod
from cyborg_quota.types.capacity import CollectedPod, ResourceUse
from tests import base, fixtures
from tests.base import ADMIN
from tests.race.workers import race

DAY_SECONDS = 86400
LONG_SECONDS = 60.0


def read_eight(_endpoint: str) -> Mapping[str, ResourceUse]:
    return {"gpu": ResourceUse(8, 3)}


class CollectionTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        for name, endpoint in (("p1", None), ("p2", "cloud/two"), ("p3", "cloud/three")):
            self.pods.add(ADMIN, name, endpoint=endpoint, threshold=80)

    def collect(self, *names: str, read: Any = read_eight, **options: Any) -> dict[str, CollectedPod]:
        return {one.usage.pod: one for one in self.pods.collect(ADMIN, names or None, read_endpoint=read, **options)}

    def stored(self) -> dict[str, Any]:
        return {usage.pod: usage.usage for usage in self.pods.list_usages(ADMIN)}


class TestCollect(CollectionTestCase):
    scenarios = fixtures.ON_SQLITE  # what is stored is tested in TestDue, on each database

    def test_own_inventories_and_endpoints(self) -> None:
        """A pod with nothing to measure stays without measurement, and counts as having room.

        Otherwise a cloud without inventories could not use pods.
        """
        self.assertEqual((None, None), (self.collect("p1")["p1"].error, self.stored()["p1"]))
        self.assertEqual("p1", self.pods.select(ADMIN, request={"gpu": 1}, project_id="film").pod)
        self.pods.set_usage(ADMIN, "p1", {"gpu": ResourceUse(8, 0)})
        self.collect("p1")
        self.assertEqual({}, self.stored()["p1"], "its inventories were removed")
        for name in ("n1", "n2"):
            self.add_provider(name, pod="p1", fpga=2)
            self.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(8, reserved=1)})
        self.engine.reserve(ADMIN, {"gpu": 3}, project_id="film", provider="n1")
        self.capacity.set_inventories(ADMIN, "n2", {}, used_elsewhere={"gpu": 2})
        own, gpu = {"fpga": ResourceUse(4, 0), "gpu": ResourceUse(14, 5)}, {"gpu": ResourceUse(8, 3)}
        collected = {name: (one.error, one.usage.usage) for name, one in self.collect().items()}
        self.assertEqual({"p1": (None, own), "p2": (None, gpu), "p3": (None, gpu)}, collected)
        self.assertEqual({"p1": own, "p2": gpu, "p3": gpu}, self.stored())

    def test_one_that_does_not_answer_keeps_its_last_figures(self) -> None:
        self.collect()
        before = {usage.pod: usage.measured_at for usage in self.pods.list_usages(ADMIN)}
        answer = threading.Event()
        self.addCleanup(answer.set)

        def read(endpoint: str) -> Any:
            if endpoint == "cloud/two":
                answer.wait(LONG_SECONDS)
            return {"gpu": ResourceUse(8, 7)}

        late = self.collect(read=read, timeout_seconds=0.3)["p2"]
        self.assertEqual("It did not answer within 0.3 seconds.", late.error)
        found = late.usage.usage, late.usage.measured_at, self.stored()["p3"]
        self.assertEqual(({"gpu": ResourceUse(8, 3)}, before["p2"], {"gpu": ResourceUse(8, 7)}), found)
        # Nor does one that answers nonsense end the others.
        nonsense = {"cloud/two": {"gpu": ResourceUse(2**63, 0)}}
        collected = self.collect(read=lambda endpoint: nonsense.get(endpoint, {"gpu": ResourceUse(9, 8)}))
        self.assertIn("capacity of gpu", str(collected["p2"].error))
        self.assertEqual([{"gpu": ResourceUse(*use)} for use in ((8, 3), (9, 8))], list(self.stored().values())[1:])
        # A selection continues with the last figures: p3 has reached its threshold, p2 has not.
        self.pods.change(ADMIN, "p1", state="maintenance")
        self.assertEqual("p2", self.pods.select(ADMIN, request={"gpu": 1}, project_id="film").pod)

    def test_which_pods(self) -> None:
        self.pods.change(ADMIN, "p3", state="disabled")
        self.assertEqual({"p1", "p2"}, self.collect().keys())
        self.assertEqual(["p3", "p2"], list(self.collect("p3", "p2", "p3")))
        self.assertRaises(exceptions.PodNotFound, self.collect, "p9")
        self.assertIn("no read_endpoint was given", str(self.collect("p2", read=None)["p2"].error))
        for wrong in ("/r", "c/", "/"):
            self.assertRaises(exceptions.InvalidPod, self.pods.change, ADMIN, "p1", endpoint=wrong)
        self.pods.change(ADMIN, "p1", endpoint="c/a/b")

    def test_the_figures_of_another_endpoint(self) -> None:
        """They are removed with it, and what is measured there meanwhile is ignored; as that of a removed pod."""
        self.collect(max_age_seconds=DAY_SECONDS)
        other = self.make_engine().pods
        changes: dict[str, Callable[[], object]] = {
            "cloud/two": lambda: other.remove(ADMIN, "p2"),
            "cloud/three": lambda: other.change(ADMIN, "p3", endpoint="cloud/four"),
        }

        def read_and_change(endpoint: str) -> Mapping[str, ResourceUse]:
            changes[endpoint]()
            return {"gpu": ResourceUse(8, 1)}

        self.pods.change(ADMIN, "p2", weight=1, endpoint="cloud/two")
        self.collect("p3", read=read_and_change)
        self.assertEqual({"p1": None, "p2": {"gpu": ResourceUse(8, 3)}, "p3": None}, self.stored())
        self.assertEqual(["p3"], [name for name in self.collect(max_age_seconds=DAY_SECONDS) if name != "p1"])
        self.assertEqual({}, self.collect("p2", read=read_and_change))


class TestDue(CollectionTestCase):
    def test_only_what_is_old(self) -> None:
        self.assertEqual({"p1", "p2", "p3"}, self.collect(max_age_seconds=DAY_SECONDS).keys())
        self.assertEqual({"p1"}, self.collect(max_age_seconds=DAY_SECONDS).keys(), "it has no measurement")
        self.execute("UPDATE pod_usages SET measured_at = '2001-01-01 00:00:00.000000'")
        self.engine.close()
        self.assertEqual([3] * 4, race(*[lambda: len(self.collect())] * 4))
        self.assertEqual({"p1"}, self.collect(max_age_seconds=DAY_SECONDS).keys())

    def test_after_a_clock_was_set_back(self) -> None:
        """What was written before has a time in the future: it prevents no measurement, and is replaced."""
        self.collect()
        for used, max_age in enumerate((None, DAY_SECONDS)):
            self.execute("UPDATE pod_usages SET measured_at = '2101-01-01 00:00:00.000000'")
            usage = {"gpu": ResourceUse(8, used)}
            collected = self.collect("p2", "p3", read=lambda *_, usage=usage: usage, max_age_seconds=max_age)
            self.assertEqual({"p2", "p3"}, collected.keys())
            self.assertEqual([usage] * 2, [self.stored()[pod] for pod in ("p2", "p3")])

    def test_the_periodic_job(self) -> None:
        settings = fixtures.configuration()
        for interval, spacing in ((86400, 600), (10, 10), (300, 300)):
            settings.set_override("collect_interval", interval, "pods")
            self.assertEqual(spacing, expirer.Maintenance(settings, self.engine).collect_spacing_seconds)
        log = self.useFixture(fx.FakeLogger())
        maintenance = expirer.Maintenance(settings, self.engine)
        self.patch(pod, "read_endpoint", lambda _conf, _timeout, endpoint: self.read_one_of_two(endpoint))
        self.assertEqual([1, 0], [maintenance.collect() for _ in range(2)], "p1 has nothing to measure")
        self.assertIn("Pod p3 was not measured: Placement is away. (Its last figures: none.)", log.output)
        maintenance.stop()
        self.assertRaises(expirer.Stopping, maintenance.collect)
        settings.set_override("collect_interval", 0, "pods")
        self.assertEqual(0, expirer.Maintenance(settings, self.engine).collect())

    def read_one_of_two(self, endpoint: str) -> Any:
        if endpoint == "cloud/three":
            raise exceptions.QuotaError("Placement is away.")
        return {"gpu": ResourceUse(8, 3)}


class TestNotices(CollectionTestCase):
    def taken(self) -> list[tuple[str, str, int, int]]:
        return [(one.owner, one.resource, one.before, one.now) for one in self.pods.notices(ADMIN)]

    def measure(self, pod: str, **used: int) -> None:
        self.pods.set_usage(ADMIN, pod, {resource: ResourceUse(10, amount) for resource, amount in used.items()})

    def test_once_for_each_crossing(self) -> None:
        self.measure("p1", gpu=7, fpga=8)
        self.measure("p2", gpu=0)
        self.pods.set_usage(ADMIN, "p3", {"gpu": ResourceUse(0, 0)})
        maintenance = expirer.Maintenance(fixtures.configuration(), self.engine)
        log = self.useFixture(fx.FakeLogger(format="%(levelname)s %(message)s"))
        self.assertEqual(1, maintenance.notify())
        self.assertIn(
            "WARNING threshold crossed: pod p1, resource fpga: at 80 % of the capacity (used 8, capacity 10)"
            " [owner=p1 resource=fpga limit=10 used=8 level_before=0 level=80]",
            log.output,
        )
        self.assertEqual([], self.taken())
        self.measure("p1", gpu=8, fpga=9)
        self.assertEqual([("p1", "gpu", 0, 80)], self.taken())
        # A threshold that is raised, and a resource that is gone.
        self.pods.change(ADMIN, "p1", threshold=85)
        self.assertEqual([("p1", "gpu", 85, 0)], self.taken())
        self.measure("p1", gpu=8)
        self.assertEqual([("p1", "fpga", 85, 0)], self.taken())
        self.useFixture(fx.MonkeyPatch("cyborg_quota.cli.notifications.SUMMARIZE_ABOVE", 0))
        self.measure("p2", gpu=9)
        maintenance.notify()
        self.assertIn("1 thresholds crossed: 1 at 80 %", log.output)
        self.pods.change(ADMIN, "p1", threshold=80)
        self.engine.close()
        self.assertEqual(1, sum(race(*[lambda: len(self.pods.notices(ADMIN))] * 4)))
