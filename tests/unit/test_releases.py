# SPDX-License-Identifier: Apache-2.0
"""Postponed releases and commits, while another project's rows are locked or no thread may release."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg import backoff, bind_tracker, ledger_guard, releases
from cyborg_quota.integrations.cyborg.backoff import Reach, reach_of
from cyborg_quota.integrations.cyborg.bind_tracker import BindRequest, BindReservation, BindTracker, Caller
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.releases import Releaser

REFUSED = exceptions.DatabaseError("The database refused a statement: Data too long for column.")
LOCKED = exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0)
SOON = 20.0
UNREACHABLE = exceptions.DatabaseUnreachable("connection refused", 6.0)


class Engine:
    """A ledger that raises ``errors[project_id]``. ``calls``: the ARQs or reservations that each call named."""

    def __init__(self) -> None:
        self.errors: dict[str, exceptions.QuotaError] = {}
        self.refused: set[str] = set()
        self.calls: list[str] = []
        self.done: list[str] = []
        self.reserved: list[str] = []

    def reserve_many(self, _context: Any, _claims: Any, _ttl: int) -> list[str]:
        return self.reserved[-1:]

    def extend(self, context: Any, uuids: list[str], _ttl: int) -> None:
        self._run(context.project_id, uuids[0])

    def ping(self) -> bool:
        return False

    def release(self, _context: Any, _uuids: Any, project_id: str, *, consumer: str) -> None:
        self._run(project_id, consumer)

    def commit(self, context: Any, uuids: list[str]) -> None:
        self._run(context.project_id, uuids[0])

    def _run(self, project_id: str, name: str) -> None:
        self.calls.append(name)
        if project_id in self.errors:
            raise self.errors[project_id]
        if name in self.refused:
            raise REFUSED
        self.done.append(name)


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


class RetryTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = Engine()
        self.releaser = Releaser(self.engine, call, mock.Mock(), lambda _arqs: {}, mock.Mock())  # type: ignore[arg-type]

    def postpone(self, *arqs: str) -> None:
        """Fail the releases of ``arqs``, whose projects are their first words."""
        for arq in arqs:
            project_id = arq.split("-")[0]
            with mock.patch.dict(self.engine.errors, {project_id: LOCKED}):
                self.assertFalse(self.releaser.release(arq, project_id))
        self.engine.calls.clear()


class TestRetry(RetryTestCase):
    def test_a_locked_project_does_not_hold_up_others(self) -> None:
        """Its first release is tried, and its others wait for the next retry."""
        self.postpone("hot-1", "cold-1", "hot-2", "cold-2")
        self.engine.errors["hot"] = LOCKED
        self.assertFalse(self.releaser.retry())
        self.assertEqual(["hot-1", "cold-1", "cold-2"], self.engine.calls)
        self.assertEqual((["cold-1", "cold-2"], 2), (self.engine.done, self.releaser.pending))
        self.engine.errors.clear()
        self.assertTrue(self.releaser.retry())
        self.assertEqual(["cold-1", "cold-2", "hot-1", "hot-2"], self.engine.done)

    def test_many_locked_projects(self) -> None:
        """After the first lock, those of other projects wait at the same time: each reaches the barrier."""
        hot = [f"hot{number}" for number in range(5)]
        self.postpone(*[f"{project_id}-1" for project_id in hot], "cold-1")
        barrier = threading.Barrier(4)

        def release(_context: Any, _uuids: Any, project_id: str, *, consumer: str) -> None:
            if project_id in hot[1:]:
                barrier.wait(SOON)
            self.engine._run(project_id, consumer)

        self.engine.errors.update(dict.fromkeys(hot, LOCKED))
        with mock.patch.object(self.engine, "release", release):
            self.assertFalse(self.releaser.retry())
        self.assertFalse(barrier.broken)
        self.assertEqual((["cold-1"], 5), (self.engine.done, self.releaser.pending))

    def test_bound_again_while_it_was_released(self) -> None:
        """The retry reads Cyborg's records before and after: the new bind's charge was released, so it is repeated."""
        self.postpone("p1-1", "p1-2")
        again = {"p1-1": Attached("p1-1", "p1", "i1", {"gpu": 1})}
        answers = iter([{}, again])
        adopt = mock.Mock()
        with (
            mock.patch.object(self.releaser, "_bound_of", lambda _arqs: next(answers)),
            mock.patch.object(self.releaser, "_adopt", adopt),
        ):
            self.assertTrue(self.releaser.retry())
        adopt.assert_called_once_with(again["p1-1"])

    def test_bound_again_and_the_ledger_goes_down(self) -> None:
        """When it is back, the ARQ that was released before, or could not be charged, is charged."""
        self.postpone("p1-1", "p2-1")
        again = Attached("p1-1", "p1", "i1", {"gpu": 1})
        adopt = mock.Mock(side_effect=[UNREACHABLE, None])
        self.engine.errors["p2"] = UNREACHABLE

        def bound_of(arqs: Collection[str]) -> dict[str, Attached]:
            return {"p1-1": again} if self.engine.done and "p1-1" in arqs else {}

        with (
            mock.patch.object(self.releaser, "_bound_of", bound_of),
            mock.patch.object(self.releaser, "_adopt", adopt),
        ):
            self.assertFalse(self.releaser.retry())
            self.assertEqual(["p1-1"], self.engine.done)
            self.engine.errors.clear()
            self.assertEqual((False, True), (self.releaser.retry(), self.releaser.retry()))
        self.assertEqual([mock.call(again)] * 2, adopt.call_args_list)

    def test_bound_again_before(self) -> None:
        """By the same project, its charge is the new bind's and stays; by another one, the old charge is released."""
        self.postpone("p1-1", "p1-2")
        bound = {
            arq: Attached(arq, project_id, "i1", {"gpu": 1}) for arq, project_id in (("p1-1", "p1"), ("p1-2", "p2"))
        }
        with mock.patch.object(
            self.releaser, "_bound_of", lambda arqs: {arq: bound[arq] for arq in arqs if arq in bound}
        ):
            self.assertTrue(self.releaser.retry())
        self.assertEqual(["p1-2"], self.engine.done)

    def test_no_more_than_fit(self) -> None:
        with mock.patch.object(releases, "_MOST_PENDING", 2):
            self.postpone("p1-1", "p1-2", "p1-3")
            self.assertEqual(2, self.releaser.pending)

    def test_ended_by_an_error_of_the_whole_database(self) -> None:
        """Each further release would wait as long."""
        self.postpone("hot-1", "cold-1")
        for error in (
            UNREACHABLE,
            exceptions.DatabaseReadOnly("read-only", 6.0),
            exceptions.DatabaseNotInitialized(),
            ledger_guard.LedgerBusy(),
        ):
            self.engine.calls.clear()
            self.engine.errors["hot"] = error
            self.assertFalse(self.releaser.retry())
            self.assertEqual((["hot-1"], 2), (self.engine.calls, self.releaser.pending), error)


