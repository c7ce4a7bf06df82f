# SPDX-License-Identifier: Apache-2.0
"""Claims inside the pod that is selected for a project, or inside a named pod."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import ANY, SELECT, Claim, QuotaEngine, attachment, exceptions
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.pods import claims as pod_claims
from cyborg_quota.pods import selection as pod_selection
from cyborg_quota.types import PodChoice
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional import test_pods

CAD = test_pods.CAD
TENANT = base.Context("tenant1")


class PodClaimTestCase(test_pods.PodTestCase):
    """With claims enabled. Each pod has one provider of the same name, unless a test adds more."""

    def add(self, pod: str, *totals: int, **options: Any) -> None:
        """Add a pod with providers of these numbers of gpu; the first one has the name of the pod."""
        self.pods.add(ADMIN, pod, **options)
        for number, total in enumerate(totals):
            self.add_provider(f"{pod}-{number}" if number else pod, pod=pod, gpu=total)

    def claim(self, amount: int = 1, *, engine: QuotaEngine | None = None, **arguments: Any) -> str | None:
        """Claim for tenant1, by default in its pod. Returns the name of the provider."""
        arguments = {"pod": SELECT, "provider": ANY, "context": TENANT, **arguments}
        quotas: Any = engine or self.quotas
        uuids = quotas.reserve(arguments.pop("context"), {"gpu": amount}, **arguments)
        (row,) = self.engine.list_reservations(ADMIN, reservations=uuids)
        return row.provider

    def reserve_each(self, *claims: Claim, group: str | None = None) -> list[str | None]:
        """The provider of each of these claims of one call."""
        uuids = self.quotas.reserve_many(TENANT, claims, group=group)
        return [row.provider for row in self.engine.list_reservations(ADMIN, reservations=uuids)]

    def refused(self, amount: int = 1, **arguments: Any) -> exceptions.OverCapacity:
        return self.assertRaises(exceptions.OverCapacity, self.claim, amount, **arguments)

    def history(self, project_id: str = "tenant1") -> list[tuple[str | None, str]]:
        """The pods and reasons of the bindings of a project, the current ones included."""
        return [(one.pod, one.reason) for _, one in self.pods.list_bindings(ADMIN, project_id, history=True)]


class TestRepeatedRead(PodClaimTestCase):
    def test_it_chooses_anew(self) -> None:
        """If the read is retried after a lost connection, its first choice is discarded."""
        self.add("p1", 8)
        database = hooks.database_of(self.engine)
        read = database.read
        self.patch(database, "read", lambda work: (read(work), read(work))[1])
        self.assertEqual(
            ["p1", "p1"], self.reserve_each(*[Claim(c, {"gpu": 4}, provider=ANY, pod=SELECT) for c in "ab"])
        )


class TestFiltersDecideInTheTransaction(PodClaimTestCase):
    """A pod that changes after it was ranked, and before the binding is created, is ranked again."""

    def setUp(self) -> None:
        super().setUp()
        for pod in ("p1", "p2"):
            self.add(pod, 20, zone="z1")
        self.other = self.make_engine().pods

    def claim_of(self, project_id: str) -> object:
        return self.claim(context=base.Context(project_id), pod=PodChoice(zone="z1"))

    def select_for(self, project_id: str) -> object:
        return self.pods.select(ADMIN, project_id=project_id, zone="z1", request={"gpu": 1})

    def histories(self) -> Iterator[list[tuple[str | None, str]]]:
        """The bindings of each project for which p1 is chosen, and is changed before the binding is created."""
        ways: list[tuple[Any, str, Callable[[str], object]]] = [
            (CapacityEnforcer, "prepare", self.claim_of),
            (pod_selection.PodSelection, "ranked", self.select_for),
        ]
        # (On SQLite, which has one writer, the change would wait for the transaction of the selection.)
        for owner, name, call in ways[: 1 if self.backend == "sqlite" else 2]:
            for number, change in enumerate(
                (
                    lambda: self.other.change(ADMIN, "p1", affinity=CAD),
                    lambda: self.other.set_usage(ADMIN, "p1", {"gpu": ResourceUse(20, 20)}),
                    lambda: self.other.change(ADMIN, "p1", state="maintenance"),
                )
            ):
                self.pods.change(ADMIN, "p1", affinity={}, state="available")
                self.pods.set_usage(ADMIN, "p1", {"gpu": ResourceUse(20, 0)})
                with hooks.Meanwhile(owner, name, change, after=True):
                    call(f"{name}{number}")
                yield self.history(f"{name}{number}")

    def test_the_pod_is_ranked_again(self) -> None:
        for history in self.histories():
            self.assertEqual([("p2", "first")], history)

    def test_naive_is_detected(self) -> None:
        """Without the lock and the second look, projects are bound to a pod that the filters refuse."""
        self.patch(pod_claims, "hold", lambda *_arguments: True)
        for history in self.histories():
            self.assertEqual([("p1", "first")], history)

    def test_a_selection_locks_one_pod_at_a_time(self) -> None:
        """Two selections that lock several pods in different orders would wait for each other."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has one writer")
        steps = mock.Mock()
        steps.lock.side_effect = pod_claims.hold
        self.patch(pod_claims, "hold", steps.lock)
        sa.event.listen(hooks.database_of(self.engine).engine, "rollback", lambda _connection: steps.rollback())
        maintain = functools.partial(self.other.change, ADMIN, "p1", state="maintenance")
        with hooks.Meanwhile(pod_selection.PodSelection, "ranked", maintain, after=True):
            self.select_for("film")
        found = self.history("film"), [call[0] for call in steps.mock_calls]
        self.assertEqual(([("p2", "first")], ["lock", "rollback", "lock"]), found)


