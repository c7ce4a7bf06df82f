# SPDX-License-Identifier: Apache-2.0
"""The ledger compared with Cyborg's records: what is found, and what is repaired. The records are set by the test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from unittest import mock

from cyborg_quota import Claim, Inventory, exceptions
from cyborg_quota.cyborg import reconciler as reconciler_module
from cyborg_quota.cyborg.diff import Record
from cyborg_quota.cyborg.reconciler import Reconciler
from tests import base, fixtures, hooks


class Cloud:
    """Cyborg's side: {arq: Record}, and the ARQs that are not bound: {arq: whether it is changing}."""

    def __init__(self) -> None:
        self.arqs: dict[str, Record] = {}
        self.others: dict[str, bool] = {"an ARQ that is not bound": False}
        self.changed: set[str] = set()

    def bind(
        self,
        *arqs: str,
        project_id: str | None = "p1",
        instance: str = "i1",
        providers: tuple[str, ...] = (),
        **deltas: int,
    ) -> None:
        for arq in arqs:
            self.arqs[arq] = Record(arq, project_id, instance, deltas or {"gpu": 1}, providers)

    def all(self) -> Iterator[Record]:
        found = self.of({*self.arqs, *self.others})
        yield from (found[arq] for arq in sorted(found))

    def of(self, arqs: Collection[str]) -> dict[str, Record]:
        others = {arq: Record(arq, "p1", is_changing=is_changing) for arq, is_changing in self.others.items()}
        return {arq: record for arq, record in {**others, **self.arqs}.items() if arq in arqs}

    def changed_lately(self, _seconds: float) -> list[Record]:
        return list(self.of(self.changed).values())


class ReconcilerTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = Cloud()
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.meanwhile()

    def reconciler(self, **changes: Any) -> Reconciler:
        settings = {"grace_seconds": 30, "share": 100, "wait": self.wait, **changes}
        return Reconciler(self.quotas, self.cloud, ("gpu", "gpu.A100"), **settings)

    def charge(self, *arqs: str, project_id: str = "p1", provider: str | None = None, **deltas: int) -> list[str]:
        claims = [Claim(arq, deltas or {"gpu": 1}, provider=provider) for arq in arqs]
        uuids = self.quotas.reserve_many(base.Context(project_id), claims, group="i1")
        self.quotas.commit(base.Context(project_id), uuids)
        return uuids

    def found(self) -> list[tuple[str, str]]:
        return [(difference.arq, difference.problem) for difference in self.reconciler().find().differences]

    def heal(self, **changes: Any) -> list[Any]:
        """Repair all, and return what was repaired. Then no difference is found."""
        reconciler = self.reconciler(**changes)
        healed = reconciler.heal(reconciler.find())
        self.assertEqual(([], []), (self.found(), self.engine.audit(base.ADMIN)))
        return healed


