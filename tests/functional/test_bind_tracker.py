# SPDX-License-Identifier: Apache-2.0
"""The bind tracker: what is charged for each outcome of a bind. The ledger is real; Cyborg's records are the test's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from unittest import mock

from cyborg_quota import Claim, exceptions
from cyborg_quota.cyborg import bind_tracker
from cyborg_quota.cyborg.bind_tracker import BindReservation, BindTracker, Caller
from tests import base, fixtures

USER = Caller("p1")


def make_request(arq: str, instance: str = "i1", caller: Caller = USER, **deltas: int) -> tuple[Caller, Claim]:
    return caller, Claim(arq, deltas or {"gpu": 1}, group=instance)


def bound() -> bool:
    return True


class TestBindTracker(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE  # the tracker only calls the engine

    def setUp(self) -> None:
        super().setUp()
        self.tracker = BindTracker(self.quotas, bind_expire_seconds=600)

    def reserve(self, *arqs: str) -> list[BindReservation]:
        return list(self.tracker.reserve_binds([make_request(arq) for arq in arqs or ("a1",)]).values())

    def test_all_or_none(self) -> None:
        """In one transaction a project; what was reserved for the first one is rolled back. The server is the group."""
        requests = [make_request("a1"), make_request("a2", "i2"), make_request("b1", caller=Caller("p2"))]
        for limit, limit_of_p2, left in ((1, 1, []), (2, 0, ["rolled_back"] * 2)):
            self.limits.own.update({("p1", "gpu"): limit, ("p2", "gpu"): limit_of_p2})
            self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, requests)
            self.assertEqual(left, [row.state for row in self.engine.list_reservations(base.ADMIN)])
        self.limits.own["p2", "gpu"] = 1
        for bind in self.tracker.reserve_binds(requests).values():
            bind.commit(bound)
        rows = self.engine.list_reservations(base.ADMIN, state="committed")
        found = [(row.project_id, row.consumer, row.group) for row in rows]
        self.assertEqual([("p1", "a1", "i1"), ("p1", "a2", "i2"), ("p2", "b1", "i1")], found)

    def test_in_the_pod_of_this_cyborg(self) -> None:
        """[cyborg] pod: the limits there apply; a refusal does not name the pod, which is the operator's."""
        self.engine.pods.add(base.ADMIN, "east")
        self.limits.own["p1", "gpu in pod east"] = 1
        first, second = [[(USER, Claim(arq, {"gpu": 1}, pod="east"))] for arq in ("a1", "a2")]
        for bind in self.tracker.reserve_binds(first).values():
            bind.commit(bound)
        for state, kind in (("available", exceptions.OverQuota), ("maintenance", exceptions.PodNotAvailable)):
            self.engine.pods.change(base.ADMIN, "east", state=state)
            error = self.assertRaises(kind, self.tracker.reserve_binds, second)
            self.assertNotIn("east", bind_tracker.public_message(error))
        self.assertEqual((1, 0), self.figures())

    def test_a_refusal_hides_other_projects(self) -> None:
        """Also that of an administrator's bind: the usage of an ancestor's other children is not in it."""
        self.plant({"root": None, "p1": "root"})
        self.limits.subtree_limits["root", "gpu"] = 0
        self.assertIsNone(self.assertRaises(exceptions.OverQuota, self.reserve).overs[0].subtree)

    def test_settled_once(self) -> None:
        (failed,) = self.reserve()
        failed.give_up()
        failed.commit(bound)
        self.assertEqual((0, 0), self.figures())
        (bind,), (left,) = self.reserve("a2"), self.reserve("a2")
        left.leave()  # to the other delivery
        left.give_up()
        bind.commit(bound)
        bind.give_up()
        self.assertEqual((1, 0), self.figures())

    def test_expired_and_charged_again(self) -> None:
        """Also if one of two has ended, and a bind that could not be extended before."""
        acts: dict[str, Callable[[list[str]], object]] = {
            "overdue": lambda uuids: self.make_overdue(*uuids),
            "rolled back": lambda uuids: self.quotas.rollback(self.context, uuids[:1]),
            "released": lambda uuids: self.quotas.release(self.context, uuids),
        }
        for (name, lose), age in itertools.product(acts.items(), (0, 201)):
            (bind,) = self.tracker.reserve_binds([make_request(f"{name} {age}", gpu=1, fpga=1)]).values()
            lose(bind.uuids)
            bind.extended -= age
            self.tracker.extend_running()
            bind.commit(bound)
        self.assertEqual([(6, 0), (6, 0)], [self.figures(resource=name) for name in ("gpu", "fpga")])

    def test_expired_and_over_the_limit(self) -> None:
        """The caller must detach the accelerator."""
        self.limits.own[None, "gpu"] = 1
        (bind,) = self.reserve()
        self.make_overdue(*bind.uuids)
        self.quotas.expire(base.ADMIN)
        self.reserve("a2")
        self.assertRaises(exceptions.OverQuota, bind.commit, bound)
        self.assertEqual((0, 1), self.figures())

    def test_unbound_while_it_is_charged_again(self) -> None:
        """Unbound between the check and the charge: the second check detects it."""
        (bind,) = self.reserve()
        self.tracker.release("a1", "p1")
        bind.commit(mock.Mock(side_effect=[True, False]))
        self.assertEqual((0, 0), self.figures())

    def make_unavailable(self, method: str) -> mock._patch[mock.Mock]:
        return mock.patch.object(self.engine, method, side_effect=exceptions.DatabaseUnavailable("it is gone", 6.0))

    def test_a_failed_commit(self) -> None:
        """It is no reason to detach: the ARQ stays bound, and a comparison with Cyborg's records is wanted."""
        (bind,) = self.reserve()
        with self.make_unavailable("commit"), mock.patch.object(self.tracker.guard, "want_repair") as wanted:
            bind.commit(bound)
        self.assertEqual((True, 1), (bind.is_settled, wanted.call_count))
        bind.give_up()
        self.assertEqual((0, 1), self.figures())
        (failed,) = self.reserve("a2")
        with self.make_unavailable("rollback"):
            failed.give_up()
        self.assertEqual((0, 2), self.figures(), "it expires")

    def test_a_failed_release_is_logged(self) -> None:
        self.reserve()[0].commit(bound)
        with self.make_unavailable("release"), self.assertLogs(bind_tracker.LOG.logger, "ERROR") as logged:
            self.assertFalse(self.tracker.release("a1", "p1"))
        self.assertRegex(logged.output[-1], "ARQ a1 of project p1 is unbound and still charged.* The next comparison")
        self.assertEqual([True, True], [self.tracker.release("a1", "p1") for _ in range(2)])
        self.assertEqual((0, 0), self.figures())

    def test_a_locked_project(self) -> None:
        """Its other binds are extended later; those of other projects now."""
        requests = [make_request(arq, caller=Caller(arq[:2])) for arq in ("p1-a", "p1-b", "p2-a")]
        binds = list(self.tracker.reserve_binds(requests).values())
        for bind in binds:
            bind.extended -= 201

        def extend(caller: Caller, *_arguments: object) -> None:
            if caller.project_id == "p1":
                raise exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0)

        with mock.patch.object(self.engine, "extend", side_effect=extend) as extended:
            self.tracker.extend_running()
        self.assertEqual(["p1", "p2"], sorted(call.args[0].project_id for call in extended.call_args_list))

    def test_concurrent_commit_and_extend(self) -> None:
        for _ in range(10):
            (bind,) = self.reserve("busy")
            other = threading.Thread(target=bind.extend, args=(600,))
            other.start()
            bind.commit(bound)
            other.join()
            self.assertEqual((1, 0), self.figures())
            self.tracker.release("busy", "p1")
