# SPDX-License-Identifier: Apache-2.0
"""Calls through the circuit breaker, and when it opens and closes."""

from __future__ import annotations

from unittest import mock

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.cyborg import bind_tracker, ledger_guard
from cyborg_quota.cyborg.ledger_guard import LedgerGuard, LedgerNotCalled


class GuardTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.ping = mock.Mock(return_value=True)
        self.now = 0.0
        self.want_repair = mock.Mock()
        self.guard = LedgerGuard(self.ping, self.want_repair, lambda: self.now)
        self.calls = 0

    def fail(self, error: exceptions.QuotaError) -> None:  # type: ignore[override]
        def call() -> None:
            self.calls += 1
            raise error

        self.assertRaises(type(error), self.guard.call, call)


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
        self.ping.return_value = False
        self.fail(UNREACHABLE)
        self.assertTrue(self.guard.is_open)

    def test_nothing_is_called_while_it_is_open(self) -> None:
        self.ping.return_value = False
        self.fail(UNREACHABLE)
        error = self.assertRaises(LedgerNotCalled, self.guard.call, self.fail, UNREACHABLE)
        self.assertEqual((1, False), (self.calls, self.guard.reaches()))
        self.assertIsInstance(error, exceptions.DatabaseUnavailable)
        self.assertNotIsInstance(error, exceptions.DatabaseUnreachable)
        self.assertGreaterEqual(error.retry_after_seconds, 1)

    def test_closed_by_the_first_ping_that_reaches_it(self) -> None:
        self.ping.side_effect = [False, False, True]
        self.fail(UNREACHABLE)
        self.assertEqual([False, False, True], [self.guard.reaches() for _ in range(3)])
        self.assertEqual((False, 1), (self.guard.is_open, self.want_repair.call_count))
        self.assertEqual(7, self.guard.call(lambda value: value, 7))

    def test_a_late_failure_of_an_earlier_outage(self) -> None:
        """It began before the ping that closed the breaker, and ends after it."""

        def outlast() -> None:
            self.fail(UNREACHABLE)
            self.now += 1
            self.guard.reaches()
            raise UNREACHABLE

        self.assertRaises(exceptions.DatabaseUnreachable, self.guard.call, outlast)
        self.assertEqual((False, 1), (self.guard.is_open, self.want_repair.call_count))

    def test_retry_after(self) -> None:
        """After the next ping, in whole seconds; never immediately."""
        self.now = 18.0
        self.fail(UNREACHABLE)
        for now, seconds in ((18.0, 3), (19.5, 2), (20.0, 1), (25.0, 1)):
            self.now = now
            error = self.assertRaises(LedgerNotCalled, self.guard.call, self.fail)
            self.assertEqual(seconds, error.retry_after_seconds)
        self.assertIn("it became unreachable 7 s ago", str(error))

    def test_nothing_pings(self) -> None:
        """The thread that should do it could not be started: after a while, a call is made again."""
        self.ping.return_value = False
        self.fail(UNREACHABLE)
        self.now += ledger_guard._UNATTENDED_SECONDS - 1
        self.assertEqual((True, False), (self.guard.is_open, self.guard.reaches()))
        self.now += ledger_guard._UNATTENDED_SECONDS - 1
        self.assertTrue(self.guard.is_open)
        self.now += 1
        self.fail(UNREACHABLE)
        self.assertEqual((2, True), (self.calls, self.guard.is_open))

    def test_a_ping_that_raises(self) -> None:
        """It counts as one that did not reach the ledger, and opens it. (A call that may wait for ever pings first.)"""
        self.assertTrue(self.guard.reaches())
        with mock.patch.object(self.guard, "_ping", side_effect=[RuntimeError("no memory"), True]):
            self.assertEqual((False, True), (self.guard.reaches(), self.guard.is_open))
            self.assertEqual((True, False), (self.guard.reaches(), self.guard.is_open))


class TestSlots(GuardTestCase):
    """Calls that hold one of the few slots, as those of the mounted REST API do."""

    def test_immediate_while_it_is_open(self) -> None:
        self.ping.return_value = False
        self.fail(UNREACHABLE)
        with mock.patch.object(self.guard, "_slots") as slots:
            self.assertRaises(LedgerNotCalled, self.guard.call_in_slot, self.fail, UNREACHABLE)
        self.assertEqual((0, 1), (slots.acquire.call_count, self.calls))

    def nested(self, levels: int) -> int:
        """Calls within calls, each of which takes a slot; returns 7."""
        return self.guard.call_in_slot(self.nested, levels - 1) if levels else 7

    def test_no_slot_is_free(self) -> None:
        """The database answers: the calls in the slots wait for a lock, which shuts out nobody else."""
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            for levels, pings in ((0, 0), (2, 2), (0, 2)):
                self.assertEqual(7, self.nested(ledger_guard._SLOTS + levels))
                self.assertEqual((pings, False), (self.ping.call_count, self.guard.is_open))

    def test_no_slot_is_free_and_it_does_not_answer(self) -> None:
        """The ping of one thread opens the breaker; another one does not wait for that ping."""
        self.ping.return_value = False
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            with self.guard._is_checking:
                error = self.assertRaises(LedgerNotCalled, self.nested, ledger_guard._SLOTS + 1)
            self.assertGreaterEqual(error.retry_after_seconds, 1)
            self.assertFalse(self.guard.is_open)
            self.assertRaises(LedgerNotCalled, self.nested, ledger_guard._SLOTS + 1)
            self.assertTrue(self.guard.is_open)

    def test_shared_with_releases(self) -> None:
        """Releases and calls of the REST API together occupy two threads of a web server; a third one pings."""
        engine = mock.Mock(**{"ping.return_value": False})
        tracker = bind_tracker.BindTracker(engine, bind_expire_seconds=60)
        with mock.patch.object(ledger_guard, "_SLOT_SECONDS", 0.01):
            for _ in range(ledger_guard._SLOTS):
                self.assertTrue(tracker.guard._slots.acquire(blocking=False))
            self.assertFalse(tracker.release("a1", "p1"))
        self.assertEqual((1, 0), (engine.ping.call_count, engine.release.call_count))

    def test_a_request_that_has_waited(self) -> None:
        """It waited for a lock: the reason of the next failure is not an outage."""
        engine = mock.Mock(**{"release.side_effect": exceptions.DatabaseUnavailable("Lock wait timeout", 7.0)})
        tracker = bind_tracker.BindTracker(engine, bind_expire_seconds=60)
        with bind_tracker.one_request():
            self.assertRaises(exceptions.DatabaseUnavailable, tracker.call, engine.release)
            error = self.assertRaises(LedgerNotCalled, tracker.call, engine.release)
        self.assertIn("this request has already waited", str(error))
        self.assertEqual(1, engine.release.call_count)