class TestRefused(RetryTestCase):
    """The database always refuses the statement of one release, whatever its cause is."""

    def setUp(self) -> None:
        super().setUp()
        self.now = 100.0
        self.releaser._clock = lambda: self.now
        self.engine.refused.add("bad-1")

    def retry(self) -> bool:
        self.engine.calls.clear()
        return self.releaser.retry()

    def test_the_others_are_done(self) -> None:
        """Also those of the same project."""
        self.postpone("bad-1", "bad-2", "good-1")
        with self.assertLogs(releases.LOG.logger, "ERROR") as logged:
            self.assertFalse(self.retry())
        self.assertEqual((["bad-1", "bad-2", "good-1"], 1), (self.engine.calls, self.releaser.pending))
        self.assertEqual(1, len(logged.output))
        self.assertIn("The database refused 1 of 1 pending releases", logged.output[0])
        self.assertIn("ARQ bad-1 of project bad: The database refused a statement: Data too long", logged.output[0])

    def test_backoff(self) -> None:
        """It is retried after 10, 20 and 40 s, and at least every 40 s; it is done when the database accepts it."""
        self.postpone("bad-1")
        pauses = []
        for _ in range(4):
            self.assertFalse(self.retry())
            self.assertEqual(["bad-1"], self.engine.calls)
            began = self.now
            while self.now < began + 100 and not self.releaser._pending[self.pending()].is_due(self.now):
                self.assertFalse(self.retry())
                self.assertEqual([], self.engine.calls)
                self.now += 10.0
            pauses.append(self.now - began)
        self.assertEqual([10.0, 20.0, 40.0, 40.0], pauses)
        self.engine.refused.clear()
        self.assertTrue(self.retry())
        self.assertEqual(["bad-1"], self.engine.done)

    def pending(self) -> releases.PendingRelease:
        [release] = self.releaser._pending
        return release

    def test_many(self) -> None:
        """A retry ends after some refusals; the next one begins with those that were not tried."""
        arqs = [f"bad-{number}" for number in range(5)]
        self.engine.refused.update(arqs)
        self.postpone(*arqs, "good-1")
        with mock.patch.object(releases, "_MOST_REFUSALS", 3):
            self.assertFalse(self.retry())
            self.assertEqual(arqs[:3], self.engine.calls)
            self.now += 10.0
            self.assertFalse(self.retry())
            self.assertEqual([*arqs[3:], "good-1", arqs[0]], self.engine.calls)
        self.assertEqual(["good-1"], self.engine.done)