class TestDifferences(ReconcilerTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_grace(self) -> None:
        """Differences that settle within the grace period were binds in progress, in each direction.

        One that is released and charged again is not the same difference. Charges by no rule, and charges without a
        consumer, do not belong to Cyborg.
        """
        self.cloud.bind("a")
        self.charge("a")
        self.charge("by hand", fpga=1)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.assertEqual(([], []), (self.found(), self.waits))
        self.assertEqual((0, []), (self.reconciler().find_lately().compared, self.waits))
        self.cloud.bind("late commit")
        self.charge("late release", "again")

        def settle() -> None:
            self.charge("late commit")
            for arq in ("late release", "again"):
                self.quotas.release(self.context, consumer=arq)
            self.charge("again")

        self.meanwhile = settle
        self.assertEqual([], self.found())

    def test_in_flight(self) -> None:
        """An ARQ that is not bound, or is bound for another project, may be in a bind now.

        One that is bound is in flight for longer than the grace, unless the bind commits within it.
        """
        for arq in ("a", "b", "deleted", "bound", "late commit"):
            self.quotas.reserve(self.context, {"gpu": 1}, consumer=arq)
        self.cloud.others["a"] = False
        self.cloud.bind("b", project_id="p2")
        self.cloud.bind("bound", "late commit")
        self.meanwhile = lambda: self.quotas.commit(self.context, consumer="late commit")
        self.assertEqual([("bound", "not committed"), ("deleted", "not attached")], self.found())

    def test_lately(self) -> None:
        """ARQs that Cyborg has changed, and reservations in flight. A deleted ARQ is found by a comparison of all."""
        self.cloud.bind("changed", "in flight", "long ago")
        self.charge("unbound", "deleted")
        self.cloud.others["unbound"] = False
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="in flight")
        self.cloud.changed = {"changed", "unbound", "deleted"}
        found = {one.arq: one.problem for one in self.reconciler().find_lately().differences}
        expected = {"changed": "not charged", "in flight": "not committed", "unbound": "not attached"}
        self.assertEqual((expected, [30]), (found, self.waits))
        self.assertEqual({*expected, "deleted", "long ago"}, {arq for arq, _ in self.found()})

    def test_more_than_are_repaired_at_a_time(self) -> None:
        """Each run repairs some, and knows how many are left."""
        self.charge(*[f"ghost {number}" for number in range(5)])
        self.cloud.bind(*[f"free {number}" for number in range(5)])
        rest = []
        with mock.patch.object(reconciler_module, "_MAX_DIFFERENCES", 4):
            for _ in range(3):
                report = self.reconciler().find()
                rest.append((len(report.differences), report.total))
                self.reconciler().heal(report, force=True)
        self.assertEqual([(4, 10), (4, 6), (2, 2)], rest)
        self.assertEqual(([], (5, 0)), (self.found(), self.figures()))

    def test_the_guards_count_all(self) -> None:
        """Also those that are not kept in memory."""
        ghosts = [f"ghost {number}" for number in range(12)]
        self.charge(*ghosts)
        self.cloud.bind(*[f"free {number}" for number in range(12)])
        reconciler, counts = self.reconciler(share=50), list[int]()
        with mock.patch.object(reconciler_module, "_MAX_DIFFERENCES", 1):
            self.assertRaises(reconciler_module.RecordsShrunk, reconciler.heal, reconciler.find())
            self.cloud.arqs.clear()
            self.cloud.bind(*ghosts, gpu=2)
            error = self.assertRaises(reconciler_module.TooManyChanges, reconciler.heal, reconciler.find())
        self.assertEqual((12, 12, 50), (error.changes, error.compared, error.share))
        self.assertIn("--force", str(error))
        self.assertEqual((12, 0), self.figures())
        reconciler.heal(reconciler.find(), force=True, progress=counts.append)
        self.assertEqual(((24, 0), 12), (self.figures(), sum(counts)))


