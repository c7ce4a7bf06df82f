# SPDX-License-Identifier: Apache-2.0
"""The bind tracker: what is charged for each outcome of a bind. The ledger is real; Cyborg's records are the test's."""

from __future__ import annotations

import threading
from unittest import mock

import testscenarios

from cyborg_quota import Claim, exceptions
from cyborg_quota.cyborg import bind_tracker
from cyborg_quota.cyborg.bind_tracker import BindReservation, BindTracker, Caller
from tests import base, fixtures, trees

load_tests = testscenarios.load_tests_apply_scenarios

USER = Caller("p1")


def make_request(arq: str, instance: str = "i1", caller: Caller = USER, **deltas: int) -> tuple[Caller, Claim]:
    return caller, Claim(arq, deltas or {"gpu": 1}, group=instance)


def bound() -> bool:
    return True


def unbound() -> bool:
    return False


class BindTrackerTestCase(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[:1]  # the tracker only calls the engine

    def setUp(self) -> None:
        super().setUp()
        self.tracker = BindTracker(self.quotas, bind_expire_seconds=600)

    def reserve(self, *arqs: str) -> list[BindReservation]:
        return list(self.tracker.reserve_binds([make_request(arq) for arq in arqs or ("a1",)]).values())


class TestReserve(BindTrackerTestCase):
    def test_all_in_one_transaction(self) -> None:
        self.reserve("a1", "a2")
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual(["a1", "a2"], sorted(str(row.consumer) for row in rows))
        self.assertEqual({("i1", "p1", "reserved")}, {(row.group, row.project_id, row.state) for row in rows})

    def test_all_or_nothing(self) -> None:
        self.limits.own[None, "gpu"] = 1
        self.assertRaises(exceptions.OverQuota, self.reserve, "a1", "a2")
        self.assertEqual((0, 0), self.figures())

    def test_family_and_model(self) -> None:
        """Both are charged; either of them can refuse."""
        both = [make_request("a1", gpu=1, **{"gpu.A100": 1})]
        for limited in ("gpu", "gpu.A100"):
            self.limits.own = {(None, limited): 0}
            error = self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, both)
            self.assertEqual([limited], [over.resource for over in error.overs])
        self.limits.own = {}
        self.tracker.reserve_binds(both)["a1"].commit(bound)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=name) for name in ("gpu", "gpu.A100")])

    def test_two_instances(self) -> None:
        """All or none of them, each charged to its own group."""
        self.limits.own[None, "gpu"] = 1
        requests = [make_request("a1"), make_request("a2", "i2")]
        self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, requests)
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))
        self.limits.own[None, "gpu"] = 2
        self.tracker.reserve_binds(requests)
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual([("a1", "i1"), ("a2", "i2")], [(row.consumer, row.group) for row in rows])

    def test_two_projects_second_refused(self) -> None:
        """What was reserved for the first project is rolled back."""
        self.limits.own["p2", "gpu"] = 0
        requests = [make_request("a1"), make_request("a2", caller=Caller("p2"))]
        self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, requests)
        self.assertEqual((0, 0), self.figures())
        self.assertEqual(["rolled_back"], [row.state for row in self.engine.list_reservations(base.ADMIN)])

    def test_two_projects(self) -> None:
        binds = self.tracker.reserve_binds([make_request("a1"), make_request("a2", caller=Caller("p2"))])
        for bind in binds.values():
            bind.commit(bound)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(project_id) for project_id in ("p1", "p2")])

    def test_not_counted(self) -> None:
        bind = self.tracker.reserve_binds([(USER, Claim("a1", {}))])["a1"]
        self.assertTrue(bind.is_settled)
        bind.commit(unbound)
        bind.give_up()
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))

    def test_a_refusal_hides_other_projects(self) -> None:
        """Also that of an administrator's bind: the usage of an ancestor's other children is not in it."""
        database = fixtures.open_database(self, self.url)
        trees.plant(database, {"root": None, "p1": "root"})
        self.limits.subtree_limits["root", "gpu"] = 0
        error = self.assertRaises(exceptions.OverQuota, self.reserve)
        self.assertIsNone(error.overs[0].subtree)


