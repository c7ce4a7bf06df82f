# SPDX-License-Identifier: Apache-2.0
"""Calls through the circuit breaker, and the thread that probes and starts a repair."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg import bind_tracker, ledger_guard
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerAwaited, LedgerBusy, LedgerGuard, LedgerOffline

SOON = 20.0


class Ledger:
    """A ledger whose state is set by the test: available or not, with or without something to repair."""

    def __init__(self) -> None:
        self.answers: Iterator[bool] = iter(())
        self.left: list[bool] = []
        self.repaired = threading.Event()
        self.pings = 0

    def ping(self) -> bool:
        self.pings += 1
        return next(self.answers, True)

    def repair(self) -> bool:
        self.repaired.set()
        return self.left.pop() if self.left else True


class GuardTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("PROBE_SECONDS", "REPAIR_SECONDS"):
            patch = mock.patch.object(ledger_guard, name, 0.01)
            patch.start()
            self.addCleanup(patch.stop)
        self.ledger = Ledger()
        self.guard = LedgerGuard(self.ledger.ping, self.ledger.repair)
        self.addCleanup(self.guard.close)
        self.calls = 0

    def fail(self, error: exceptions.QuotaError) -> None:  # type: ignore[override]
        def call() -> None:
            self.calls += 1
            raise error

        self.assertRaises(type(error), self.guard.call, call)

    def wait_for_end(self) -> None:
        thread = self.guard._thread
        if thread is not None:
            thread.join(SOON)
        self.assertIsNone(self.guard._thread)


UNREACHABLE = exceptions.DatabaseUnreachable("connection refused", 6.0)


class TestGuard(GuardTestCase):
    def test_only_an_unreachable_server_opens_it(self) -> None:
        """A lock that was not granted, a deadlock and exhausted retries do not open it."""
        for error in (
            exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 7.0),
            exceptions.DatabaseUnavailable("too many concurrent changes of the same rows", 6.0),
            exceptions.DatabaseError("The database refused a statement"),
            exceptions.OverQuota([]),
        ):
            self.fail(error)
            self.assertFalse(self.guard.is_open)
        self.ledger.answers = iter([False] * 1000)
        self.fail(UNREACHABLE)
        self.assertTrue(self.guard.is_open)

    def test_nothing_is_called_while_it_is_open(self) -> None:
        self.ledger.answers = iter([False] * 1000)
        self.fail(UNREACHABLE)
        error = self.assertRaises(LedgerOffline, self.guard.call, self.fail, UNREACHABLE)
        self.assertEqual(1, self.calls)
        self.assertIsInstance(error, exceptions.DatabaseUnavailable)
        self.assertNotIsInstance(error, exceptions.DatabaseUnreachable)
        self.assertGreaterEqual(error.retry_after_seconds, 1)
        self.assertFalse(self.guard.reaches())

    def test_closed_by_the_first_probe_that_reaches_it(self) -> None:
        self.ledger.answers = iter([False, False, True])
        self.fail(UNREACHABLE)
        self.wait_for_end()
        self.assertEqual((3, False), (self.ledger.pings, self.guard.is_open))
        self.assertTrue(self.ledger.repaired.is_set())
        self.assertEqual(7, self.guard.call(lambda value: value, 7))

    def test_repaired_until_all_is_done(self) -> None:
        self.ledger.left = [True, False, False]
        self.guard.want_repair()
        self.wait_for_end()
        self.assertEqual(([], 0), (self.ledger.left, self.ledger.pings))
        self.ledger.repaired.clear()
        self.guard.want_repair()  # a thread that has ended is started again
        self.assertTrue(self.ledger.repaired.wait(SOON))

    def test_wanted_again_during_a_repair(self) -> None:
        """A release failed after the repair had compared it."""
        calls: list[int] = []

        def repair() -> bool:
            calls.append(1)
            if len(calls) == 1:
                self.guard.want_repair()
            return True

        with mock.patch.object(self.guard, "_repair", repair):
            self.guard.want_repair()
            self.wait_for_end()
        self.assertEqual(2, len(calls))

    def test_probed_while_a_repair_is_blocked(self) -> None:
        """A repair may wait for another database; this must not keep the breaker open after an outage."""
        is_begun, may_end = threading.Event(), threading.Event()
        self.addCleanup(may_end.set)

        def repair() -> bool:
            is_begun.set()
            may_end.wait(SOON)
            return True

        with mock.patch.object(self.guard, "_repair", repair):
            self.guard.want_repair()
            self.assertTrue(is_begun.wait(SOON))
            self.fail(UNREACHABLE)
            deadline = time.monotonic() + SOON
            while self.guard.is_open and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertFalse(self.guard.is_open)
            self.assertFalse(may_end.is_set())
            may_end.set()
            self.wait_for_end()

    def test_probed_directly(self) -> None:
        """A call that may wait for ever probes first."""
        self.assertTrue(self.guard.reaches())
        self.ledger.answers = iter([False] * 1000)
        self.assertFalse(self.guard.reaches())
        self.assertTrue(self.guard.is_open)

    def test_closed_permanently(self) -> None:
        self.guard.close()
        self.guard.want_repair()
        self.assertIsNone(self.guard._thread)

    def test_a_probe_that_raises(self) -> None:
        """It counts as a probe that did not reach the ledger, and probing continues."""
        with mock.patch.object(self.guard, "_ping", side_effect=[RuntimeError("no memory"), True]):
            self.fail(UNREACHABLE)
            self.wait_for_end()
        self.assertFalse(self.guard.is_open)


class TestSlots(GuardTestCase):
    """Calls that hold one of the few slots, as those of the mounted REST API do."""

    def test_immediate_while_it_is_open(self) -> None:
        self.ledger.answers = iter([False] * 1000)
        self.assertRaises(exceptions.DatabaseUnreachable, self.guard.call_in_slot, mock.Mock(side_effect=UNREACHABLE))
        self.assertTrue(self.guard.is_open)
        with mock.patch.object(self.guard, "_slots") as slots:
            self.assertRaises(LedgerOffline, self.guard.call_in_slot, self.fail, UNREACHABLE)
        self.assertEqual((0, 0), (slots.acquire.call_count, self.calls))

    def nested(self, levels: int) -> int:
        """Calls within calls, each of which takes a slot; returns 7."""
        return self.guard.call_in_slot(self.nested, levels - 1) if levels else 7

    def test_no_slot_is_free(self) -> None:
        """The database answers: the calls in the slots wait for a lock, which shuts out nobody else."""
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            self.assertEqual((7, 0), (self.nested(ledger_guard._SLOTS), self.ledger.pings))
            self.assertEqual((7, 2), (self.nested(ledger_guard._SLOTS + 2), self.ledger.pings))
            self.assertFalse(self.guard.is_open)
            self.assertEqual((7, 2), (self.nested(ledger_guard._SLOTS), self.ledger.pings))

    def test_no_slot_is_free_and_it_does_not_answer(self) -> None:
        """The ping of one thread opens the breaker; another one does not wait for that ping."""
        self.ledger.answers = iter([False] * 1000)
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            with self.guard._is_checking:
                error = self.assertRaises(LedgerBusy, self.nested, ledger_guard._SLOTS + 1)
            self.assertGreaterEqual(error.retry_after_seconds, 1)
            self.assertFalse(self.guard.is_open)
            self.assertRaises(LedgerOffline, self.nested, ledger_guard._SLOTS + 1)
            self.assertTrue(self.guard.is_open)

    def test_shared_with_releases(self) -> None:
        """Releases and calls of the REST API together occupy two threads of a web server."""
        engine = mock.Mock()
        tracker = bind_tracker.BindTracker(engine, bind_expire_seconds=60)
        self.addCleanup(tracker.guard.close)
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            for _ in range(ledger_guard._SLOTS):
                self.assertTrue(tracker.guard.take_slot())
            self.assertFalse(tracker.release("a1", "p1"))
            tracker.guard.free_slot()
            self.assertTrue(tracker.release("a1", "p1"))

    def test_a_request_that_has_waited(self) -> None:
        """It waited for a lock: the reason of the next failure is not an outage."""
        engine = mock.Mock(**{"release.side_effect": exceptions.DatabaseUnavailable("Lock wait timeout", 7.0)})
        tracker = bind_tracker.BindTracker(engine, bind_expire_seconds=60)
        self.addCleanup(tracker.guard.close)
        with bind_tracker.one_request():
            self.assertRaises(exceptions.DatabaseUnavailable, tracker.call, engine.release)
            error = self.assertRaises(LedgerAwaited, tracker.call, engine.release)
        self.assertIn("this request has already waited", str(error))
        self.assertEqual(1, engine.release.call_count)


class TestFork(base.BaseTestCase):
    def test_a_child_has_its_own(self) -> None:
        """It was forked while the parent's lock was held, its breaker open, and its thread running."""
        engine = mock.Mock(**{"ping.return_value": False})
        charger = bind_tracker.BindTracker(engine, bind_expire_seconds=60)
        self.addCleanup(charger.guard.close)
        self.assertRaises(exceptions.DatabaseUnreachable, charger.guard.call, mock.Mock(side_effect=UNREACHABLE))
        engine.release.side_effect = UNREACHABLE
        self.assertFalse(charger.release("a1", "p1"))
        with charger.guard._lock:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    engine.release.side_effect = None
                    status = 0 if not charger.guard.is_open and charger.release("a2", "p1") else 2
                finally:
                    os._exit(status)
            _, status = os.waitpid(pid, 0)
        self.assertEqual(0, os.waitstatus_to_exitcode(status))
        self.assertTrue(charger.guard.is_open)