class TestHeal(ReconcilerTestCase):
    scenarios = fixtures.ON_SQLITE  # it calls the engine, as TestCapacity does on each database

    def test_each_kind(self) -> None:
        """Limits do not undo an attachment. What an old rule had charged is released. What expired is charged again."""
        self.cloud.bind("free", instance="i2")
        self.charge("ghost", "other", "more", project_id="p2")
        self.cloud.bind("other")
        self.cloud.bind("more", project_id="p2", gpu=1, **{"gpu.A100": 1})
        self.charge("replaced", fpga=1)
        self.charge("dropped", gpu=1, fpga=1)
        for arq in ("flying", "overdue"):
            uuids = self.quotas.reserve(self.context, {"gpu": 1}, consumer=arq)
        self.cloud.bind("replaced", "dropped", "flying", "overdue")
        self.make_overdue(*uuids)
        self.limits.own.update({(None, "gpu"): 0, ("p2", "gpu"): 9})
        expected = {
            "dropped": "wrong amount",
            "flying": "not committed",
            "free": "not charged",
            "ghost": "not attached",
            "more": "wrong amount",
            "other": "wrong project",
            "overdue": "not committed",
            "replaced": "wrong amount",
        }
        self.assertEqual((expected, [30]), (dict(self.found()), self.waits))
        with self.assertLogs(reconciler_module.LOG.logger, "INFO") as logged:
            self.assertEqual(list(expected), [one.arq for one in self.heal()])
        self.assertIn("ARQ free (not charged): was charged nothing, is charged p1 gpu=1", "\n".join(logged.output))
        held = {(one.project_id, one.resource): one.usage.used for one in self.engine.list_usages(base.ADMIN)}
        self.assertEqual({("p1", "fpga"): 0, ("p1", "gpu"): 6, ("p2", "gpu"): 1, ("p2", "gpu.A100"): 1}, held)
        self.quotas.release(self.context, group="i2")  # by the instance, as after a bind
        self.assertEqual((5, 0), self.figures())

    def test_bound_or_unbound_during_the_repair(self) -> None:
        """A charge that comes too late is released. One that was not released is used by the next bind: charged again.

        What is bound differently is not repaired now. A conductor may have been faster to settle a reservation.
        """
        for arq in ("committed", "rolled back", "overdue"):
            uuids = self.quotas.reserve(self.context, {"gpu": 1}, consumer=arq)
        self.make_overdue(*uuids)
        self.cloud.bind("committed", "rolled back", "overdue", "unbound", "differently")
        self.charge("bound")
        report = self.reconciler().find()
        self.quotas.commit(self.context, consumer="committed")
        self.quotas.rollback(self.context, consumer="rolled back")
        for arq in ("unbound", "rolled back", "overdue"):
            del self.cloud.arqs[arq]
        self.cloud.bind("bound")
        self.quotas.reserve(self.context, {"gpu": 2}, consumer="differently")
        self.assertNotIn("differently", [difference.arq for difference in self.reconciler().heal(report)])
        self.assertEqual((2, 2), self.figures())
        committed = self.engine.list_reservations(base.ADMIN, state="committed")
        self.assertEqual({"bound", "committed"}, {row.consumer for row in committed})

    def test_bound_differently_after_its_release(self) -> None:
        """It is reported neither as repaired nor as unchanged; the others are reported as repaired."""
        self.charge("a", "b", gpu=2)
        self.cloud.bind("a", "b")
        report = self.reconciler().find()
        bind = lambda: self.quotas.reserve(self.context, {"gpu": 3}, consumer="a")  # noqa: E731
        with (
            hooks.Meanwhile(self.engine, "release", bind, after=True),
            self.assertLogs(reconciler_module.LOG.logger, "INFO") as logged,
        ):
            changed = self.reconciler().heal(report)
        expected = [("a", "released, not charged"), ("b", "wrong amount")]
        self.assertEqual(expected, [(difference.arq, difference.problem) for difference in changed])
        self.assertEqual((1, 3), self.figures())
        text = "\n".join(logged.output)
        self.assertIn("Not repaired, only released: ARQ a: wrong amount; charged p1 gpu=2, attached p1 gpu=1: ", text)
        self.assertNotIn("Repaired: ARQ a", text)

    def test_down_in_the_middle(self) -> None:
        """Finished repairs stay; the rest is found again."""
        self.cloud.bind("a", instance="i1")
        self.cloud.bind("b", project_id="p2", instance="i2")
        report = self.reconciler().find()
        answers = [mock.DEFAULT, exceptions.DatabaseUnreachable("it is gone", 6.0)]
        with mock.patch.object(self.engine, "adopt", wraps=self.engine.adopt, side_effect=answers):
            self.assertRaises(exceptions.DatabaseUnavailable, self.reconciler().heal, report)
        self.assertEqual([("b", "not charged")], self.found())


class TestPod(ReconcilerTestCase):
    def test_what_is_attached_counts_in_the_pod_of_this_cyborg(self) -> None:
        """Except at a provider, which has a pod of its own or none."""
        self.engine.pods.add(base.ADMIN, "east")
        self.add_provider("n1", gpu=8)
        self.cloud.bind("a")
        self.cloud.bind("b", providers=("n1",))
        self.heal(pod="east")
        rows = self.fetch("SELECT consumer_id, pod FROM reservations ORDER BY consumer_id")
        self.assertEqual([("a", "east"), ("b", None)], [tuple(row) for row in rows])