class TestBinding(PodClaimTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_full_pod_and_one_in_maintenance_are_left(self) -> None:
        """A refused claim changes no binding; a quota refusal comes first."""
        self.add("p1", 9, threshold=50)
        self.limits.own["tenant1", "gpu"] = 8
        for amount in (9, 99):
            self.assertRaises(exceptions.OverQuota, self.claim, amount)
        self.assertEqual(([], "p1"), (self.history(), self.claim()))
        self.fill("p1", 5)
        self.add("p2", 1)
        self.limits.own["tenant1", "gpu"] = 99
        lost = self.useFixture(hooks.LostCommits(self.engine, self.backend))
        self.assertEqual(("p2", 1), (self.claim(), lost.lost))
        self.assertEqual(
            "The claim does not fit: no pod that the project may use has a provider that can take gpu=10",
            str(self.refused(10)),
        )
        self.fill("p1", 4)
        self.pods.change(ADMIN, "p2", state="maintenance")
        self.pods.change(ADMIN, "p1", state="disabled")
        for arguments in ({}, {"pod": PodChoice(zone="x")}, {"context": base.Context("tenant2")}):
            self.refused(**arguments)
        self.pods.change(ADMIN, "p1", state="available")
        self.assertEqual("p1", self.claim())
        expected = [("p1", "first"), ("p2", "full"), ("p1", "maintenance")]
        self.assertEqual((expected, []), (self.history(), self.history("tenant2")))

    def test_attachments_in_zones(self) -> None:
        """Each zone and each set of tags has a binding of its own."""
        self.add("a1", 9, zone="a")
        self.add("b1", 9, zone="b", affinity=CAD)
        for pod, choice in (("b1", PodChoice("b", CAD)), ("a1", SELECT)):
            with attachment(self.engine, TENANT, {"gpu": 1}, consumer=pod, provider=ANY, pod=choice) as uuids:
                self.engine.rollback(TENANT, uuids)  # it is charged again, at the same provider
            (row,) = [one for one in self.engine.get_reservations(TENANT, consumer=pod) if one.ended_at is None]
            self.assertEqual((pod, "committed"), (row.provider, row.state))
        self.refused(pod=PodChoice("b"))
        self.assertEqual([("b1", "first"), ("a1", "first")], self.history())


class TestOneCall(PodClaimTestCase):
    """Claims of one call."""

    scenarios = fixtures.ON_SQLITE

    @staticmethod
    def in_pod(amount: int, pod: str | PodChoice = SELECT, consumer: str | None = None) -> Claim:
        return Claim(consumer, {"gpu": amount}, provider=ANY, pod=pod)

    def test_equal_choices_go_to_one_pod(self) -> None:
        self.add("p1", 3)
        self.add("p2", 2, 2)
        self.assertEqual({"p2", "p2-1"}, set(self.reserve_each(self.in_pod(2), self.in_pod(2))))
        self.assertRaises(exceptions.OverCapacity, self.reserve_each, self.in_pod(1), self.in_pod(3))
        named = Claim(None, {"gpu": 2}, provider="p1")
        self.add("p3", 9)
        claims = [Claim(None, {"gpu": 1}, provider=ANY), self.in_pod(2, consumer="c"), named]
        self.assertEqual(["p1", "p3", "p1"], self.reserve_each(*claims), "the named one first, then those in pods")
        self.assertEqual(["p3", "p3"], self.reserve_each(self.in_pod(1), claims[1]), "a repeat of one of them")
        self.assertEqual([("p2", "first"), ("p3", "claim")], self.history())

    def test_different_choices_move_several_bindings(self) -> None:
        self.add("p1", 1)
        self.add("p2", 1, affinity=CAD)
        choices = (SELECT, PodChoice(affinity=CAD))
        self.reserve_each(*(self.in_pod(1, choice) for choice in choices))
        self.add("p3", 4, affinity=CAD)
        self.add("p4", 4)
        self.assertEqual({"p3", "p4"}, set(self.reserve_each(*(self.in_pod(1, choice) for choice in choices))))
        expected = [("p1", "first"), ("p2", "first"), ("p3", "claim"), ("p4", "claim")]
        self.assertEqual(expected, sorted(self.history(), key=str))
        claims = [self.in_pod(1, choice) for choice in reversed(choices)]
        self.assertEqual(["p3", "p3"], self.reserve_each(*claims, group="vm"), "the pod of the group's first claim")


class TestNamedPod(PodClaimTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_named_pod(self) -> None:
        self.add("p1", 4)
        self.add("p2", 2, zone="z", affinity=CAD, threshold=1)
        self.fill("p2", 5)
        admin: dict[str, Any] = {"context": ADMIN, "project_id": "tenant1"}
        self.claim(**admin)
        for pod in ("p2", "p2", "select"):  # (whatever the filters say, and then two repeats)
            self.assertEqual("p2", self.claim(2, **admin, pod=pod, consumer="c"))
        self.assertRaises(exceptions.ReservationConflict, self.claim, 2, **admin, pod="p1", consumer="c")
        self.assertIn("no single provider of pod p2 can take gpu=1", str(self.refused(**admin, pod="p2")))
        self.assertEqual([("p1", "first")], self.history())
        self.assertRaises(exceptions.PodNotFound, self.claim, **admin, pod="p9")
        self.pods.change(ADMIN, "p2", state="maintenance")
        self.assertRaises(exceptions.PodNotAvailable, self.claim, **admin, pod="p2")
        self.assertEqual("p2", self.claim(2, **admin, pod="p2", consumer="c"), "a repeat")

    def test_bad_input_writes_nothing(self) -> None:
        """A user may select a pod, but neither name one nor learn whether it exists."""
        self.add("p1", 4)
        self.claim()
        self.assertNotIn("p1", str(self.refused(9)))
        before = hooks.tables(self.sql)
        for pod in ("p1", "p9"):
            error = self.assertRaises(exceptions.NotAuthorized, self.claim, pod=pod)
            self.assertEqual("naming the pod of a claim", error.action)
        for arguments, kind in (
            ({"provider": None}, exceptions.InvalidClaim),
            ({"provider": "p1"}, exceptions.InvalidClaim),
            ({"pod": ""}, exceptions.InvalidName),
            ({"pod": 7}, exceptions.InvalidName),
            ({"pod": PodChoice("")}, exceptions.InvalidName),
            ({"pod": PodChoice(affinity={"a": 1})}, exceptions.InvalidPod),  # type: ignore[dict-item]
            ({"pod": PodChoice(affinity="CAD")}, exceptions.InvalidPod),  # type: ignore[arg-type]
            ({"amount": -1}, exceptions.InvalidDelta),
        ):
            self.assertRaises(kind, self.claim, **arguments)  # type: ignore[arg-type]
        self.assertRaises(exceptions.InvalidName, self.pods.add, ADMIN, "Select")
        adoption = Claim("c", {"gpu": 1}, provider=ANY, pod=SELECT)
        self.assertRaises(exceptions.InvalidClaim, self.engine.adopt, ADMIN, [adoption], "tenant1")
        self.assertEqual(before, hooks.tables(self.sql))


class TestStatements(PodClaimTestCase):
    def test_without_a_pod_no_statement_is_added(self) -> None:
        self.add("p1", 99)
        self.add_provider("free", can_host=False, gpu=9)

        def reserve(**arguments: Any) -> list[str]:
            with hooks.recorded_statements(self.engine) as sent:
                self.engine.reserve(TENANT, {"gpu": 1}, **arguments)
            return sent

        for provider in (None, "free"):
            reserve(provider=provider)
            self.assertNotIn("pod", " ".join(reserve(provider=provider)))
        reserve(provider=ANY, pod=SELECT)
        without, inside = reserve(provider=ANY), reserve(provider=ANY, pod=SELECT)
        self.assertEqual((len(without) + 1, 1), (len(inside), sum("pod_bindings" in one for one in inside)), inside)
        self.assertEqual(without[-1], inside[-1], "the claim itself is the same")


class TestConcurrency(PodClaimTestCase):
    """What another call does between the read of a claim and its transaction, or between two of its statements."""

    def setUp(self) -> None:
        super().setUp()
        for pod in ("p1", "p2", "p3"):
            self.add(pod, 4)
        self.other = self.make_engine()
        self.claim()  # (fills the caches)

    def between(self, act: Callable[[], object], amount: int = 4, **arguments: Any) -> str | None:
        """Claim, while ``act`` runs between the read and the transaction of the first attempt."""
        with hooks.Meanwhile(self.engine._driver.subjects["capacity"], "prepare", act, after=True) as attempts:
            provider = self.claim(amount, **arguments)
        self.assertGreater(attempts.count, 1, "the first attempt was not affected")
        return provider

    def test_another_call_changes_the_pod_or_the_binding(self) -> None:
        self.assertEqual("p3", self.between(lambda: self.other.pods.change(ADMIN, "p2", state="maintenance")))
        self.assertEqual([("p1", "first"), ("p3", "claim")], self.history())
        self.assertEqual("p1", self.between(lambda: self.other.pods.move_binding(ADMIN, "tenant1", "p1"), 1))
        self.assertEqual(("p1", "operator"), self.history()[-1])
        create = lambda: self.other.pods.move_binding(ADMIN, "tenant2", "p1")  # noqa: E731
        self.assertEqual("p1", self.between(create, 2, context=base.Context("tenant2")))
        self.assertEqual([("p1", "operator")], self.history("tenant2"))

    def test_another_call_takes_the_capacity_of_the_bound_pod(self) -> None:
        """The claim takes another provider of the pod, if one fits; the binding moves only if none does."""
        self.add_provider("p1-1", pod="p1", gpu=9)
        self.assertEqual(("p1-1", [("p1", "first")]), (self.between(lambda: self.take(3, "p1"), 3), self.history()))
        self.assertEqual("p2", self.between(lambda: self.take(6, "p1-1"), 3))
        self.assertEqual([("p1", "first"), ("p2", "claim")], self.history())
        self.add_provider("p3-1", pod="p3", gpu=9)
        self.assertEqual("p3-1", self.between(lambda: self.take(1, "p3")), "the next pod")

    def take(self, amount: int, provider: str) -> None:
        self.other.reserve(base.Context("x"), {"gpu": amount}, consumer=provider, provider=provider)

    def test_the_last_capacity_is_freed_in_the_meantime(self) -> None:
        """A refused provider is tried again before the binding moves."""
        free = lambda: self.other.release(base.Context("x"), consumer="p1")  # noqa: E731
        freed = hooks.Interleaved(self.engine, "SELECT pod_bindings", free)
        self.assertEqual("p1", self.between(lambda: (self.take(1, "p1"), self.useFixture(freed)), 3))
        self.assertEqual([("p1", "first")], self.history())