class TestSlots(base.BaseTestCase):
    def test_a_request_waits_once_for_a_slot(self) -> None:
        """Two threads wait for a locked project: a DELETE of many ARQs of another project waits once."""
        engine = Engine()
        tracker = BindTracker(engine, bind_expire_seconds=60)  # type: ignore[arg-type]
        self.addCleanup(tracker.close)
        slots = mock.Mock(**{"acquire.return_value": False})
        with mock.patch.object(tracker.guard, "_slots", slots):
            for _ in range(2):
                slots.reset_mock()
                with bind_tracker.one_request():
                    for number in range(5):
                        self.assertFalse(tracker.release(f"a{number}", "cold"))
                timeouts = [acquired.kwargs["timeout"] for acquired in slots.acquire.call_args_list]
                self.assertEqual([ledger_guard._SLOT_SECONDS, 0, 0, 0, 0], timeouts)
        self.assertEqual(([], 5), (engine.calls, tracker._releaser.pending))

    def test_not_after_the_request_waited_for_the_ledger(self) -> None:
        engine = Engine()
        engine.errors["hot"] = LOCKED
        tracker = BindTracker(engine, bind_expire_seconds=60)  # type: ignore[arg-type]
        self.addCleanup(tracker.close)
        slots = mock.Mock(**{"acquire.side_effect": [True, False]})
        with mock.patch.object(tracker.guard, "_slots", slots), bind_tracker.one_request():
            for arq in ("a1", "a2"):
                self.assertFalse(tracker.release(arq, "hot"))
        self.assertEqual(0, slots.acquire.call_args.kwargs["timeout"])


class TestEnd(base.BaseTestCase):
    """The end of a process."""

    def setUp(self) -> None:
        super().setUp()
        self.engine = Engine()
        self.tracker = BindTracker(self.engine, bind_expire_seconds=60)  # type: ignore[arg-type]
        with mock.patch.dict(self.engine.errors, {"p1": LOCKED}):
            self.assertFalse(self.tracker.release("a1", "p1"))

    def test_pending_releases_are_retried_once(self) -> None:
        self.tracker.close()
        self.assertEqual((["a1"], 0), (self.engine.done, self.tracker._releaser.pending))

    def test_what_is_left_is_logged(self) -> None:
        self.engine.errors["p1"] = LOCKED
        with self.assertLogs(bind_tracker.LOG.logger, "WARNING") as logged:
            self.tracker.close()
        self.assertIn("The process ends with 1 releases not done", logged.output[-1])