class TestCapacity(ReconcilerTestCase):
    """Charges that take capacity of a provider: n1, with 8 gpu."""

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n1", gpu=8)

    def used(self) -> int:
        return self.capacity.list_inventories(base.ADMIN, "n1")[0].used

    def test_repairs_claim_where_the_accelerator_is(self) -> None:
        """Also above the capacity. The device is not imported, but its host is."""
        here = ("a device", "n1")
        self.charge("ghost", provider="n1", gpu=3)  # what is not attached gives its capacity back
        self.charge("other", "more", provider="n1")
        self.cloud.bind("other", project_id="p2", providers=here)
        self.cloud.bind("more", providers=here, gpu=2)
        self.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(2)})
        self.cloud.bind("free", providers=here)
        self.heal()
        self.assertEqual(4, self.used())

    def test_without_an_inventory_only_the_quota_is_charged(self) -> None:
        self.cloud.bind("model", providers=("n1",), **{"gpu": 1, "gpu.A100": 1})
        self.charge("model", provider="n1")
        self.cloud.bind("elsewhere", providers=("n9",))
        self.heal()
        self.assertEqual(0, self.used())

    def test_the_provider_is_removed_during_the_repair(self) -> None:
        self.cloud.bind("free", "second", providers=("n1",))
        remove = lambda: self.capacity.remove_provider(base.ADMIN, "n1")  # noqa: E731
        with hooks.Meanwhile(type(self.capacity), "find_provider", remove, after=True):
            self.heal()
        self.assertEqual(2, len(self.engine.list_reservations(base.ADMIN, state="committed")))


class TestSources(ReconcilerTestCase):
    """Two Cyborgs, and a caller that gives no source, on one ledger."""

    scenarios = fixtures.ON_SQLITE

    def adopt(self, arq: str, source: str | None, **deltas: int) -> None:
        self.quotas.adopt(base.ADMIN, [Claim(arq, deltas or {"gpu": 1}, source=source)], "p1")

    def live(self) -> dict[str | None, str | None]:
        """Return {consumer: source} of the charges."""
        return {row.consumer: row.source for row in self.quotas.list_reservations(base.ADMIN, state="committed")}

    def test_only_its_own_are_released(self) -> None:
        for source in ("east", "west", None):
            self.adopt(f"ghost of {source}", source)
        reconciler = self.reconciler(source="east")
        report = reconciler.find()
        found = {
            one.arq: (one.is_own, one.is_missing, *(charge.source for charge in one.charges))
            for one in report.differences
        }
        self.assertEqual({"ghost of east": (True, True, "east"), "ghost of None": (False, True, None)}, found)
        reconciler.heal(report)
        self.assertEqual({"ghost of west": "west", "ghost of None": None}, self.live())

    def test_claimed(self) -> None:
        """Only the charges that a comparison covers: of accelerators, or of bound ARQs. Both read page by page."""
        self.cloud.bind("bound")
        self.adopt("bound", None, fpga=1)
        self.adopt("ghost", None)
        self.adopt("by hand", None, fpga=1)
        self.adopt("theirs", "west")
        self.quotas.reserve(self.context, {"gpu": 1}, consumer="in flight")
        self.patch(reconciler_module, "_PAGE_ROWS", 2)
        self.assertEqual([3, 0], [self.reconciler(source="east").claim_source() for _ in range(2)])
        self.assertEqual({"bound": "east", "ghost": "east", "by hand": None, "theirs": "west"}, self.live())
        self.cloud.bind("free")
        healed = self.reconciler(source="east").heal(self.reconciler(source="east").find())
        self.assertEqual(["bound", "free", "ghost", "in flight"], [one.arq for one in healed])
        self.assertEqual({"bound": "east", "free": "east", "by hand": None, "theirs": "west"}, self.live())
        # After a change of the name, the charges of the old name are repaired.
        self.adopt("another ghost", "east")
        self.adopt("also by hand", "east", fpga=1)
        self.assertEqual(3, self.reconciler(source="north").claim_source("east"))
        expected = {"bound": "north", "free": "north", "another ghost": "north"}
        self.assertEqual({**expected, "also by hand": "east", "by hand": None, "theirs": "west"}, self.live())
        self.assertEqual(1, len(self.reconciler(source="north").heal(self.reconciler(source="north").find())))

    def test_of_bound_arqs(self) -> None:
        """Charged with another source, or without one, and different from the attachment: reported, not changed."""
        for arq, source in (("none", None), ("west", "west"), ("east", "east")):
            self.cloud.bind(arq, gpu=1)
            self.adopt(arq, source, gpu=2)
        report = self.reconciler(source="east").find()
        self.assertEqual(["wrong amount"] * 3, [difference.problem for difference in report.differences])
        self.assertEqual(["east"], [one.arq for one in self.reconciler(source="east").heal(report, force=True)])
        self.assertEqual({"none": None, "west": "west", "east": "east"}, self.live())
