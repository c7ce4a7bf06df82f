# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL dies right after an answer; the row had been let go before the log was on disk. The answer holds.

The server writes its log by itself every ten seconds only: what nobody asked it to write is lost with it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import fixtures
import sqlalchemy as sa
import testscenarios
from testtools import matchers

from cyborg_quota import QuotaEngine
from cyborg_quota.db.dialects import postgresql
from tests import base, hooks
from tests.faults.test_outages import OwnServerTestCase

load_tests = testscenarios.load_tests_apply_scenarios

WRITES_LOG = "SELECT FROM pg_logical_emit_message"


class TestLetGo(OwnServerTestCase):
    scenarios = [one for one in OwnServerTestCase.scenarios if one[0] == "postgresql"]

    looks_one_in = postgresql._CONTENTION_CHECK_INTERVAL

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", 1))
        self.server = self.start(wal_writer_delay="10s", autovacuum="off", checkpoint_timeout="1h")
        self.ledger = self.ledger_on(self.server)
        self.engine = self.new_engine()
        self.context = base.Context("p")
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))  # the rows are made

    def new_engine(self) -> QuotaEngine:
        engine = self.ledger.make_engine()
        self.addCleanup(engine.close)
        return engine

    @contextlib.contextmanager
    def statements(self, engine: QuotaEngine) -> Iterator[list[str]]:
        sent: list[str] = []

        def note(_connection: sa.Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
            if not statement.startswith("PREPARE"):
                sent.append(statement)

        sql = hooks.database_of(engine).engine
        sa.event.listen(sql, "before_cursor_execute", note)
        yield sent
        sa.event.remove(sql, "before_cursor_execute", note)

    def waiting(self, call: Callable[[], object]) -> None:
        """Make a call wait for its usage row, which somebody changes meanwhile; until it answers."""
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
            self.wait_for_waiter(sql)
            connection.commit()
        thread.join(20)
        self.assertEqual((False, []), (thread.is_alive(), errors))

    def wait_for_waiter(self, sql: sa.Engine) -> None:
        with sql.connect() as connection:
            for _ in range(500):
                if connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
                    return
                time.sleep(0.01)
        self.fail("nobody waits for the row")

    def die(self) -> None:
        self.server.kill()
        self.server.start()

    def states(self, consumer: str) -> list[str]:
        return [one.state for one in self.ledger.engine.list_reservations(base.ADMIN, consumer=consumer)]

    def test_an_answer_lasts(self) -> None:
        with self.statements(self.engine) as sent:
            self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.assertThat(sent[-1], matchers.StartsWith(WRITES_LOG))
        self.die()
        self.assertEqual(["reserved"], self.states("a"))
        self.engine.extend(self.context, expire=600, consumer="a")
        with self.statements(self.engine) as sent:
            self.waiting(lambda: self.engine.commit(self.context, consumer="a"))
        self.die()
        self.assertEqual(["committed"], self.states("a"))

    def test_who_need_not_wait_writes_the_log_itself(self) -> None:
        with self.statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.assertEqual([], [one for one in sent if one.startswith(WRITES_LOG)])
        self.die()
        self.assertEqual(["reserved"], self.states("a"))

    def test_a_row_stays_hot_for_a_moment(self) -> None:
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}))
        with self.statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.assertThat(sent[-1], matchers.StartsWith(WRITES_LOG))
        time.sleep(0.3)
        with self.statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.assertEqual(1, len(sent))

    def test_one_in_four_looks(self) -> None:
        """Chance says which: nobody's row is always passed by."""
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", self.looks_one_in)
        )
        for chance, writes_log in ((0.26, False), (0.24, True)):
            with self.statements(self.engine) as sent, mock.patch("random.random", return_value=chance):
                self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}))
            self.assertEqual(writes_log, sent[-1].startswith(WRITES_LOG))

    def test_a_cold_row_is_looked_at_once_more(self) -> None:
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}))
        self.useFixture(fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", 10**9))
        self.useFixture(fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENDED_SECONDS", 0))
        with self.statements(self.engine) as sent:
            for _ in range(3):
                self.engine.reserve(self.context, {"gpu": 1})
        looking, *told = [one.split("(")[0] for one in sent]
        self.assertEqual((1, 2), (len(set(told)), len(told)))
        self.assertNotEqual(told[0], looking)

    def make_hot(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENDED_SECONDS", 60))
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}))

    def test_whoever_knows_that_it_is_hot_lasts_too(self) -> None:
        self.make_hot()
        self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.engine.commit(self.context, consumer="b")
        self.die()
        self.assertEqual((["reserved"], ["committed"]), (self.states("a"), self.states("b")))

    def test_the_control_of_a_reserve_that_knows(self) -> None:
        self.make_hot()
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", lambda _connection: None)
        )
        self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.die()
        self.assertEqual([], self.states("a"))

    def test_the_control_of_a_commit_that_knows(self) -> None:
        self.make_hot()
        uuids = self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", lambda _connection: None)
        )
        self.engine.commit(self.context, uuids)
        self.die()
        self.assertEqual(["reserved"], self.states("b"))

    def test_the_control(self) -> None:
        """Without its last statement, the answer does not."""
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", lambda _connection: None)
        )
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.die()
        self.assertEqual([], self.states("a"))

    def test_who_finds_it_done_lasts_too(self) -> None:
        """The connection breaks before the log is written; the same call looks, finds it done, and says so."""
        lost = hooks.Interleaved(self.engine, WRITES_LOG, self.break_off)
        self.useFixture(lost)
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.assertTrue(lost.happened)
        self.die()
        self.assertEqual(["reserved"], self.states("a"))

    def test_another_delivery_lasts_too(self) -> None:
        """One process has charged, and dies before the log is written; another is asked the same."""
        other = self.new_engine()
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", lambda _connection: None)
        )
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="a"))
        self.waiting(lambda: self.engine.reserve(self.context, {"gpu": 1}, consumer="b"))
        self.waiting(lambda: self.engine.commit(self.context, consumer="b"))
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", self.ensure_durable)
        )
        other.reserve(self.context, {"gpu": 1}, consumer="a")
        self.die()
        self.assertEqual((["reserved"], ["committed"]), (self.states("a"), self.states("b")))

    def test_who_has_nothing_to_do_lasts_too(self) -> None:
        other = self.new_engine()
        other.get_usages(self.context)
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", lambda _connection: None)
        )
        self.engine.reserve(self.context, {"gpu": 1}, consumer="b")
        self.waiting(lambda: self.engine.commit(self.context, consumer="b"))
        self.useFixture(
            fixtures.MonkeyPatch("cyborg_quota.db.dialects.postgresql.ensure_durable", self.ensure_durable)
        )
        other.commit(self.context, consumer="b")
        self.die()
        self.assertEqual(["committed"], self.states("b"))

    ensure_durable = staticmethod(postgresql.ensure_durable)

    def break_off(self) -> None:
        raise hooks.disconnect("postgresql")