class TestExtend(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = Engine()
        self.tracker = BindTracker(self.engine, bind_expire_seconds=0)  # type: ignore[arg-type]
        self.addCleanup(self.tracker.close)
        for project_id in ("p1", "p2", "p3"):
            self.engine.reserved.append(f"of {project_id}")
            request = BindRequest(f"arq of {project_id}", "i1", Caller(project_id), {"gpu": 1})
            self.tracker.reserve_binds([request])

    def test_a_locked_project_does_not_hold_up_others(self) -> None:
        self.engine.errors.update({"p1": LOCKED, "p2": LOCKED})
        self.tracker.extend_running()
        self.assertEqual(["of p3"], self.engine.done)
        self.assertEqual(3, len(self.engine.calls))

    def test_ended_by_an_unreachable_ledger(self) -> None:
        self.engine.errors.update(dict.fromkeys(("p1", "p2", "p3"), UNREACHABLE))
        self.tracker.extend_running()
        self.assertEqual(1, len(self.engine.calls))


class TestOwedCommits(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = Engine()
        self.tracker = BindTracker(self.engine, bind_expire_seconds=60)  # type: ignore[arg-type]
        self.addCleanup(self.tracker.close)
        for arq in ("hot-1", "cold-1", "hot-2", "cold-2"):
            project_id = arq.split("-")[0]
            request = BindRequest(arq, "i1", Caller(project_id), {"gpu": 1})
            with mock.patch.dict(self.engine.errors, {project_id: LOCKED}):
                BindReservation(self.tracker, request, [arq]).commit(lambda: True)
        self.engine.calls.clear()

    def test_a_locked_project_does_not_hold_up_others(self) -> None:
        self.engine.errors["hot"] = LOCKED
        self.tracker.settle_owed()
        self.assertEqual(["hot-1", "cold-1", "cold-2"], self.engine.calls)
        self.assertEqual(["cold-1", "cold-2"], self.engine.done)
        self.engine.errors.clear()
        self.tracker.settle_owed()
        self.assertEqual(["cold-1", "cold-2", "hot-1", "hot-2"], self.engine.done)

    def test_ended_by_an_unreachable_ledger(self) -> None:
        self.engine.errors["hot"] = UNREACHABLE
        self.tracker.settle_owed()
        self.assertEqual((["hot-1"], True), (self.engine.calls, self.tracker.guard.is_open))

    def test_a_refused_commit_holds_up_no_other(self) -> None:
        """It is retried after a pause; the others of its project are committed at once."""
        self.engine.refused = {"hot-1"}
        self.tracker.settle_owed()
        self.assertEqual(["hot-1", "cold-1", "hot-2", "cold-2"], self.engine.calls)
        self.assertEqual(["cold-1", "hot-2", "cold-2"], self.engine.done)
        self.engine.refused.clear()
        self.tracker.settle_owed()
        self.assertEqual(4, len(self.engine.calls))
        later = time.monotonic() + backoff.FIRST_SECONDS
        with mock.patch("time.monotonic", lambda: later):
            self.tracker.settle_owed()
        self.assertEqual("hot-1", self.engine.done[-1])


class TestReach(base.BaseTestCase):
    def test_each_error(self) -> None:
        for error, reach in (
            (UNREACHABLE, Reach.LEDGER),
            (exceptions.DatabaseReadOnly("read-only", 6.0), Reach.LEDGER),
            (exceptions.DatabaseNotInitialized(), Reach.LEDGER),
            (exceptions.LimitsUnavailable("no answer", 9.0), Reach.LEDGER),
            (ledger_guard.LedgerAwaited(), Reach.LEDGER),
            (LOCKED, Reach.PROJECT),
            (exceptions.DatabaseError("refused"), Reach.CALL),
            (exceptions.ReservationNotFound("u1"), Reach.CALL),
        ):
            self.assertIs(reach, reach_of(error), error)
