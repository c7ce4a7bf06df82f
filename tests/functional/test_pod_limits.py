# SPDX-License-Identifier: Apache-2.0
"""Limits per pod: the counters of each pod, their enforcement in the charge, headroom, history, audit and repair.

``assert_invariants`` compares the counters of each pod with the claims at its providers after every call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import testscenarios

from cyborg_quota import ANY, SELECT, Claim, Headroom, Inventory, exceptions
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.limits.models import Flat
from cyborg_quota.types import Counters, Drift, UsageKey
from tests import base, clouds, fixtures
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN


class PodLimitTestCase(test_limits.LimitsTestCase):
    """The pods p1 and p2 with one provider each, and a provider without a pod; ``a`` has the child ``child``."""

    def setUp(self) -> None:
        super().setUp()
        self.import_tree({"a": None, "child": "a", "b": None}, {"child": {"gpu": -1, "fpga": -1}}, gpu=-1, fpga=-1)
        for name, pod in (("n1", "p1"), ("n2", "p2"), ("n3", None)):
            if pod is not None:
                self.engine.pods.add(ADMIN, pod)
            self.engine.capacity.add_provider(ADMIN, name, pod=pod)
            self.engine.capacity.set_inventories(ADMIN, name, {"gpu": Inventory(20), "fpga": Inventory(20)})

    def limit(self, limit: int | None, project_id: str = "a", pod: str = "p1", **how: Any) -> None:
        self.engine.limits.set_limits(ADMIN, {"gpu": limit}, project_id, pod=pod, **how)

    def claim(self, amount: int = 1, project_id: str = "a", **how: Any) -> list[str]:
        how = {"provider": "n1", **how}
        found: list[str] = self.quotas.reserve(base.Context(project_id), {"gpu": amount}, **how)
        return found

    def refusal(self, amount: int = 1, project_id: str = "a", **how: Any) -> str:
        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve, ADMIN, {"gpu": amount}, None, project_id, provider="n1", **how
        )
        return str(error)

    def provider_of(self, uuids: list[str]) -> str | None:
        (row,) = self.engine.list_reservations(ADMIN, reservations=uuids)
        return row.provider


class TestEnforcement(PodLimitTestCase):
    def test_a_limit_that_is_set_later_is_correct_at_once(self) -> None:
        self.quotas.commit(base.Context("a"), self.claim(2))
        self.claim(1)
        self.claim(5, provider="n2")
        self.claim(5, provider="n3")
        self.limit(4)
        self.claim(1)
        self.assertEqual(
            "Quota exceeded: project a, resource gpu in pod p1: limit 4 (project and its descendants), used 2, "
            "reserved 2, subtree 4, requested 1",
            self.refusal(),
        )
        self.claim(5, provider="n2")
        self.limit(5)
        self.claim(1)
        self.limit(None)
        self.claim(9)

    def test_every_end_of_a_claim_gives_back(self) -> None:
        self.limit(4)
        quotas, context = self.quotas, base.Context("a")
        for end in ("rollback", "release", "commit and release", "expire", "resize", "transfer"):
            uuids = self.claim(4, consumer=end)
            self.refusal()
            if end == "commit and release":
                quotas.commit(context, uuids)
                self.refusal()
                quotas.release(context, uuids)
            elif end == "expire":
                self.make_overdue(*uuids)
                quotas.expire(ADMIN)
            elif end == "resize":
                quotas.resize(context, {"gpu": 1}, consumer=end)
                quotas.resize(context, {"gpu": 3}, consumer=end)
                error = self.assertRaises(exceptions.OverQuota, quotas.resize, ADMIN, {"gpu": 5}, "a", consumer=end)
                self.assertEqual(["p1"], [over.pod for over in error.overs])
                quotas.release(context, uuids)
            elif end == "transfer":
                self.limit(3, "b")
                error = self.assertRaises(exceptions.OverQuota, quotas.transfer, ADMIN, "b", "a", consumer=end)
                self.assertEqual([("b", "p1")], [(over.project_id, over.pod) for over in error.overs])
                self.limit(4, "b")
                quotas.transfer(ADMIN, "b", "a", consumer=end)
            else:
                getattr(quotas, end)(context, uuids)
            if end != "transfer":
                quotas.rollback(context, self.claim(4))

    def test_settled_by_another_process(self) -> None:
        """It has neither the reservation nor the path in its caches."""
        self.limit(4)
        other = fixtures.Checked(self.make_limited(), self.url)
        for call in ("rollback", "release"):
            getattr(other, call)(base.Context("a"), self.claim(4))
        other.commit(base.Context("a"), self.claim(4, group="g"))
        other.release(base.Context("a"), group="g")
        self.claim(4)

    def test_several_claims_of_one_call(self) -> None:
        self.limit(4)
        claims = [Claim(f"c{number}", {"gpu": 1, "fpga": 1}, provider="n1") for number in range(5)]
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve_many, ADMIN, claims, None, "a")
        self.assertEqual([("gpu", "p1", 5)], [(over.resource, over.pod, over.requested) for over in error.overs])
        mixed = [*claims[:4], Claim("c4", {"gpu": 1}, provider="n2"), Claim("c5", {"gpu": 1})]
        self.quotas.reserve_many(ADMIN, mixed, None, "a")

    def test_long_names(self) -> None:
        """What headroom says is granted, whatever the lengths of the names of the resource and of the pod."""
        resource, pod = "r" * 255, "p" * 100
        self.engine.register_resources([resource])
        self.admin.set_limits(ADMIN, {resource: -1})
        self.engine.pods.add(ADMIN, pod)
        self.engine.capacity.add_provider(ADMIN, "n4", pod=pod)
        self.engine.capacity.set_inventories(ADMIN, "n4", {resource: Inventory(10)})
        self.assertEqual(10, self.engine.headroom(ADMIN, "a", provider=ANY)[resource].fits)
        self.quotas.reserve(ADMIN, {resource: 1}, None, "a", provider=ANY)
        self.engine.limits.set_limits(ADMIN, {resource: 9}, "a", pod=pod)
        self.assertEqual(8, self.engine.headroom(ADMIN, "a", provider=ANY)[resource].fits)
        self.quotas.reserve(ADMIN, {resource: 8}, None, "a", provider=ANY)
        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve, ADMIN, {resource: 1}, None, "a", provider=ANY
        )
        self.assertEqual([pod], [over.pod for over in error.overs])

    def test_the_tree(self) -> None:
        """The limit of a parent counts what its children hold in the pod; a move takes it along."""
        self.limit(4)
        self.claim(3, "child")
        self.claim(9, "child", provider="n2")
        self.claim(1)
        self.assertIn("project a, resource gpu in pod p1: limit 4", self.refusal(1, "child"))
        self.admin.move_project(ADMIN, "child", "b")
        self.assert_invariants()
        self.claim(3)
        self.refusal(1)
        self.limit(3, "b")
        self.assertIn("project b", self.refusal(1, "child"))
        self.admin.move_project(ADMIN, "child", None)
        self.claim(3, "b")
        self.refusal(1, "b")

    def test_the_enforcement_model(self) -> None:
        self.limit(4)
        self.limit(4, "child")
        error = self.assertRaises(exceptions.LimitRefused, self.limit, 5, "child")
        self.assertIn("gpu in pod p1", str(error))
        self.assertRaises(exceptions.LimitRefused, self.limit, 3)
        self.limit(9, "child", "p2")
        self.policy = Flat
        flat = self.make_limited()
        flat.reserve(base.Context("child"), {"gpu": 4}, provider="n1")
        flat.reserve(base.Context("a"), {"gpu": 4}, provider="n1")
        self.assertRaises(exceptions.OverQuota, flat.reserve, base.Context("a"), {"gpu": 1}, provider="n1")

    def test_with_a_total_limit(self) -> None:
        self.engine.limits.set_total_limits(ADMIN, {"gpu": 6})
        self.limit(4)
        self.claim(4)
        self.assertEqual(["p1"], [over.pod for over in self.overs("a", 1)])
        self.assertEqual([None, "p1"], [over.pod for over in self.overs("a", 3)])
        self.claim(2, "b")
        self.assertEqual([None], [over.pod for over in self.overs("b", 1)])

    def overs(self, project_id: str, amount: int) -> Any:
        return self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve, ADMIN, {"gpu": amount}, None, project_id, provider="n1"
        ).overs

    def test_any_takes_another_pod(self) -> None:
        """A pod whose limit is used up does not fit the claim; a claim that names the pod is refused."""
        self.limit(2)
        self.limit(3, pod="p2")
        self.engine.capacity.set_inventories(ADMIN, "n3", {"gpu": Inventory(1)})
        taken = [self.provider_of(self.claim(1, provider=ANY)) for _ in range(6)]
        self.assertEqual({"n1": 2, "n2": 3, "n3": 1}, {name: taken.count(name) for name in sorted(set(taken), key=str)})
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, ADMIN, {"gpu": 1}, None, "a", provider=ANY)
        self.assertIn({over.pod for over in error.overs}, ({"p1"}, {"p2"}))

    def counted(self) -> Any:
        """Counts the attempts of claims."""
        prepare = CapacityEnforcer.prepare
        return mock.patch.object(CapacityEnforcer, "prepare", autospec=True, side_effect=prepare)

    def test_the_limits_of_all_pods_are_read_at_the_first_refusal(self) -> None:
        """A claim with ANY and one with SELECT find the only pod with room in their second attempt."""
        for number in range(4, 9):
            self.engine.pods.add(ADMIN, f"p{number}")
            self.engine.capacity.add_provider(ADMIN, f"n{number}", pod=f"p{number}")
            self.engine.capacity.set_inventories(ADMIN, f"n{number}", {"gpu": Inventory(20)})
        self.engine.capacity.remove_provider(ADMIN, "n3")
        for pod in ("p1", "p2", "p4", "p5", "p6", "p7"):
            self.limit(1, pod=pod)
        for how in ({}, {"pod": SELECT}):
            with self.counted() as place:
                self.assertEqual("n8", self.provider_of(self.claim(2, provider=ANY, **how)))
            self.assertLessEqual(place.call_count, 2)
        self.limit(4, pod="p8")
        self.assertRaises(exceptions.OverQuota, self.claim, 2, provider=ANY)  # (reads the limit that was changed)
        with self.counted() as place:
            self.assertRaises(exceptions.OverQuota, self.claim, 2, provider=ANY)
        self.assertLessEqual(place.call_count, 2)

    def test_claims_of_one_call_fill_several_pods(self) -> None:
        """``how_many`` claims of one call are granted, beside claims that name a provider, and not one more."""
        self.engine.capacity.remove_provider(ADMIN, "n3")
        self.limit(2)
        self.limit(3, pod="p2")
        number = self.engine.how_many(ADMIN, {"gpu": 1}, "a", provider=ANY).number
        assert number is not None
        self.assertEqual(5, number)
        for count, named in ((number, 0), (number - 2, 2)):
            claims = [Claim(f"any{one}", {"gpu": 1}, provider=ANY) for one in range(count)]
            claims += [Claim(f"named{one}", {"gpu": 1}, provider="n1") for one in range(named)]
            more = [*claims, Claim("more", {"gpu": 1}, provider=ANY)]
            self.assertRaises(exceptions.OverQuota, self.quotas.reserve_many, ADMIN, more, None, "a")
            self.quotas.rollback(ADMIN, self.quotas.reserve_many(ADMIN, claims, None, "a"))

    def test_a_limit_moves_only_claims_of_its_resource(self) -> None:
        self.engine.capacity.remove_provider(ADMIN, "n3")
        self.engine.capacity.remove_inventory(ADMIN, "n2", "fpga")
        self.limit(0)
        claims = [Claim("A", {"gpu": 1}, provider=ANY), Claim("B", {"fpga": 1}, provider=ANY)]
        self.quotas.reserve_many(ADMIN, claims, None, "a")
        found = {row.consumer: row.provider for row in self.engine.list_reservations(ADMIN)}
        self.assertEqual({"A": "n2", "B": "n1"}, found)

    def test_select_moves_to_another_pod(self) -> None:
        self.limit(2)
        self.limit(2, pod="p2")
        first = self.provider_of(self.claim(2, provider=ANY, pod=SELECT, group="g"))
        second = self.provider_of(self.claim(2, provider=ANY, pod=SELECT))
        self.assertEqual({"n1", "n2"}, {first, second})
        self.assertRaises(exceptions.OverQuota, self.claim, 1, provider=ANY, pod=SELECT)
        self.limit(9, pod=("p1", "p2")[first == "n1"])
        self.assertRaises(exceptions.OverQuota, self.claim, 1, provider=ANY, pod=SELECT, group="g")
        self.claim(1, provider=ANY, pod=SELECT)

    def test_a_provider_that_changed_its_pod(self) -> None:
        """Another process has cached the provider with its old pod."""
        self.limit(4)
        other = fixtures.Checked(self.make_limited(), self.url)
        other.rollback(base.Context("a"), other.reserve(base.Context("a"), {"gpu": 4}, provider="n1"))
        self.engine.capacity.set_pod(ADMIN, "n1", "p2")
        other.reserve(base.Context("a"), {"gpu": 5}, provider="n1")
        self.engine.capacity.set_pod(ADMIN, "n2", "p1")
        self.assertRaises(exceptions.OverQuota, self.claim, 5, provider="n2")

    def test_a_pod_in_maintenance(self) -> None:
        """What is held there still counts, and is given back."""
        uuids = self.claim(3)
        self.engine.pods.change(ADMIN, "p1", state="maintenance")
        self.limit(3)
        self.refusal()
        self.quotas.release(base.Context("a"), uuids)
        self.claim(3)


class TestHeadroom(PodLimitTestCase):
    """H1: a reserve of ``fits`` is granted, and one of more is refused."""

    def granted(self, expected: Headroom, project_id: str = "a", provider: str = ANY, **how: Any) -> None:
        found = self.engine.headroom(ADMIN, project_id, provider=provider, **how)["gpu"]
        self.assertEqual(expected, found)
        assert found.fits is not None
        for amount, is_granted in ((found.fits, True), (found.fits + 1, False)):
            if how:
                how["pod"] = how["pod"] if provider == ANY else None
            try:
                uuids = self.quotas.reserve(ADMIN, {"gpu": amount}, None, project_id, provider=provider, **how)
            except (exceptions.OverQuota, exceptions.OverCapacity):
                self.assertFalse(is_granted)
            else:
                self.assertTrue(is_granted)
                self.quotas.rollback(ADMIN, uuids)

    def test_at_providers(self) -> None:
        self.claim(2)
        self.limit(7)
        self.granted(Headroom(5, "a", "subtree", 7, 18, "p1"), provider="n1")
        self.granted(Headroom(5, "a", "subtree", 7, 18, "p1"), "child", provider="n1")
        self.granted(Headroom(20, "n2", "provider", None, 20), provider="n2")
        self.granted(Headroom(20, ANY, "provider", None, 58))
        self.granted(Headroom(5, "a", "subtree", 7, 18, "p1"), pod="p1")
        self.granted(Headroom(20, ANY, "provider", None, 20), pod="p2")
        self.limit(3, pod="p2")
        self.engine.capacity.set_inventories(ADMIN, "n3", {"gpu": Inventory(4)})
        self.granted(Headroom(5, "a", "subtree", 7, 42, "p1"))
        self.admin.set_limits(ADMIN, {"gpu": 0}, "child")
        self.set("a", 6)
        self.granted(Headroom(4, "a", "subtree", 6, 42))
        hidden = self.engine.headroom(base.Context("a"), provider="n1")
        self.assertEqual({None}, {one.pod for one in hidden.values()})

    def test_without_a_provider(self) -> None:
        self.claim(2)
        self.limit(7)
        self.assertEqual(Headroom(5, "a", "subtree", 7, None, "p1"), self.engine.headroom(ADMIN, "a", pod="p1")["gpu"])
        self.assertEqual(["p1"], [over.pod for over in self.engine.check(ADMIN, {"gpu": 6}, "a", pod="p1")])
        self.assertEqual([], self.engine.check(ADMIN, {"gpu": 5}, "a", pod="p1"))
        self.assertEqual([], self.engine.check(ADMIN, {"gpu": 6}, "a", pod="p2"))
        check = functools.partial(self.engine.check, deltas={"gpu": 1})
        for call in (self.engine.headroom, check, self.engine.get_detail):
            self.assertRaises(exceptions.NotAuthorized, call, base.Context("a"), pod="p1")
        self.assertRaises(exceptions.InvalidRequest, self.engine.headroom, ADMIN, "a", provider="n1", pod="p1")

    def test_a_pod_that_takes_no_claims(self) -> None:
        """With ANY nothing fits there, and a reserve is refused."""
        for state in ("maintenance", "disabled"):
            self.engine.pods.change(ADMIN, "p1", state=state)
            how: Any = {"provider": ANY, "pod": "p1"}
            self.assertEqual(0, self.engine.headroom(ADMIN, "a", **how)["gpu"].fits)
            self.assertEqual(0, self.engine.how_many(ADMIN, {"gpu": 1}, "a", **how).number)
            self.assertRaises(exceptions.PodNotAvailable, self.quotas.reserve, ADMIN, {"gpu": 1}, None, "a", **how)

    def test_a_pod_that_does_not_exist(self) -> None:
        engine = self.engine
        calls: list[Callable[[], object]] = [
            lambda: engine.headroom(ADMIN, "a", pod="p9"),
            lambda: engine.headroom(ADMIN, "a", provider=ANY, pod="p9"),
            lambda: engine.how_many(ADMIN, {"gpu": 1}, "a", pod="p9"),
            lambda: engine.check(ADMIN, {"gpu": 1}, "a", pod="p9"),
            lambda: engine.list_usages(ADMIN, pod="p9"),
            lambda: engine.limits.list_pod_limits(ADMIN, None, "p9"),
        ]
        for call in calls:
            self.assertRaises(exceptions.PodNotFound, call)
        self.assertRaises(exceptions.NotAuthorized, engine.headroom, base.Context("a"), pod="p9")

    def test_bundles(self) -> None:
        self.limit(7)
        self.limit(5, pod="p2")
        numbers = [
            self.engine.how_many(ADMIN, {"gpu": 2}, "a", **how).number
            for how in ({"provider": "n1"}, {"provider": ANY}, {"pod": "p2"}, {"provider": ANY, "pod": "p2"})
        ]
        self.assertEqual([3, 3 + 2 + 10, 2, 2], numbers)

    def test_usage_in_a_pod(self) -> None:
        self.claim(2, "child")
        self.limit(7)
        self.limit(5, "child")
        records = self.engine.list_usages(ADMIN, pod="p1")
        self.assertEqual(
            [("a", "gpu", 7, 0, "p1"), ("child", "gpu", 5, 2, "p1")],
            [(one.project_id, one.resource, one.usage.limit, one.usage.reserved, one.pod) for one in records],
        )
        self.assertEqual(records[1:], self.engine.list_usages(ADMIN, pod="p1", after=("a", "gpu"), limit=9))
        self.assertEqual(records[:1], self.engine.list_usages(ADMIN, "a", pod="p1", resource="gpu"))
        self.assertEqual([], self.engine.list_usages(ADMIN, pod="p2"))
        fpga, gpu = self.engine.get_detail(ADMIN, "child", pod="p1")
        self.assertEqual(records[1], dataclasses.replace(gpu, headroom=None))
        self.assertEqual(Headroom(3, "child", "subtree", 5, None, "p1"), gpu.headroom)
        top, child = self.engine.list_usages(ADMIN, pod="p1", with_headroom=True)
        self.assertEqual(gpu, child)
        self.assertEqual(Headroom(5, "a", "subtree", 7, None, "p1"), top.headroom)
        self.assertEqual((-1, 0, 0, "p1"), (fpga.usage.limit, fpga.usage.used, fpga.usage.reserved, fpga.pod))


class TestRepair(PodLimitTestCase):
    def test_drift_of_a_pod_is_found_and_repaired(self) -> None:
        self.claim(3, "child")
        self.execute("UPDATE quota_usages SET reserved = 1 WHERE project_id = 'child' AND pod = 'p1'")
        (drift,) = self.engine.audit(ADMIN)
        self.assertEqual(Drift(UsageKey("child", "gpu", "p1"), Counters(0, 1, 3), Counters(0, 3, 3)), drift)
        self.assertEqual([drift], self.engine.heal(ADMIN))
        self.assert_invariants()

    def test_a_row_that_is_missing(self) -> None:
        self.claim(3, "child")
        self.execute("DELETE FROM quota_usages WHERE pod = 'p1'")
        self.assertEqual(1, len(self.engine.audit(ADMIN)))
        self.engine.heal(ADMIN)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(ADMIN))

    def test_a_settle_corrects_drift(self) -> None:
        uuids = self.claim(3)
        self.execute("UPDATE quota_usages SET reserved = 1, subtree = 1 WHERE pod = 'p1'")
        self.quotas.rollback(base.Context("a"), uuids)

    def test_purge_folds_the_claims_of_one_pod(self) -> None:
        for _ in range(3):
            self.quotas.commit(base.Context("a"), self.claim(1))
        self.limit(3)
        self.assertEqual(2, self.quotas.purge(ADMIN, 0))
        self.refusal()


class TestCost(PodLimitTestCase):
    def test_claims_in_no_pod_send_the_same_statements(self) -> None:
        def statements(**how: Any) -> list[str]:
            with clouds.captured() as captured:
                self.engine.commit(base.Context("b"), self.engine.reserve(base.Context("b"), {"gpu": 1}, **how))
            return [text for text, _ in captured]

        found = []
        for how in ({}, {"provider": "n3"}, {"provider": "n1"}):
            for _ in range(2):  # the first one fills the caches
                texts = statements(**how)
            found.append(texts)
        self.assertEqual([], [text for text in [*found[0], *found[1]] if ", pod" in text and "INSERT" in text])
        self.assertEqual(len(found[0]), len([text for text in found[1] if "inventories" not in text]))