class TestSettling(BindTrackerTestCase):
    def test_bound(self) -> None:
        (bind,) = self.reserve()
        bind.commit(bound)
        bind.give_up()  # settled once
        self.assertEqual((1, 0), self.figures())

    def test_failed(self) -> None:
        (bind,) = self.reserve()
        bind.give_up()
        bind.commit(bound)
        self.assertEqual((0, 0), self.figures())

    def test_expired_and_charged_again(self) -> None:
        for lose in ("overdue", "rolled back", "released"):
            (bind,) = self.reserve(lose)
            if lose == "overdue":
                self.make_overdue(*bind.uuids)
            elif lose == "rolled back":
                self.quotas.rollback(self.context, bind.uuids)
            else:
                self.quotas.release(self.context, bind.uuids)
            bind.commit(bound)
        self.assertEqual((3, 0), self.figures())

    def test_one_of_two_expired(self) -> None:
        bind = self.tracker.reserve_binds([make_request("a1", gpu=1, fpga=1)])["a1"]
        self.quotas.rollback(self.context, bind.uuids[:1])
        bind.commit(bound)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=name) for name in ("gpu", "fpga")])

    def test_expired_and_over_the_limit(self) -> None:
        """The caller must detach the accelerator."""
        self.limits.own[None, "gpu"] = 1
        (bind,) = self.reserve()
        self.make_overdue(*bind.uuids)
        self.quotas.expire(base.ADMIN)
        self.reserve("a2")
        self.assertRaises(exceptions.OverQuota, bind.commit, bound)
        self.assertEqual((0, 1), self.figures())

    def test_unbound_before_the_commit(self) -> None:
        """Unbind unbinds first and releases after; a bind that commits in between must not charge it again."""
        (bind,) = self.reserve()
        self.tracker.release("a1", "p1")
        bind.commit(unbound)
        self.assertEqual((0, 0), self.figures())

    def test_unbound_while_it_is_charged_again(self) -> None:
        """Unbound between the check and the charge: the second check detects it."""
        (bind,) = self.reserve()
        self.tracker.release("a1", "p1")
        bind.commit(mock.Mock(side_effect=[True, False]))
        self.assertEqual((0, 0), self.figures())

    def test_failed_but_committed_by_another_delivery(self) -> None:
        """If the ARQ is not bound in the end, the next comparison releases it."""
        first, second = self.reserve("a1")[0], self.reserve("a1")[0]
        first.commit(bound)
        second.give_up()
        self.assertEqual((1, 0), self.figures())

    def test_left_to_another_delivery(self) -> None:
        first, second = self.reserve()[0], self.reserve()[0]
        second.leave()
        second.give_up()
        first.commit(bound)
        self.assertEqual((1, 0), self.figures())


class TestOutage(BindTrackerTestCase):
    def make_unavailable(self, method: str) -> mock._patch[mock.Mock]:
        gone = exceptions.DatabaseUnavailable("it is gone", 6.0)
        return mock.patch.object(self.engine, method, side_effect=gone)

    def test_a_failed_commit(self) -> None:
        """It is no reason to detach: the ARQ stays bound, and a comparison with Cyborg's records is wanted."""
        (bind,) = self.reserve()
        with self.make_unavailable("commit"), mock.patch.object(self.tracker.guard, "want_repair") as wanted:
            bind.commit(bound)
        self.assertEqual((True, 1), (bind.is_settled, wanted.call_count))
        bind.give_up()
        self.assertEqual((0, 1), self.figures())

    def test_a_failed_rollback_expires(self) -> None:
        (bind,) = self.reserve()
        with self.make_unavailable("rollback"):
            bind.give_up()
        self.assertEqual((0, 1), self.figures())
        self.make_overdue(*bind.uuids)
        self.quotas.expire(base.ADMIN)
        self.assertEqual((0, 0), self.figures())

    def test_a_failed_release_is_logged(self) -> None:
        self.reserve()[0].commit(bound)
        with self.make_unavailable("release"), self.assertLogs(bind_tracker.LOG.logger, "ERROR") as logged:
            self.assertFalse(self.tracker.release("a1", "p1"))
        self.assertIn("ARQ a1 of project p1 is unbound and still charged", logged.output[-1])
        self.assertIn("The next comparison with Cyborg's records releases it.", logged.output[-1])
        self.assertTrue(self.tracker.release("a1", "p1"))
        self.assertTrue(self.tracker.release("a1", "p1"))
        self.assertEqual((0, 0), self.figures())


class TestLongBinds(BindTrackerTestCase):
    def ttl(self, bind: BindReservation) -> float:
        """Return the seconds until it expires."""
        (row,) = self.engine.list_reservations(base.ADMIN, reservations=bind.uuids)
        assert row.expire is not None and row.created_at is not None
        return (row.expire - row.created_at).total_seconds()

    def test_extended_while_it_runs(self) -> None:
        (bind,) = self.reserve()
        before = self.ttl(bind)
        self.tracker.extend_running()
        self.assertEqual(before, self.ttl(bind))  # too early
        bind.extended -= 201
        self.tracker.extend_running()
        self.assertGreater(self.ttl(bind), before)
        bind.commit(bound)
        bind.extended -= 201
        self.tracker.extend_running()
        self.assertEqual((1, 0), self.figures())

    def test_expired_before_it_could_be_extended(self) -> None:
        """This is logged, and left to the commit."""
        (bind,) = self.reserve()
        self.make_overdue(*bind.uuids)
        bind.extended -= 201
        self.tracker.extend_running()
        bind.commit(bound)
        self.assertEqual((1, 0), self.figures())

    def test_a_locked_project(self) -> None:
        """Its other binds are extended later; those of other projects now."""
        requests = [make_request(arq, caller=Caller(arq[:2])) for arq in ("p1-a", "p1-b", "p2-a")]
        binds = list(self.tracker.reserve_binds(requests).values())
        for bind in binds:
            bind.extended -= 201
        real, calls = self.engine.extend, []

        def extend(caller: Caller, *arguments: object) -> None:
            calls.append(caller.project_id)
            if caller.project_id == "p1":
                raise exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0)
            real(caller, *arguments)  # type: ignore[arg-type]

        with mock.patch.object(self.engine, "extend", extend):
            self.tracker.extend_running()
        self.assertEqual(["p1", "p2"], sorted(calls))

    def test_concurrent_commit_and_extend(self) -> None:
        for _ in range(10):
            (bind,) = self.reserve("busy")
            other = threading.Thread(target=bind.extend, args=(600,))
            other.start()
            bind.commit(bound)
            other.join()
            self.assertEqual((1, 0), self.figures())
            self.tracker.release("busy", "p1")
