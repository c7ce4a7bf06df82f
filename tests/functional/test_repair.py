# SPDX-License-Identifier: Apache-2.0
"""The repair by a conductor or an API: what it compares, and what it may change. The records are set by the test."""

from __future__ import annotations

import functools
import threading
from typing import Any
from unittest import mock

from cyborg_quota import Claim, exceptions
from cyborg_quota.cyborg import reconciler as reconciler_module
from cyborg_quota.cyborg import repair as repair_module
from cyborg_quota.cyborg.reconciler import Reconciler
from cyborg_quota.cyborg.repair import Repair
from tests import base, fixtures
from tests.functional.test_reconciler import ReconcilerTestCase

MANY = 20
LONG_SECONDS = 60.0


class RepairTestCase(ReconcilerTestCase):
    def make_reconciler(self, **changes: Any) -> Reconciler:
        return self.reconciler(grace_seconds=10, share=10, source="east", **changes)

    def make_repair(self, *, is_healing: bool = True) -> Repair:
        return Repair(self.make_reconciler, is_healing=is_healing)

    def after_failure(self, repair: Repair) -> None:
        """Have the thread compare all, and wait for its end."""
        with mock.patch.object(repair_module, "SOON_SECONDS", 0.01):
            repair.want_all()
            if repair._thread is not None:
                repair._thread.join(LONG_SECONDS)
        self.assertIsNone(repair._thread)

    def bind(self, *arqs: str) -> None:
        """Bind and charge."""
        self.engine.adopt(base.ADMIN, [Claim(arq, {"gpu": 1}, source="east") for arq in arqs], "p1")
        self.cloud.bind(*arqs)


class TestTurns(RepairTestCase):
    scenarios = fixtures.ON_SQLITE  # it only calls the reconciler

    def compared(self, repair: Repair, **options: bool) -> str:
        """Run it; returns what was compared: all, or what changed lately."""
        with (
            mock.patch.object(Reconciler, "find", side_effect=Reconciler.find, autospec=True) as find,
            mock.patch.object(Reconciler, "find_lately", side_effect=Reconciler.find_lately, autospec=True) as lately,
        ):
            repair.run(**options)
        self.assertEqual(1, find.call_count + lately.call_count)
        return "all" if find.called else "lately"

    def test_all_at_the_start_and_after_a_failure(self) -> None:
        repair = self.make_repair()
        self.assertEqual(
            ["all", "lately", "all"], [self.compared(repair, compare_all=all_) for all_ in (False, False, True)]
        )
        with mock.patch.object(
            self.engine, "list_reservations", side_effect=exceptions.DatabaseUnreachable("gone", 6.0)
        ):
            self.assertFalse(repair.run())
        self.assertEqual(["all", "lately"], [self.compared(repair), self.compared(repair)])
        with mock.patch.object(repair, "start"):
            repair.want_all()
        self.assertEqual(["all", "lately"], [self.compared(repair), self.compared(repair)])
        # A repair that the database refuses.
        self.cloud.bind("a")
        with mock.patch.object(self.engine, "adopt", side_effect=exceptions.DatabaseError("It refused a statement.")):
            self.assertFalse(repair.run(compare_all=True))
        self.assertEqual("all", self.compared(repair))
        self.assertEqual((1, 0), self.figures())

    def test_deleted_during_an_outage(self) -> None:
        """All of them: more than an operator's --heal would release without --force. Not without an outage.

        Then the records may have been restored from an old backup.
        """
        arqs = [f"a{number}" for number in range(MANY)]
        self.bind(*arqs)
        repair = self.make_repair()
        self.assertTrue(repair.run())
        self.cloud.arqs.clear()
        repair.run(compare_all=True)
        self.assertEqual((MANY, 0), self.figures())
        self.cloud.bind(*arqs)
        self.assertTrue(repair.run(compare_all=True))
        self.cloud.arqs.clear()
        self.cloud.others.clear()
        self.after_failure(repair)
        self.assertEqual((0, 0), self.figures())

    def test_a_wrong_database(self) -> None:
        """Its first comparison was refused, and an outage changes nothing about that."""
        self.bind(*[f"a{number}" for number in range(MANY)])
        self.cloud.arqs.clear()
        repair = self.make_repair()
        with self.assertLogs(repair_module.LOG.logger, "ERROR") as logged:
            for _ in range(2):
                self.after_failure(repair)
        self.assertIn("The ledger was not repaired: Cyborg's records have shrunk: 20 of the 20", logged.output[1])
        self.assertEqual((MANY, 0), self.figures())

    def test_only_logged(self) -> None:
        """With reconcile_heal = false."""
        self.cloud.bind("a")
        repair = self.make_repair(is_healing=False)
        self.after_failure(repair)
        with self.assertLogs(repair_module.LOG.logger, "WARNING") as logged:
            repair.run(compare_all=True)
        self.assertIn("ARQ a: not charged; charged nothing, attached p1 gpu=1", logged.output[0])
        self.assertEqual((0, 0), self.figures())

    def test_a_crashed_conductor(self) -> None:
        """A turn commits what was bound, however many; nothing that is younger than the grace."""
        repair = self.make_repair()
        repair.run()
        arqs = [f"a{number}" for number in range(MANY)]
        claims = [Claim(arq, {"gpu": 1}, source="east") for arq in arqs]
        self.quotas.reserve_many(self.context, claims)
        self.cloud.bind(*arqs)

        def meanwhile() -> None:
            self.quotas.release(self.context, consumer="a0")
            self.quotas.reserve_many(self.context, claims[:1])

        self.meanwhile = meanwhile
        repair.run()
        self.assertEqual((MANY - 1, 1), self.figures())
        self.meanwhile = lambda: None
        repair.run()
        self.assertEqual((MANY, 0), self.figures())


