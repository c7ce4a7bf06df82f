# SPDX-License-Identifier: Apache-2.0
"""Early lock release: PostgreSQL is killed immediately after an answer. An answered call is not lost.

A single-statement transaction releases its row locks before its log record is on disk, and waits for the disk before it
answers. Here the server flushes its log every ten seconds only, so an answer that did not wait for the flush is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar
from unittest import mock

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch
from testtools import matchers

from cyborg_quota import QuotaEngine
from cyborg_quota.db.dialects import postgresql_functions as functions
from tests import base, fixtures, hooks, servers
from tests.faults.test_outages import OwnServerTestCase

FUNCTIONS = "cyborg_quota.db.dialects.postgresql_functions"

load_tests = testscenarios.load_tests_apply_scenarios

FLUSHES_LOG = "SELECT FROM pg_logical_emit_message"


class TestEarlyLockRelease(OwnServerTestCase):
    scenarios = [scenario for scenario in OwnServerTestCase.scenarios if scenario[0] == "postgresql"]

    check_interval = functions._CONTENTION_CHECK_INTERVAL
    server: ClassVar[servers.Server]

    @classmethod
    def setUpClass(cls) -> None:
        """Start one server for all tests: each restarts it, and has a database of its own."""
        super().setUpClass()
        cls.server = servers.PostgreSQL(settings={"autovacuum": "off", "checkpoint_timeout": "1h"})
        cls.addClassCleanup(cls.server.close)
        if fixtures.missing_server("postgresql") is None:
            cls.server.start()

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(MonkeyPatch(f"{FUNCTIONS}._CONTENTION_CHECK_INTERVAL", 1))
        self.ledger = self.ledger_on(self.server)
        self.suspend_wal_writer(self.server)  # (DROP DATABASE would wait for it)
        self.engine = self.new_engine()
        self.context = base.Context("p")
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))  # the usage rows exist

    def new_engine(self) -> QuotaEngine:
        engine = self.ledger.make_engine()
        self.addCleanup(engine.close)
        return engine

    def run_contended(self, call: Callable[[], object]) -> None:
        """Make a call wait for its usage row, which another session changes; return when the call has answered."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        sql = sa.create_engine(self.ledger.url, poolclass=sa.NullPool)
        thread = threading.Thread(target=run)
        with sql.connect() as connection:
            connection.exec_driver_sql("UPDATE quota_usages SET reserved = reserved + 5 WHERE resource = 'gpu'")
            thread.start()
            self.wait_for_lock_wait(sql)
            connection.commit()
        thread.join(20)
        self.assertEqual((False, []), (thread.is_alive(), errors))

    def wait_for_lock_wait(self, sql: sa.Engine) -> None:
        with sql.connect() as connection:
            for _ in range(500):
                if connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
                    return
                time.sleep(0.01)
        self.fail("no session waits for the row")

    def crash_and_restart(self) -> None:
        self.server.kill()
        self.server.start()

    def states(self, consumer: str) -> list[str]:
        return [row.state for row in self.ledger.engine.list_reservations(base.ADMIN, consumer=consumer)]

    def test_answered_calls_are_durable(self) -> None:
        with hooks.recorded_statements(self.engine) as sent:
            self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.assertThat(sent[-1], matchers.StartsWith(FLUSHES_LOG))
        self.crash_and_restart()
        self.assertEqual(["reserved"], self.states("a"))
        self.engine.extend(self.context, expire=600, consumer="a")
        with hooks.recorded_statements(self.engine) as sent:
            self.run_contended(lambda: self.engine.commit(self.context, consumer="a"))
        self.crash_and_restart()
        self.assertEqual(["committed"], self.states("a"))

    def test_without_contention_the_commit_flushes_the_log(self) -> None:
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.assertEqual([], [statement for statement in sent if statement.startswith(FLUSHES_LOG)])
        self.crash_and_restart()
        self.assertEqual(["reserved"], self.states("a"))

    def test_a_row_stays_contended_for_a_short_time(self) -> None:
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}))
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.assertThat(sent[-1], matchers.StartsWith(FLUSHES_LOG))
        time.sleep(0.3)
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.assertEqual(1, len(sent))

    def test_one_call_in_four_checks_for_contention(self) -> None:
        """The check is random, so that each row is checked sometimes."""
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}._CONTENTION_CHECK_INTERVAL", self.check_interval)
        )
        for rng, writes_log in ((0.26, False), (0.24, True)):
            with hooks.recorded_statements(self.engine) as sent, mock.patch("random.random", return_value=rng):
                self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}))
            self.assertEqual(writes_log, sent[-1].startswith(FLUSHES_LOG))

    def test_a_row_is_checked_once_more_after_the_contention(self) -> None:
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}))
        self.useFixture(MonkeyPatch(f"{FUNCTIONS}._CONTENTION_CHECK_INTERVAL", 10**9))
        self.useFixture(MonkeyPatch(f"{FUNCTIONS}._CONTENDED_SECONDS", 0))
        with hooks.recorded_statements(self.engine) as sent:
            for _ in range(3):
                self.engine.reserve(self.context, {"gpu": 1})
        checking, *unchecked = [statement.split("(")[0] for statement in sent]
        self.assertEqual((1, 2), (len(set(unchecked)), len(unchecked)))
        self.assertNotEqual(unchecked[0], checking)

    def make_contended(self) -> None:
        self.useFixture(MonkeyPatch(f"{FUNCTIONS}._CONTENDED_SECONDS", 60))
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}))

    def test_calls_on_a_contended_row_are_durable(self) -> None:
        self.make_contended()
        self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.engine.commit(self.context, consumer="b")
        self.crash_and_restart()
        self.assertEqual((["reserved"], ["committed"]), (self.states("a"), self.states("b")))

    def test_control_of_a_reserve_on_a_contended_row(self) -> None:
        self.make_contended()
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", lambda _connection: None)
        )
        self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.crash_and_restart()
        self.assertEqual([], self.states("a"))

    def test_control_of_a_commit_on_a_contended_row(self) -> None:
        self.make_contended()
        uuids = self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", lambda _connection: None)
        )
        self.engine.commit(self.context, uuids)
        self.crash_and_restart()
        self.assertEqual(["reserved"], self.states("b"))

    def test_control(self) -> None:
        """Without its last statement, an answered call is lost."""
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", lambda _connection: None)
        )
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.crash_and_restart()
        self.assertEqual([], self.states("a"))

    def test_a_retry_that_finds_the_call_done_is_durable(self) -> None:
        """The connection breaks before the log is flushed; the retry finds the call done, and flushes the log."""
        lost = hooks.Interleaved(self.engine, FLUSHES_LOG, self.raise_disconnect)
        self.useFixture(lost)
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.assertTrue(lost.happened)
        self.crash_and_restart()
        self.assertEqual(["reserved"], self.states("a"))

    def test_a_second_delivery_is_durable(self) -> None:
        """One process has charged, and crashes before the log is flushed; another process gets the same call."""
        other = self.new_engine()
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", lambda _connection: None)
        )
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.run_contended(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="b"))
        self.run_contended(lambda: self.engine.commit(self.context, consumer="b"))
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", self.ensure_durable)
        )
        other.reserve(self.context, {"gpu": 1}, consumer="a")
        self.crash_and_restart()
        self.assertEqual((["reserved"], ["committed"]), (self.states("a"), self.states("b")))

    def test_a_call_that_changes_nothing_is_durable(self) -> None:
        other = self.new_engine()
        other.get_usages(self.context)
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", lambda _connection: None)
        )
        self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.run_contended(lambda: self.engine.commit(self.context, consumer="b"))
        self.useFixture(
            MonkeyPatch(f"{FUNCTIONS}.ensure_durable", self.ensure_durable)
        )
        other.commit(self.context, consumer="b")
        self.crash_and_restart()
        self.assertEqual(["committed"], self.states("b"))

    ensure_durable = staticmethod(functions.ensure_durable)

    def raise_disconnect(self) -> None:
        raise hooks.disconnect("postgresql")
