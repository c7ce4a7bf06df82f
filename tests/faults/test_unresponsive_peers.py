# SPDX-License-Identifier: Apache-2.0
"""Peers that do not answer: a suspended server, a lock that is not released, a client whose machine has crashed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from unittest import mock

import sqlalchemy as sa
import testscenarios
import webob

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.metrics.exporter import LedgerApplication
from tests import base, fixtures, hooks, trees
from tests.faults import outages
from tests.faults.load import Crew, Ledger
from tests.faults.proxy import Proxy
from tests.faults.test_outages import OwnServerTestCase

load_tests = testscenarios.load_tests_apply_scenarios

SHORT_TIMEOUTS = {"statement_timeout_seconds": 1, "retry_seconds": 1.0, "connect_timeout_seconds": 1}


class TestPaused(OwnServerTestCase):
    """The server is suspended: its kernel still acknowledges packets, but no answer comes."""

    def test_a_caller_gets_an_error_in_time(self) -> None:
        """Callers under load; then callers on a pooled connection, and callers that open a new one."""
        server = self.start()
        ledger = self.ledger_on(server)
        outages.pause_server(ledger, server, 2.5, random.randrange(2**32), **SHORT_TIMEOUTS)
        self.assertGreater(ledger.assert_right().errors["DatabaseUnavailable"], 0)
        times = {"statement_timeout_seconds": 3, "retry_seconds": 2.0, "connect_timeout_seconds": 1}
        engine = ledger.make_engine(**times)
        engine.reserve(base.ADMIN, {"gpu": 1})
        server.pause()
        self.addCleanup(server.resume)
        with hooks.recorded_statements(engine) as sent, futures.ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(engine.reserve, base.ADMIN, {"gpu": 1}) for _ in range(4)]
            errors = [call.exception(60.0) for call in calls]
        self.assertEqual([True] * 4, [isinstance(error, exceptions.DatabaseUnavailable) for error in errors])
        # One statement timeout, not two: no other variant of the call is tried, and no retry follows after the
        # deadline. (One caller has the pooled connection.)
        self.assertLessEqual(len(sent), 1, sent)

    def test_a_scrape_of_the_metrics_gets_503_in_time(self) -> None:
        """The database is suspended while another scrape reads it, and then stopped."""
        server = self.start()
        engine = self.ledger_on(server).make_engine()
        application = LedgerApplication(engine, ["*"])
        self.assertEqual(200, self.scrape(application))
        server.pause()
        self.addCleanup(server.resume)
        with futures.ThreadPoolExecutor(3) as pool:
            with mock.patch.object(engine, "ping", lambda: True):  # it was suspended after its ping
                stuck = pool.submit(self.scrape, application)
                time.sleep(0.5)
            self.assertEqual([503, 503], list(pool.map(self.scrape, [application] * 2, [2.0] * 2)))
            server.resume()
            self.assertEqual(200, stuck.result(60.0))
        self.assertEqual(200, self.scrape(application, 2.0))
        server.stop()
        for _ in range(2):
            self.assertEqual(503, self.scrape(application, 2.0))
        server.start()
        self.assertEqual(200, self.scrape(application))

    def scrape(self, application: LedgerApplication, seconds: float = 60.0) -> int:
        began = time.monotonic()
        response = webob.Request.blank("/metrics").get_response(application)
        self.assertLess(time.monotonic() - began, seconds)
        return int(response.status_int)

    def test_silent_from_an_early_statement(self) -> None:
        """The server is silent from the n-th statement of a process on: SQLAlchemy's queries, our settings, our schema
        check.
        """
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "words")))
        wires = [self.useFixture(Proxy(ledger.url)) for _ in range(4)]

        def call(number: int, wire: Proxy) -> None:
            def freeze(count: int) -> bool:
                wire.is_dead = wire.is_dead or count == number
                return False

            wire.is_cut = freeze
            engine = ledger.make_engine(wire.url, **SHORT_TIMEOUTS)
            with contextlib.suppress(exceptions.DatabaseUnavailable):
                engine.reserve(base.Context("p"), {"gpu": 1})
            engine.close()

        with futures.ThreadPoolExecutor(len(wires)) as pool:
            list(pool.map(call, range(1, len(wires) + 1), wires))
        self.assertEqual([True] * len(wires), [wire.is_dead for wire in wires])


class TestSlow(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def test_a_slow_transaction_is_not_interrupted(self) -> None:
        """A connection is not closed while the server answers, however long the whole transaction takes."""
        engine = self.make_engine(statement_timeout_seconds=2)
        sleep = "SELECT SLEEP(0.6)" if self.backend == "mariadb" else "SELECT pg_sleep(0.6)"
        work = mock.Mock(side_effect=lambda connection: [connection.exec_driver_sql(sleep) for _ in range(4)])
        hooks.database_of(engine).write(work)
        work.assert_called_once()

    def test_a_row_lock_that_is_not_released(self) -> None:
        """A caller waits for a locked row for one statement timeout; it tries no other variant, and does not retry."""
        engine = self.make_engine(statement_timeout_seconds=4, retry_seconds=1.0)
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))
        with self.sql.begin() as other:
            other.exec_driver_sql("UPDATE quota_usages SET used = used")
            with hooks.recorded_statements(engine) as sent:
                self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
            self.assertEqual(1, len(sent), sent)
        # (MariaDB does not notice that a client has gone: a statement that waits there longer would still be executed.)
        engine.reserve(self.context, {"gpu": 1})
        self.assertEqual((0, 1), self.figures())

    def test_two_row_locks_that_are_released_late(self) -> None:
        """Each lock is released in time, but both together take too long: the caller's result is what was done."""
        engine = self.make_engine(statement_timeout_seconds=3, retry_seconds=1.0)
        trees.plant(hooks.database_of(engine), {"top": None, "p1": "top"})
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))

        def hold(project_id: str, seconds: float) -> None:
            with hooks.row_locks(self.sql).begin() as other:
                other.exec_driver_sql(f"UPDATE quota_usages SET used = used WHERE project_id = '{project_id}'")
                held.wait()
                time.sleep(seconds)

        held = threading.Barrier(3)
        # (MariaDB locks rows in the order of their IDs, so the row of "top", made second, is locked last.)
        with futures.ThreadPoolExecutor() as pool:
            pool.submit(hold, "p1", 1.5)
            pool.submit(hold, "top", 3.3)
            held.wait()
            charged = 0
            with contextlib.suppress(exceptions.DatabaseUnavailable):
                charged = len(engine.reserve(self.context, {"gpu": 1}))
        time.sleep(0.5)
        self.assertEqual((0, charged), self.figures())


