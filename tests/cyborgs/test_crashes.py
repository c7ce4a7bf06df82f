# SPDX-License-Identifier: Apache-2.0
"""A conductor crashes during a bind, or another call binds first: the ledger then agrees with Cyborg."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import threading
import uuid
from collections.abc import Iterator

from cyborg_quota.types import Reservation
from tests import base as ledger_base
from tests.cyborgs import environment, quota
from tests.servers import machine

REACH_SECONDS = 30.0
HEALING = "reconcile_heal = true\nreconcile_seconds = 1\nreconcile_grace = 3"


class PointsTestCase(quota.QuotaTestCase):
    """Starts a conductor that can be held or killed at the points of points.py."""

    conductor = quota.POINTED_CONDUCTOR

    def setUp(self) -> None:
        self.points = environment.DIRECTORY / f"points-{os.getpid()}"
        shutil.rmtree(self.points, ignore_errors=True)
        self.points.mkdir(parents=True)
        os.environ["CYBORG_QUOTA_TEST_POINTS"] = str(self.points)  # the conductor inherits it
        super().setUp()
        self.addCleanup(shutil.rmtree, self.points, True)

    def reached(self, point: str) -> pathlib.Path:
        return self.points / f"{point}.reached"

    @contextlib.contextmanager
    def held(self, point: str) -> Iterator[None]:
        """While the block runs, binds wait at the point."""
        (self.points / point).write_text("hold")
        try:
            yield
        finally:
            (self.points / point).unlink()

    def wait_for(self, point: str) -> None:
        machine.wait_until(self.reached(point).exists, REACH_SECONDS)
        self.assertTrue(self.reached(point).exists(), f"no bind came to {point}")

    def is_extended(self, arq: str, before: Reservation) -> bool:
        """Whether the reservation of this ARQ lives longer than it did before, while an expirer runs."""
        self.assertEqual(0, self.engine.expire(ledger_base.ADMIN))
        [now] = self.engine.list_reservations(ledger_base.ADMIN, consumer=arq)
        return now.state == "reserved" and str(now.expire) > str(before.expire)

    def start_again(self, point: str) -> None:
        """Start the conductor that is killed at the point."""
        machine.wait_until(lambda: not self.stack.conductor.running, REACH_SECONDS)
        (self.points / point).unlink()
        self.stack.conductor.kill()
        self.stack.conductor.start()

    def lose_quota(self) -> None:
        """The reservations of a bind expire, and another request takes the quota."""
        self.expire_all()
        self.engine.adopt(ledger_base.ADMIN, [ledger_base.claim("other", fpga=1)], self.project_id)

    @contextlib.contextmanager
    def binding(self, point: str, *arqs: str) -> Iterator[list[concurrent.futures.Future[int]]]:
        """Start one bind call per ARQ; they wait at the point while the block runs, and have ended after it.

        Yields their statuses. At least one of them has reached the point when the block begins.
        """
        with concurrent.futures.ThreadPoolExecutor() as pool, self.held(point):
            statuses = [
                pool.submit(lambda arq=arq: self.client.bind([arq], str(uuid.uuid4()), self.rp).status) for arq in arqs
            ]
            self.wait_for(point)
            yield statuses


class TestKilled(PointsTestCase):
    options = HEALING

    def kill_at(self, point: str) -> list[str]:
        """Two ARQs whose conductor was killed at the point; a new conductor runs."""
        arqs = self.client.created(self.profile, 2)
        (self.points / point).write_text("kill")

        def bind() -> None:
            """The call gets no answer. The test waits neither for its timeout nor for the API."""
            with contextlib.suppress(OSError):
                self.client.bind(arqs, str(uuid.uuid4()), self.rp)

        threading.Thread(target=bind, daemon=True).start()
        self.wait_for(point)
        self.start_again(point)
        return arqs

    def test_between_reserve_and_bind_and_retried_immediately(self) -> None:
        """No ARQ is bound. A second call, before the expiry, uses the reservations of the first call."""
        self.set_limit(2)
        arqs = self.kill_at("reserved")
        self.assertEqual((["Initial"] * 2, (0, 2)), (self.records.states(arqs), self.figures()))
        self.bind(arqs)
        self.assert_agree()

    def test_between_bind_and_commit_or_after_it(self) -> None:
        """The first ARQ is bound, and charged at the latest by the next conductor. The second reservation expires."""
        self.set_limit(2)
        for point in ("bound", "committed"):
            arqs = self.kill_at(point)
            self.assertEqual(["Bound", "Initial"], self.records.states(arqs), point)
            self.wait_for_figures(1, 1)
            self.expire_all()
            self.assertEqual(((1, 0), quota.Output(0, "", "")), (self.figures(), self.reconcile()), point)
            self.bind(arqs[1:])
            self.refused(self.client.created(self.profile))
            self.assert_agree()
            self.client.delete(arqs)
            self.assert_agree()


class TestConcurrentCalls(PointsTestCase):
    options = HEALING

    def test_the_conductor_expires(self) -> None:
        """No expirer runs."""
        self.engine.reserve(ledger_base.Context(self.project_id), {"fpga": 1}, 1, consumer="nobody settles it")
        self.wait_for_figures(0)

    def test_fails_when_it_is_bound(self) -> None:
        """Cyborg's bind raises after its last step: the call fails, but the ARQ is bound and charged."""
        self.set_limit(1)
        [arq, other] = self.client.created(self.profile, 2)
        (self.points / "lost").touch()
        self.refused([arq], 500)
        (self.points / "lost").unlink()
        self.assertEqual(["Bound"], self.records.states([arq]))
        self.refused([other])
        self.wait_for_figures(1)
        self.assert_agree()

    def test_deleted_or_unbound_while_it_is_bound(self) -> None:
        for point, end, state in (
            ("reserved", self.client.delete, None),
            ("bound", self.client.delete, None),
            ("committed", self.client.delete, None),
            ("bound", self.client.unbind, "Unbound"),
        ):
            [arq] = self.client.created(self.profile)
            with self.binding(point, arq):
                self.assertIn(end([arq]).status, (202, 204))
            self.assertEqual(([state], (0, 0)), (self.records.states([arq]), self.figures()), point)
            self.assert_agree()
            self.reached(point).unlink()

    def test_two_deliveries_and_the_first_is_slow(self) -> None:
        """The second call finds the ARQ bound, and does not change its charge."""
        [arq] = self.client.created(self.profile)
        with self.binding("bound", arq) as [first]:
            self.refused([arq], 500)  # as without quota
            self.assertEqual((0, 1), self.figures())
        self.assertEqual(202, first.result())
        self.assert_agree()

    def test_quota_is_lost_and_it_cannot_be_detached(self) -> None:
        """The detach fails, so the ARQ stays bound: the next comparison charges it."""
        self.set_limit(1)
        [arq] = self.client.created(self.profile)
        (self.points / "stuck").touch()
        with self.binding("bound", arq) as [first]:
            self.lose_quota()
        self.assertEqual((500, ["Bound"]), (first.result(), self.records.states([arq])))
        self.wait_for_figures(2)


