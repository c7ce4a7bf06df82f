# SPDX-License-Identifier: Apache-2.0
"""Flights: what is charged, whatever becomes of a bind. On a real ledger; Cyborg is what the test says it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.db.database import Database
from cyborg_quota.integrations.cyborg import bind_tracker, releases
from cyborg_quota.integrations.cyborg.bind_tracker import BindRequest, BindReservation, BindTracker, Caller
from tests import base, fixtures, trees

load_tests = testscenarios.load_tests_apply_scenarios

USER = Caller("p1", is_admin=False)


def wish(arq: str, instance: str = "i1", caller: Caller = USER, **deltas: int) -> BindRequest:
    return BindRequest(arq, instance, caller, deltas or {"gpu": 1})


def yes() -> bool:
    return True


def no() -> bool:
    return False


class ChargingTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.charger = BindTracker(self.quotas, bind_expire_seconds=600)
        self.addCleanup(self.charger.close)

    def fly(self, *arqs: str) -> list[BindReservation]:
        return list(self.charger.reserve_binds([wish(arq) for arq in arqs or ("a1",)]).values())


class TestTakeOff(ChargingTestCase):
    def test_all_in_one_transaction(self) -> None:
        self.fly("a1", "a2")
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual(["a1", "a2"], sorted(str(row.consumer) for row in rows))
        self.assertEqual({("i1", "p1", "reserved")}, {(row.group, row.project_id, row.state) for row in rows})

    def test_all_or_nothing(self) -> None:
        self.limits.limits[None, "gpu"] = 1
        self.assertRaises(exceptions.OverQuota, self.fly, "a1", "a2")
        self.assertEqual((0, 0), self.figures())

    def test_family_and_model(self) -> None:
        """Charged to both; either refuses."""
        both = [wish("a1", gpu=1, **{"gpu.A100": 1})]
        for limited in ("gpu", "gpu.A100"):
            self.limits.limits = {(None, limited): 0}
            error = self.assertRaises(exceptions.OverQuota, self.charger.reserve_binds, both)
            self.assertEqual([limited], [over.resource for over in error.overs])
        self.limits.limits = {}
        self.charger.reserve_binds(both)["a1"].commit(yes)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=one) for one in ("gpu", "gpu.A100")])

    def test_two_instances(self) -> None:
        """All or none of them, each charged to its own."""
        self.limits.limits[None, "gpu"] = 1
        wishes = [wish("a1"), wish("a2", "i2")]
        self.assertRaises(exceptions.OverQuota, self.charger.reserve_binds, wishes)
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))
        self.limits.limits[None, "gpu"] = 2
        self.charger.reserve_binds(wishes)
        rows = self.engine.list_reservations(base.ADMIN)
        self.assertEqual([("a1", "i1"), ("a2", "i2")], [(row.consumer, row.group) for row in rows])

    def test_two_projects_second_refused(self) -> None:
        """What was reserved for the first is given up."""
        self.limits.limits["p2", "gpu"] = 0
        wishes = [wish("a1"), wish("a2", caller=Caller("p2", is_admin=True))]
        self.assertRaises(exceptions.OverQuota, self.charger.reserve_binds, wishes)
        self.assertEqual((0, 0), self.figures())
        self.assertEqual(["rolled_back"], [row.state for row in self.engine.list_reservations(base.ADMIN)])

    def test_two_projects(self) -> None:
        flights = self.charger.reserve_binds([wish("a1"), wish("a2", caller=Caller("p2", is_admin=True))])
        for flight in flights.values():
            flight.commit(yes)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(one) for one in ("p1", "p2")])

    def test_not_counted(self) -> None:
        flight = self.charger.reserve_binds([BindRequest("a1", "i1", USER, {})])["a1"]
        self.assertTrue(flight.is_settled)
        flight.commit(no)
        flight.give_up(no)
        self.assertEqual([], self.engine.list_reservations(base.ADMIN))

    def test_again(self) -> None:
        """The same call, delivered twice: reserved once."""
        first, second = self.fly(), self.fly()
        self.assertEqual(first[0].uuids, second[0].uuids)
        self.assertEqual((0, 1), self.figures())

    def test_refusal_tells_a_user_no_secrets(self) -> None:
        """What an ancestor's other children hold is an admin's to see."""
        database = Database(fixtures.settings(self.url))
        self.addCleanup(database.close)
        trees.plant(database, {"root": None, "p1": "root"})
        self.limits.subtree_limits["root", "gpu"] = 0
        error = self.assertRaises(exceptions.OverQuota, self.fly)
        self.assertIsNone(error.overs[0].subtree)


class TestSettling(ChargingTestCase):
    def test_bound(self) -> None:
        (flight,) = self.fly()
        flight.commit(yes)
        flight.give_up(no)  # settled once
        self.assertEqual((1, 0), self.figures())

    def test_failed(self) -> None:
        (flight,) = self.fly()
        flight.give_up(no)
        flight.commit(yes)
        self.assertEqual((0, 0), self.figures())

    def test_lost_and_charged_afresh(self) -> None:
        for lose in ("overdue", "rolled back", "released"):
            (flight,) = self.fly(lose)
            if lose == "overdue":
                self.make_overdue(*flight.uuids)
            elif lose == "rolled back":
                self.quotas.rollback(self.context, flight.uuids)
            else:
                self.quotas.release(self.context, flight.uuids)
            flight.commit(yes)
        self.assertEqual((3, 0), self.figures())

    def test_half_lost(self) -> None:
        flight = self.charger.reserve_binds([wish("a1", gpu=1, fpga=1)])["a1"]
        self.quotas.rollback(self.context, flight.uuids[:1])
        flight.commit(yes)
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=one) for one in ("gpu", "fpga")])

    def test_lost_and_no_room_left(self) -> None:
        """The caller must detach it."""
        self.limits.limits[None, "gpu"] = 1
        (flight,) = self.fly()
        self.make_overdue(*flight.uuids)
        self.quotas.expire(base.ADMIN)
        self.fly("a2")
        self.assertRaises(exceptions.OverQuota, flight.commit, yes)
        self.assertEqual((0, 1), self.figures())

    def test_unbound_before_the_commit(self) -> None:
        """Unbind goes first and releases after; the bind that commits then must not charge it anew."""
        (flight,) = self.fly()
        self.charger.release("a1", "p1")
        flight.commit(no)
        self.assertEqual((0, 0), self.figures())

    def test_unbound_while_it_is_charged_afresh(self) -> None:
        """Between the look and the charge: the second look sees it."""
        (flight,) = self.fly()
        self.charger.release("a1", "p1")
        flight.commit(mock.Mock(side_effect=[True, False]))
        self.assertEqual((0, 0), self.figures())

    def test_failed_but_committed_by_another_delivery(self) -> None:
        for is_bound, used in ((yes, 1), (no, 0)):
            first, second = self.fly("a1")[0], self.fly("a1")[0]
            first.commit(yes)
            second.give_up(is_bound)
            self.assertEqual((used, 0), self.figures())

    def test_left_to_another_delivery(self) -> None:
        first, second = self.fly()[0], self.fly()[0]
        second.leave()
        second.give_up(no)
        first.commit(yes)
        self.assertEqual((1, 0), self.figures())


class TestOutage(ChargingTestCase):
    def away(self, method: str) -> mock._patch[mock.Mock]:
        gone = exceptions.DatabaseUnavailable("it is gone", 6.0)
        return mock.patch.object(self.engine, method, side_effect=gone)

    def test_commit_is_owed(self) -> None:
        """Not a reason to detach; the periodic task makes it good."""
        (flight,) = self.fly()
        with self.away("commit"):
            flight.commit(yes)
            self.charger.settle_owed()
        self.assertFalse(flight.is_settled)
        self.assertEqual((0, 1), self.figures())
        self.charger.settle_owed()
        self.assertEqual((1, 0), self.figures())

    def owed(self, is_bound: Callable[[], bool] = yes) -> BindReservation:
        """Bound when the ledger was away, for longer than its reservation lived; and somebody else took the room."""
        self.limits.limits[None, "gpu"] = 1
        (flight,) = self.fly()
        with self.away("commit"):
            flight.commit(is_bound)
        self.make_overdue(*flight.uuids)
        self.quotas.expire(base.ADMIN)
        self.fly("a2")
        return flight

    def test_owed_and_charged_by_somebody_else_meanwhile(self) -> None:
        """An instance runs with it: it stays bound, and is charged past the limit, which is told."""
        flight = self.owed()
        with self.assertLogs(bind_tracker.LOG.logger, "WARNING") as logged:
            self.charger.settle_owed()
        self.assertEqual((1, 1), self.figures())
        self.assertTrue(flight.is_settled)
        [told] = [line for line in logged.output if "refused" in line]
        self.assertIn("project p1 is charged gpu=1 although that is refused now. (Quota exceeded: ", told)
        self.assertIn("project p1, resource gpu: limit 1", told)
        self.charger.settle_owed()
        self.assertEqual((1, 1), self.figures())

    def test_owed_and_unbound_meanwhile(self) -> None:
        """At each look: before it is charged, and after."""
        for looks in ([False], [True, False], [True, True, False]):
            flight = self.owed(mock.Mock(side_effect=looks))
            self.charger.settle_owed()
            self.assertEqual((True, (0, 1)), (flight.is_settled, self.figures()), looks)
            self.charger.release("a2", "p1")

    def test_owed_and_the_ledger_goes_away_again(self) -> None:
        flight = self.owed()
        with self.away("adopt"):
            self.charger.settle_owed()
        self.assertFalse(flight.is_settled)
        self.charger.settle_owed()
        self.assertEqual((1, 1), self.figures())

    def test_owed_and_charged_as_something_else(self) -> None:
        """By hand: told, and left to a reconciliation."""
        flight = self.owed()
        self.quotas.adopt(base.ADMIN, [base.claim("a1", gpu=2)], "p1")
        with self.assertLogs(bind_tracker.LOG.logger, "ERROR") as logged:
            self.charger.settle_owed()
        self.assertIn("could not be charged to project p1: Consumer 'a1' already holds gpu=2", logged.output[-1])
        self.assertEqual((True, (2, 1)), (flight.is_settled, self.figures()))

    def test_rollback_expires_by_itself(self) -> None:
        (flight,) = self.fly()
        with self.away("rollback"):
            flight.give_up(no)
        self.assertEqual((0, 1), self.figures())
        self.make_overdue(*flight.uuids)
        self.quotas.expire(base.ADMIN)
        self.assertEqual((0, 0), self.figures())

    def test_release_of_what_another_delivery_committed_is_told(self) -> None:
        """It does not expire by itself."""
        first, second = self.fly("a1")[0], self.fly("a1")[0]
        first.commit(yes)
        with self.away("release"), self.assertLogs(releases.LOG.logger, "ERROR") as logged:
            second.give_up(no)
        self.assertIn("ARQ a1 of project p1 is unbound and still charged", logged.output[-1])
        self.assertIn("cyborg-quota reconcile --heal", logged.output[-1])
        self.assertNotIn("expires", logged.output[-1])

    def test_release_is_told(self) -> None:
        self.fly()[0].commit(yes)
        with self.away("release"):
            self.assertFalse(self.charger.release("a1", "p1"))
        self.assertTrue(self.charger.release("a1", "p1"))
        self.assertTrue(self.charger.release("a1", "p1"))
        self.assertEqual((0, 0), self.figures())


class TestLongBinds(ChargingTestCase):
    def ttl(self, flight: BindReservation) -> float:
        """Until it expires, in seconds."""
        (row,) = self.engine.list_reservations(base.ADMIN, reservations=flight.uuids)
        assert row.expire is not None and row.created_at is not None
        return (row.expire - row.created_at).total_seconds()

    def test_extended_while_it_runs(self) -> None:
        (flight,) = self.fly()
        before = self.ttl(flight)
        self.charger.extend_running()
        self.assertEqual(before, self.ttl(flight))  # too early
        flight.extended -= 201
        self.charger.extend_running()
        self.assertGreater(self.ttl(flight), before)
        flight.commit(yes)
        flight.extended -= 201
        self.charger.extend_running()
        self.assertEqual((1, 0), self.figures())

    def test_expired_before_it_could_be_extended(self) -> None:
        """Told, and left to the commit."""
        (flight,) = self.fly()
        self.make_overdue(*flight.uuids)
        flight.extended -= 201
        self.charger.extend_running()
        flight.commit(yes)
        self.assertEqual((1, 0), self.figures())

    def test_commit_and_extend_at_once(self) -> None:
        for _ in range(10):
            (flight,) = self.fly("busy")
            other = threading.Thread(target=flight.extend, args=(600,))
            other.start()
            flight.commit(yes)
            other.join()
            self.assertEqual((1, 0), self.figures())
            self.charger.release("busy", "p1")