class TestCallerPaused(base.BackendTestCase):
    """A client is suspended inside a transaction, as after a crash of its machine: the server is not notified."""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "paused")))
        self.hot = base.Context("p")
        self.ledger.engine.rollback(self.hot, self.ledger.engine.reserve(self.hot, {"gpu": 1}))

    @contextlib.contextmanager
    def paused(self, call: Callable[[QuotaEngine], object]) -> Iterator[None]:
        """Another client has changed a usage row in this call, and is suspended there; it is resumed at the end."""

        def call_and_stop(_number: int, _is_over: Callable[[], bool]) -> None:
            # The server's timeout is then one or two seconds. A caller cannot be suspended inside a single statement.
            engine = self.ledger.make_engine(statement_timeout_seconds=3)
            hooks.database_of(engine)._pool.runs_single_statements = False
            engine.get_usages(self.hot)
            with hooks.Interleaved(
                engine, "UPDATE quota_usages", lambda: os.kill(os.getpid(), signal.SIGSTOP), after=True
            ):
                call(engine)

        self.ledger.engine.close()
        with Crew(call_and_stop, 1) as crew:
            os.waitid(os.P_PID, crew.pids[0], os.WSTOPPED | os.WNOWAIT)
            yield
            os.kill(crew.pids[0], signal.SIGCONT)

    def test_others_get_its_rows(self) -> None:
        with self.paused(lambda engine: engine.reserve(self.hot, {"gpu": 2}, consumer="c")):
            self.ledger.engine.reserve(self.hot, {"gpu": 4})
            self.assertEqual(4, self.ledger.engine.get_usages(self.hot)["gpu"].reserved)
        # It was only slow: it repeats the whole call, and is not charged twice.
        self.assertEqual(6, self.ledger.engine.get_usages(self.hot)["gpu"].reserved)
        self.assertEqual([], self.ledger.engine.audit(base.ADMIN))

    def test_notices_between_two_statements(self) -> None:
        self.ledger.engine.reserve(self.hot, {"gpu": self.ledger.limits["gpu"] - 1})
        with self.paused(lambda engine: engine.notices(base.ADMIN)):
            self.ledger.engine.reserve(self.hot, {"gpu": 1})


class TestCallerIdle(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def test_between_two_calls(self) -> None:
        """No call leaves a transaction open, and the connection serves the next call."""
        self.limits.own[None, "gpu"] = 2
        calls: dict[str, Callable[[QuotaEngine], object]] = {
            "reserve": lambda engine: engine.reserve(self.context, {"gpu": 1}, consumer="c"),
            "again": lambda engine: engine.reserve(self.context, {"gpu": 1}, consumer="c"),
            "commit": lambda engine: engine.commit(self.context, consumer="c"),
            "refused": lambda engine: self.assertRaises(
                exceptions.OverQuota, engine.reserve, self.context, {"gpu": 2}, consumer="d"
            ),
            "of an unknown consumer": lambda engine: self.assertRaises(
                exceptions.ReservationNotFound, engine.commit, self.context, consumer="x"
            ),
            "usages": lambda engine: engine.get_usages(self.context),
            "release": lambda engine: engine.release(self.context, consumer="c"),
            "expire": lambda engine: engine.expire(base.ADMIN),
        }
        opened: list[int] = []
        engines = {}
        for name, call in calls.items():
            # (The server waits for one second, or two.)
            engine = engines[name] = self.make_engine(statement_timeout_seconds=3)
            call(engine)
            sa.event.listen(hooks.database_of(engine).engine, "connect", lambda *_: opened.append(1))
        time.sleep(2.5)
        for name, engine in engines.items():
            engine.get_usages(self.context)
            engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))
            self.assertEqual([], opened, name)