class TestJobs(PointsTestCase):
    """Binds that continue after the call was answered."""

    def setUp(self) -> None:
        super().setUp()
        (self.points / "job").touch()

    def test_one_job_of_two_exceeds_the_limit(self) -> None:
        """They are settled when the jobs end. Nova is told of both ARQs: the other ARQ stays bound and charged."""
        self.set_limit(2)
        arqs = self.client.created(self.profile, 2)
        with self.held("bound"):
            instance = self.bind(arqs)
            self.wait_for("bound")
            self.assertEqual(((0, 2), {}), (self.figures(), self.stack.nova.told_of(instance)))
            self.lose_quota()
        machine.wait_until(lambda: len(self.stack.nova.told_of(instance)) == 2, REACH_SECONDS)
        self.assertEqual(["completed", "failed"], sorted(self.stack.nova.told_of(instance).values()))
        self.assertEqual(["BindFailed", "Bound"], sorted(map(str, self.records.states(arqs))))
        self.assertEqual(((2, 0), 1), (self.figures(), self.records.handles_in_use()))

    def test_the_call_fails_while_a_job_of_it_runs(self) -> None:
        """The job continues after the call failed, and its reservation is settled."""
        first, second = self.client.created(self.profile, 2)
        with self.held("bound"):
            answer = self.client.bind([first, second], str(uuid.uuid4()), [self.rp, str(uuid.uuid4())])
            self.assertEqual(404, answer.status)
            self.wait_for("bound")
            self.assertEqual((0, 1), self.figures())
        self.wait_for_figures(1)
        self.assert_agree()

    def test_killed_while_a_job_runs(self) -> None:
        [arq] = self.client.created(self.profile)
        (self.points / "bound").write_text("kill")
        self.bind([arq])
        self.start_again("bound")
        self.expire_all()
        self.assertEqual(0, self.reconcile("--heal").status)
        self.assertEqual((1, 0), self.figures())
        self.assert_agree()


class TestLong(PointsTestCase):
    options = "bind_expire = 6"
    detached = "BindFailed"
    """The state of an ARQ that is detached again."""

    def test_quota_is_lost_while_it_is_bound(self) -> None:
        """The reservation expired and another request took the quota: the ARQ is detached, and the bind is refused."""
        self.set_limit(1)
        [arq] = self.client.created(self.profile)
        with self.binding("bound", arq) as [first]:
            self.lose_quota()
        self.assertEqual(403, first.result())
        self.assertEqual(([self.detached], 0), (self.records.states([arq]), self.records.handles_in_use()))
        self.assertEqual((1, 0), self.figures())

    def test_extended_while_it_runs(self) -> None:
        """The lifetime of the reservation begins again before it ends, while an expirer runs."""
        [arq] = self.client.created(self.profile)
        with self.binding("bound", arq) as [first]:
            [before] = self.engine.list_reservations(ledger_base.ADMIN, consumer=arq)
            machine.wait_until(lambda: self.is_extended(arq, before), REACH_SECONDS)
            self.assertTrue(self.is_extended(arq, before))
        self.assertEqual(202, first.result())
        self.assertEqual(["committed"], [row[3] for row in self.reservations(arq)])
        self.assert_agree()