class TestThread(RepairTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        for name in ("SOON_SECONDS", "RETRY_SECONDS"):
            self.patch(repair_module, name, 0.01)

    def test_until_all_is_done(self) -> None:
        """It waits until the ledger is reachable, and repeats a comparison that failed."""
        reached, reconciler = mock.Mock(side_effect=[False, True, True, True, True]), self.make_reconciler()
        made = mock.Mock(side_effect=[exceptions.DatabaseUnreachable("gone", 6.0), reconciler, reconciler, reconciler])
        repair = Repair(made, reached, is_healing=True)
        self.cloud.bind("a")
        self.after_failure(repair)
        self.assertEqual(((3, 2), (1, 0)), ((reached.call_count, made.call_count), self.figures()))
        self.after_failure(repair)  # a thread that has ended is started again
        self.assertEqual((4, 3), (reached.call_count, made.call_count))

    def test_without_healing(self) -> None:
        """It only waits until the ledger is reachable, which closes the breaker."""
        reached, made = mock.Mock(side_effect=[False, True]), mock.Mock()
        self.after_failure(Repair(made, reached, is_healing=False))
        self.assertEqual((2, 0), (reached.call_count, made.call_count))

    def test_wanted_again_during_a_comparison(self) -> None:
        """A release failed after the comparison had seen its charge."""
        began, may_end = threading.Event(), threading.Event()

        def wait() -> Reconciler:
            began.set()
            may_end.wait(LONG_SECONDS)
            return self.make_reconciler()

        made = mock.Mock(side_effect=wait)
        repair = Repair(made, is_healing=True)
        self.assertTrue(repair.start())
        thread = repair._thread
        self.assertTrue(began.wait(LONG_SECONDS))
        self.assertFalse(repair.start(compare_all=True))
        self.assertEqual((1, True), (made.call_count, thread.is_alive()))
        repair.want_all()
        may_end.set()
        thread.join(LONG_SECONDS)
        self.assertEqual(2, made.call_count)


class TestTwoConductors(RepairTestCase):
    def test_one_heals_and_the_other_finds_nothing(self) -> None:
        """Both compare at once. One reads again and repairs while the other waits for its grace to end."""
        self.bind("deleted", "stays")
        del self.cloud.arqs["deleted"]
        self.quotas.reserve_many(self.context, [Claim("not committed", {"gpu": 1}, source="east")])
        self.cloud.bind("not charged", "not committed")
        both_wait, is_healed = threading.Barrier(2), threading.Event()

        def wait_until_healed(_seconds: float) -> None:
            both_wait.wait(LONG_SECONDS)
            is_healed.wait(LONG_SECONDS)

        first, second = (
            Repair(functools.partial(self.make_reconciler, wait=wait), is_healing=True)
            for wait in (lambda _seconds: both_wait.wait(LONG_SECONDS), wait_until_healed)
        )
        other = threading.Thread(target=second.run)
        with self.assertLogs(reconciler_module.LOG.logger, "INFO") as logged:
            other.start()
            first.run()
            is_healed.set()
            other.join(LONG_SECONDS)
        self.assertEqual(3, "\n".join(logged.output).count("Repaired: ARQ"), logged.output)
        self.assertEqual(((3, 0), [], []), (self.figures(), self.found(), self.quotas.audit(base.ADMIN)))
