# SPDX-License-Identifier: Apache-2.0
"""Limits per pod: the counters of each pod, their enforcement in the charge, headroom, history, audit and repair.

``assert_invariants`` compares the counters of each pod with the claims at its providers after every call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from cyborg_quota import ANY, SELECT, Claim, Headroom, Inventory, exceptions
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.limits.models import Flat
from cyborg_quota.types import Counters, Drift, UsageKey
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional import test_limits


class PodLimitTestCase(test_limits.LimitsTestCase):
    """The pods p1 and p2 with one provider each, and a provider without a pod; ``a`` has the child ``child``."""

    def setUp(self) -> None:
        super().setUp()
        self.import_tree({"a": None, "child": "a", "b": None}, {"child": {"gpu": -1, "fpga": -1}}, gpu=-1, fpga=-1)
        for name, pod in (("n1", "p1"), ("n2", "p2"), ("n3", None)):
            if pod is not None:
                self.engine.pods.add(ADMIN, pod)
            self.add_provider(name, pod=pod, gpu=20, fpga=20)

    def limit(self, limit: int | None, project_id: str = "a", pod: str = "p1", **how: Any) -> None:
        self.engine.limits.set_limits(ADMIN, {"gpu": limit}, project_id, pod=pod, **how)

    def claim(self, amount: int = 1, project_id: str = "a", **how: Any) -> list[str]:
        how = {"provider": "n1", **how}
        found: list[str] = self.quotas.reserve(base.Context(project_id), {"gpu": amount}, **how)
        return found

    def overs(self, amount: int = 1, project_id: str = "a", **how: Any) -> exceptions.OverQuota:
        how = {"provider": "n1", **how}
        reserve = self.quotas.reserve
        return self.assertRaises(exceptions.OverQuota, reserve, ADMIN, {"gpu": amount}, None, project_id, **how)

    def provider_of(self, uuids: list[str]) -> str | None:
        (row,) = self.engine.list_reservations(ADMIN, reservations=uuids)
        return row.provider


class TestEnforcement(PodLimitTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_limit_that_is_set_later_is_correct_at_once(self) -> None:
        self.quotas.commit(base.Context("a"), self.claim(2))
        self.claim(1)
        self.claim(5, provider="n2")
        self.claim(5, provider="n3")
        self.limit(4)
        self.claim(1)
        self.assertEqual(
            "Quota exceeded: project a, resource gpu in pod p1: limit 4, used 2, reserved 2, requested 1",
            str(self.overs()),
        )
        self.claim(5, provider="n2")
        self.limit(5)
        self.claim(1)
        self.limit(None)
        self.claim(9)

    def test_every_end_of_a_claim_gives_back(self) -> None:
        """Also in another process, which has neither the reservation nor the path in its caches; and in maintenance."""
        self.limit(4)
        other, context = fixtures.Checked(self.make_limited(), self.url), base.Context("a")
        ends: dict[str, Callable[[list[str]], object]] = {
            "rollback": lambda uuids: other.rollback(context, uuids),
            "release": lambda uuids: other.release(context, uuids),
            "commit and release": lambda uuids: (other.commit(context, uuids), other.release(context, uuids)),
            "expire": lambda uuids: (self.make_overdue(*uuids), self.quotas.expire(ADMIN)),
            "resize": self.resize,
            "transfer": self.transfer,
        }
        for name, end in ends.items():
            uuids = self.claim(4, consumer=name)
            self.overs()
            self.engine.pods.change(ADMIN, "p1", state="maintenance")
            self.overs()
            end(uuids)
            self.engine.pods.change(ADMIN, "p1", state="available")
            self.quotas.rollback(context, self.claim(4))

    def resize(self, uuids: list[str]) -> None:
        for amount in (1, 3):
            self.quotas.resize(base.Context("a"), {"gpu": amount}, consumer="resize")
        error = self.assertRaises(exceptions.OverQuota, self.quotas.resize, ADMIN, {"gpu": 5}, "a", consumer="resize")
        self.assertEqual(["p1"], [over.pod for over in error.overs])
        self.quotas.release(base.Context("a"), uuids)

    def transfer(self, _uuids: list[str]) -> None:
        self.limit(3, "b")
        error = self.assertRaises(exceptions.OverQuota, self.quotas.transfer, ADMIN, "b", "a", consumer="transfer")
        self.assertEqual([("b", "p1")], [(over.project_id, over.pod) for over in error.overs])
        self.limit(4, "b")
        self.quotas.transfer(ADMIN, "b", "a", consumer="transfer")

    def test_several_claims_of_one_call(self) -> None:
        self.limit(4)
        claims = [Claim(f"c{number}", {"gpu": 1, "fpga": 1}, provider="n1") for number in range(5)]
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve_many, ADMIN, claims, None, "a")
        self.assertEqual([("gpu", "p1", 5)], [(over.resource, over.pod, over.requested) for over in error.overs])
        mixed = [*claims[:4], Claim("c4", {"gpu": 1}, provider="n2"), Claim("c5", {"gpu": 1})]
        self.quotas.reserve_many(ADMIN, mixed, None, "a")

    def test_the_tree(self) -> None:
        """The limit of a parent counts what its children hold in the pod; a move takes it along."""
        self.limit(4)
        self.claim(3, "child")
        self.claim(9, "child", provider="n2")
        self.claim(1)
        self.assertIn("project a, resource gpu in pod p1: limit 4", str(self.overs(1, "child")))
        self.admin.move_project(ADMIN, "child", "b")
        self.assert_invariants()
        self.claim(3)
        self.overs(1)
        self.limit(3, "b")
        self.assertIn("project b", str(self.overs(1, "child")))
        self.admin.move_project(ADMIN, "child", None)
        self.claim(3, "b")
        self.overs(1, "b")

    def test_the_enforcement_model(self) -> None:
        self.limit(4)
        self.limit(4, "child")
        self.assertRaisesRegex(exceptions.LimitRefused, "gpu in pod p1", self.limit, 5, "child")
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
        self.assertEqual([["p1"], [None, "p1"]], [[over.pod for over in self.overs(amount).overs] for amount in (1, 3)])
        self.claim(2, "b")
        self.assertEqual([None], [over.pod for over in self.overs(1, "b").overs])

    def test_the_limits_of_all_pods_are_read_at_the_first_refusal(self) -> None:
        """A claim with ANY and one with SELECT find the only pod with room in their second attempt."""
        for number in range(4, 9):
            self.engine.pods.add(ADMIN, f"p{number}")
            self.add_provider(f"n{number}", pod=f"p{number}", gpu=20)
        self.engine.capacity.remove_provider(ADMIN, "n3")
        for pod in ("p1", "p2", "p4", "p5", "p6", "p7"):
            self.limit(1, pod=pod)
        for how in ({}, {"pod": SELECT}):
            with hooks.Meanwhile(CapacityEnforcer, "prepare", lambda: None) as place:
                self.assertEqual("n8", self.provider_of(self.claim(2, provider=ANY, **how)))
            self.assertLessEqual(place.count, 2)
        self.limit(4, pod="p8")
        for attempts in (9, 2):  # (the first call reads the limit that was changed)
            with hooks.Meanwhile(CapacityEnforcer, "prepare", lambda: None) as place:
                self.assertRaises(exceptions.OverQuota, self.claim, 2, provider=ANY)
            self.assertLessEqual(place.count, attempts)

    def test_claims_of_one_call_fill_several_pods(self) -> None:
        """``how_many`` claims of one call are granted, beside claims that name a provider, and not one more."""
        self.engine.capacity.remove_provider(ADMIN, "n3")
        self.limit(2)
        self.limit(3, pod="p2")
        number = self.engine.how_many(ADMIN, {"gpu": 1}, "a", provider=ANY).number
        self.assertEqual(5, number)
        for count, named in ((number, 0), (number - 2, 2)):
            claims = [Claim(f"any{one}", {"gpu": 1}, provider=ANY) for one in range(count)]
            claims += [Claim(f"named{one}", {"gpu": 1}, provider="n1") for one in range(named)]
            more = [*claims, Claim("more", {"gpu": 1}, provider=ANY)]
            self.assertRaises(exceptions.OverQuota, self.quotas.reserve_many, ADMIN, more, None, "a")
            self.quotas.rollback(ADMIN, self.quotas.reserve_many(ADMIN, claims, None, "a"))
        # A limit moves only claims of its resource.
        self.engine.capacity.remove_inventory(ADMIN, "n2", "fpga")
        self.limit(0)
        claims = [Claim("A", {"gpu": 1}, provider=ANY), Claim("B", {"fpga": 1}, provider=ANY)]
        self.quotas.reserve_many(ADMIN, claims, None, "a")
        rows = self.engine.list_reservations(ADMIN, state="reserved")
        self.assertEqual({"A": "n2", "B": "n1"}, {row.consumer: row.provider for row in rows})

    def test_select_moves_to_another_pod(self) -> None:
        self.limit(2)
        self.limit(2, pod="p2")
        first = self.provider_of(self.claim(2, provider=ANY, pod=SELECT, group="g"))
        self.assertEqual({"n1", "n2"}, {first, self.provider_of(self.claim(2, provider=ANY, pod=SELECT))})
        self.assertRaises(exceptions.OverQuota, self.claim, 1, provider=ANY, pod=SELECT)
        self.limit(9, pod=("p1", "p2")[first == "n1"])
        self.assertRaises(exceptions.OverQuota, self.claim, 1, provider=ANY, pod=SELECT, group="g")
        self.claim(1, provider=ANY, pod=SELECT)

    def test_a_provider_that_changed_its_pod(self) -> None:
        """Another process has cached the provider with its old pod."""
        self.limit(4)
        other = fixtures.Checked(self.make_limited(), self.url)
        other.rollback(base.Context("a"), other.reserve(base.Context("a"), {"gpu": 4}, provider="n1"))
        self.engine.capacity.set_provider(ADMIN, "n1", pod="p2")
        other.reserve(base.Context("a"), {"gpu": 5}, provider="n1")
        self.engine.capacity.set_provider(ADMIN, "n2", pod="p1")
        self.assertEqual({"p1"}, {over.pod for over in self.overs(5, provider="n2").overs})


class TestHeadroom(PodLimitTestCase):
    """H1: a reserve of ``fits`` is granted, and one of more is refused."""

    scenarios = fixtures.ON_SQLITE

    def granted(self, expected: Headroom, project_id: str = "a", provider: str = ANY, **how: Any) -> None:
        found = self.engine.headroom(ADMIN, project_id, provider=provider, **how)["gpu"]
        self.assertEqual(expected, found)
        reserve = functools.partial(self.quotas.reserve, ADMIN, project_id=project_id, provider=provider, **how)
        self.quotas.rollback(ADMIN, reserve({"gpu": found.fits}))
        self.assertRaises((exceptions.OverQuota, exceptions.OverCapacity), reserve, {"gpu": found.fits + 1})

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
        self.assertEqual({None}, {one.pod for one in self.engine.headroom(base.Context("a"), provider="n1").values()})

    def test_without_a_provider(self) -> None:
        self.claim(2)
        self.limit(7)
        self.assertEqual(Headroom(5, "a", "subtree", 7, None, "p1"), self.engine.headroom(ADMIN, "a", pod="p1")["gpu"])
        check = functools.partial(self.engine.check, deltas={"gpu": 6})
        self.assertEqual(["p1"], [over.pod for over in check(ADMIN, project_id="a", pod="p1")])
        self.assertEqual([], self.engine.check(ADMIN, {"gpu": 5}, "a", pod="p1"))
        self.assertEqual([], check(ADMIN, project_id="a", pod="p2"))
        for call in (self.engine.headroom, check, self.engine.get_detail):
            for pod in ("p1", "p9"):
                self.assertRaises(exceptions.NotAuthorized, call, base.Context("a"), pod=pod)
        self.assertRaises(exceptions.InvalidRequest, self.engine.headroom, ADMIN, "a", provider="n1", pod="p1")
        # Bundles.
        self.limit(9)
        self.limit(5, pod="p2")
        numbers = [
            self.engine.how_many(ADMIN, {"gpu": 2}, "a", **how).number
            for how in ({"provider": "n1"}, {"provider": ANY}, {"pod": "p2"}, {"provider": ANY, "pod": "p2"})
        ]
        self.assertEqual([3, 3 + 2 + 10, 2, 2], numbers)

    def test_a_pod_that_takes_no_claims(self) -> None:
        """With ANY nothing fits there, and a reserve is refused. Nor does one that does not exist."""
        for state in ("maintenance", "disabled"):
            self.engine.pods.change(ADMIN, "p1", state=state)
            how: Any = {"provider": ANY, "pod": "p1"}
            self.assertEqual(0, self.engine.headroom(ADMIN, "a", **how)["gpu"].fits)
            self.assertEqual(0, self.engine.how_many(ADMIN, {"gpu": 1}, "a", **how).number)
            self.assertRaises(exceptions.PodNotAvailable, self.quotas.reserve, ADMIN, {"gpu": 1}, None, "a", **how)
        engine, of_a = self.engine, {"project_id": "a", "pod": "p9"}
        calls: list[Callable[[], object]] = [
            lambda: engine.headroom(ADMIN, **of_a),
            lambda: engine.headroom(ADMIN, provider=ANY, **of_a),
            lambda: engine.how_many(ADMIN, {"gpu": 1}, **of_a),
            lambda: engine.check(ADMIN, {"gpu": 1}, **of_a),
            lambda: engine.list_usages(ADMIN, pod="p9"),
            lambda: engine.limits.list_pod_limits(ADMIN, None, "p9"),
        ]
        for call in calls:
            self.assertRaises(exceptions.PodNotFound, call)

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
        self.assertEqual((gpu, Headroom(5, "a", "subtree", 7, None, "p1")), (child, top.headroom))
        self.assertEqual((-1, 0, 0, "p1"), (fpga.usage.limit, fpga.usage.used, fpga.usage.reserved, fpga.pod))


class TestRepair(PodLimitTestCase):
    def test_drift_of_a_pod_is_found_and_repaired(self) -> None:
        """Also a row that is missing. And a settle corrects it."""
        uuids = self.claim(3, "child")
        self.execute("UPDATE quota_usages SET reserved = 1 WHERE project_id = 'child' AND pod = 'p1'")
        (drift,) = self.engine.audit(ADMIN)
        self.assertEqual(Drift(UsageKey("child", "gpu", "p1"), Counters(0, 1, 3), Counters(0, 3, 3)), drift)
        self.assertEqual([drift], self.quotas.heal(ADMIN))
        self.execute("DELETE FROM quota_usages WHERE pod = 'p1'")
        self.assertEqual(1, len(self.engine.audit(ADMIN)))
        self.quotas.heal(ADMIN)
        self.assertEqual([], self.engine.audit(ADMIN))
        self.execute("UPDATE quota_usages SET reserved = 1, subtree = 1 WHERE pod = 'p1'")
        self.quotas.rollback(base.Context("child"), uuids)
