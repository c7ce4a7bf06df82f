# SPDX-License-Identifier: Apache-2.0
"""The bind tracker: what is charged for each outcome of a bind. The ledger is real; Cyborg's records are the test's."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.db.database import Database
from cyborg_quota.integrations.cyborg import backoff, bind_tracker, releases
from cyborg_quota.integrations.cyborg.bind_tracker import BindRequest, BindReservation, BindTracker, Caller
from tests import base, fixtures, trees

load_tests = testscenarios.load_tests_apply_scenarios

USER = Caller("p1")


def make_request(arq: str, instance: str = "i1", caller: Caller = USER, **deltas: int) -> BindRequest:
    return BindRequest(arq, instance, caller, deltas or {"gpu": 1})


def bound() -> bool:
    return True


def unbound() -> bool:
    return False


class BindTrackerTestCase(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[:1]  # the tracker only calls the engine

    def setUp(self) -> None:
        super().setUp()
        self.tracker = BindTracker(self.quotas, bind_expire_seconds=600)
        self.addCleanup(self.tracker.close)

    def reserve(self, *arqs: str) -> list[BindReservation]:
        return list(self.tracker.reserve_binds([make_request(arq) for arq in arqs or ("a1",)]).values())


class TestReserve(BindTrackerTestCase):
    def test_all_in_one_transaction(self) -> None:
        self.reserve("a1", "a2")
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual(["a1", "a2"], sorted(str(row.consumer) for row in rows))
        self.assertEqual({("i1", "p1", "reserved")}, {(row.group, row.project_id, row.state) for row in rows})

    def test_all_or_nothing(self) -> None:
        self.limits.limits[None, "gpu"] = 1
        self.assertRaises(exceptions.OverQuota, self.reserve, "a1", "a2")
        self.assertEqual((0, 0), self.figures())

    def test_family_and_model(self) -> None:
        """Both are charged; either of them can refuse."""
        both = [make_request("a1", gpu=1, **{"gpu.A100": 1})]
        for limited in ("gpu", "gpu.A100"):
            self.limits.limits = {(None, limited): 0}
            error = self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, both)
            self.assertEqual([limited], [over.resource for over in error.overs])
        self.limits.limits = {}
        self.tracker.reserve_binds(both)["a1"].commit(bound)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=name) for name in ("gpu", "gpu.A100")])

    def test_two_instances(self) -> None:
        """All or none of them, each charged to its own group."""
        self.limits.limits[None, "gpu"] = 1
        requests = [make_request("a1"), make_request("a2", "i2")]
        self.assertRaises(exceptions.OverQuota, self.tracker.reserve_binds, requests)
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))
        self.limits.limits[None, "gpu"] = 2
        self.tracker.reserve_binds(requests)
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual([("a1", "i1"), ("a2", "i2")], [(row.consumer, row.group) for row in rows])

    def test_two_projects_second_refused(self) -> None:
        """What was reserved for the first project is rolled back."""
        self.limits.limits["p2", "gpu"] = 0
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
        bind = self.tracker.reserve_binds([BindRequest("a1", "i1", USER, {})])["a1"]
        self.assertTrue(bind.is_settled)
        bind.commit(unbound)
        bind.give_up(unbound)
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))

    def test_again(self) -> None:
        """The same call, delivered twice: reserved once."""
        first, second = self.reserve(), self.reserve()
        self.assertEqual(first[0].uuids, second[0].uuids)
        self.assertEqual((0, 1), self.figures())

    def test_a_refusal_hides_other_projects(self) -> None:
        """Also that of an administrator's bind: the usage of an ancestor's other children is not in it."""
        database = Database(fixtures.settings(self.url))
        self.addCleanup(database.close)
        trees.plant(database, {"root": None, "p1": "root"})
        self.limits.subtree_limits["root", "gpu"] = 0
        error = self.assertRaises(exceptions.OverQuota, self.reserve)
        self.assertIsNone(error.overs[0].subtree)


class TestSettling(BindTrackerTestCase):
    def test_bound(self) -> None:
        (bind,) = self.reserve()
        bind.commit(bound)
        bind.give_up(unbound)  # settled once
        self.assertEqual((1, 0), self.figures())

    def test_failed(self) -> None:
        (bind,) = self.reserve()
        bind.give_up(unbound)
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
        self.limits.limits[None, "gpu"] = 1
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
        for is_bound, used in ((bound, 1), (unbound, 0)):
            first, second = self.reserve("a1")[0], self.reserve("a1")[0]
            first.commit(bound)
            second.give_up(is_bound)
            self.assertEqual((used, 0), self.figures())

    def test_left_to_another_delivery(self) -> None:
        first, second = self.reserve()[0], self.reserve()[0]
        second.leave()
        second.give_up(unbound)
        first.commit(bound)
        self.assertEqual((1, 0), self.figures())


class TestOutage(BindTrackerTestCase):
    def make_unavailable(self, method: str) -> mock._patch[mock.Mock]:
        gone = exceptions.DatabaseUnavailable("it is gone", 6.0)
        return mock.patch.object(self.engine, method, side_effect=gone)

    def test_commit_is_retried(self) -> None:
        """The failed commit is no reason to detach; the periodic task retries it."""
        (bind,) = self.reserve()
        with self.make_unavailable("commit"):
            bind.commit(bound)
            self.tracker.settle_owed()
        self.assertFalse(bind.is_settled)
        self.assertEqual((0, 1), self.figures())
        self.tracker.settle_owed()
        self.assertEqual((1, 0), self.figures())

    def make_uncommitted(self, is_bound: Callable[[], bool] = bound) -> BindReservation:
        """Bound during an outage that outlasted its reservation, while another request took the quota."""
        self.limits.limits[None, "gpu"] = 1
        (bind,) = self.reserve()
        with self.make_unavailable("commit"):
            bind.commit(is_bound)
        self.make_overdue(*bind.uuids)
        self.quotas.expire(base.ADMIN)
        self.reserve("a2")
        return bind

    def test_retried_while_the_limit_is_reached(self) -> None:
        """An instance uses it: it stays bound, is charged above the limit, and a log line reports it."""
        bind = self.make_uncommitted()
        with self.assertLogs(bind_tracker.LOG.logger, "WARNING") as logged:
            self.tracker.settle_owed()
        self.assertEqual((1, 1), self.figures())
        self.assertTrue(bind.is_settled)
        [message] = [line for line in logged.output if "refused" in line]
        self.assertIn("project p1 is charged gpu=1 although that is refused now. (Quota exceeded: ", message)
        self.assertIn("project p1, resource gpu: limit 1", message)
        self.tracker.settle_owed()
        self.assertEqual((1, 1), self.figures())

    def test_retried_and_unbound(self) -> None:
        """At each check: before it is charged, and after."""
        for answers in ([False], [True, False], [True, True, False]):
            bind = self.make_uncommitted(mock.Mock(side_effect=answers))
            self.tracker.settle_owed()
            self.assertEqual((True, (0, 1)), (bind.is_settled, self.figures()), answers)
            self.tracker.release("a2", "p1")

    def test_retried_and_the_ledger_is_unavailable_again(self) -> None:
        bind = self.make_uncommitted()
        with self.make_unavailable("adopt"):
            self.tracker.settle_owed()
        self.assertFalse(bind.is_settled)
        self.tracker.settle_owed()
        self.assertEqual((1, 1), self.figures())

    def test_retried_and_charged_as_another_resource(self) -> None:
        """Charged by hand: this is logged, and left to a reconciliation."""
        bind = self.make_uncommitted()
        self.quotas.adopt(base.ADMIN, [base.claim("a1", gpu=2)], "p1")
        with self.assertLogs(bind_tracker.LOG.logger, "ERROR") as logged:
            self.tracker.settle_owed()
        self.assertIn("could not be charged to project p1: Consumer 'a1' already holds gpu=2", logged.output[-1])
        self.assertEqual((True, (2, 1)), (bind.is_settled, self.figures()))

    def test_a_failed_rollback_expires(self) -> None:
        (bind,) = self.reserve()
        with self.make_unavailable("rollback"):
            bind.give_up(unbound)
        self.assertEqual((0, 1), self.figures())
        self.make_overdue(*bind.uuids)
        self.quotas.expire(base.ADMIN)
        self.assertEqual((0, 0), self.figures())

    def test_failed_release_after_another_delivery_is_logged(self) -> None:
        """A committed reservation does not expire."""
        first, second = self.reserve("a1")[0], self.reserve("a1")[0]
        first.commit(bound)
        with self.make_unavailable("release"), self.assertLogs(releases.LOG.logger, "ERROR") as logged:
            second.give_up(unbound)
        self.assertIn("ARQ a1 of project p1 is unbound and still charged", logged.output[-1])
        self.assertIn("cyborg-quota reconcile --heal", logged.output[-1])
        self.assertNotIn("expires", logged.output[-1])

    def test_a_failed_release_is_logged(self) -> None:
        self.reserve()[0].commit(bound)
        with self.make_unavailable("release"):
            self.assertFalse(self.tracker.release("a1", "p1"))
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

    def test_concurrent_commit_and_extend(self) -> None:
        for _ in range(10):
            (bind,) = self.reserve("busy")
            other = threading.Thread(target=bind.extend, args=(600,))
            other.start()
            bind.commit(bound)
            other.join()
            self.assertEqual((1, 0), self.figures())
            self.tracker.release("busy", "p1")


class TestRefusedByTheDatabase(BindTrackerTestCase):
    """A trigger refuses each change of the reservations of one ARQ, ``bad``, whatever the call."""

    scenarios = fixtures.SCENARIOS[:1]

    def setUp(self) -> None:
        super().setUp()
        wanted = mock.patch.object(self.tracker.guard, "want_retry")  # the tests call the retry
        wanted.start()
        self.addCleanup(wanted.stop)
        self.binds = self.reserve("bad", "a1", "a2")

    def make_unavailable(self, name: str) -> mock._patch[mock.Mock]:
        return mock.patch.object(self.engine, name, side_effect=exceptions.DatabaseUnavailable("it is gone", 6.0))

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self.execute(
            "CREATE TRIGGER refusal BEFORE UPDATE ON reservations WHEN OLD.consumer_id = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'refused by the trigger'); END"
        )
        try:
            yield
        finally:
            self.execute("DROP TRIGGER refusal")

    def test_a_commit(self) -> None:
        with self.make_unavailable("commit"):
            for bind in self.binds:
                bind.commit(bound)
        with self.refusing():
            self.tracker.settle_owed()
        self.assertEqual((2, 1), self.figures())
        self.binds[0].backoff = backoff.Backoff()
        self.tracker.settle_owed()
        self.assertEqual((3, 0), self.figures())

    def test_a_release(self) -> None:
        for bind in self.binds:
            bind.commit(bound)
        with self.make_unavailable("release"):
            for bind in self.binds:
                self.assertFalse(self.tracker.release(bind.request.arq, "p1"))
        with self.refusing():
            self.assertFalse(self.tracker._releaser.retry())
        self.assertEqual((1, 0), self.figures())
        self.tracker._releaser._clock = lambda: math.inf
        self.assertTrue(self.tracker._releaser.retry())
        self.assertEqual((0, 0), self.figures())
