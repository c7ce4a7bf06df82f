# SPDX-License-Identifier: Apache-2.0
"""The database is killed, drops its connections, or has no connection left.

(Suspended: test_unresponsive_peers.py. With a full disk: test_full_disk.py.)
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa
import testscenarios

from cyborg_quota import exceptions
from tests import base, fixtures, servers
from tests.faults import outages
from tests.faults.load import Ledger
from tests.servers import machine
from tests.servers.base import session

load_tests = testscenarios.load_tests_apply_scenarios

KINDS = {kind.name: kind for kind in servers.KINDS}


class OwnServerTestCase(base.BackendTestCase):
    """Tests with a private server, which they may stop and change."""

    scenarios = fixtures.SCENARIOS[1:]

    def start(self, *, durable: bool = False, **settings: str) -> servers.Server:
        # A test's directory is accessible to one user only, and the server runs as another user if we are root.
        pathlib.Path(tempfile.gettempdir()).chmod(0o711)
        server = KINDS[self.backend](durable=durable, settings=settings)
        self.addCleanup(server.close)
        server.start()
        return server

    def ledger_on(self, server: servers.Server) -> Ledger:
        return self.useFixture(Ledger(server.create_database("ledger")))


class TestKilled(OwnServerTestCase):
    # On PostgreSQL, no other process flushes the log: its log writer is suspended too.
    QUIET = {"mariadb": {}, "postgresql": {"autovacuum": "off", "checkpoint_timeout": "1h"}}
    # Settings with which the server answers before the data is on disk. (The longest time until MariaDB flushes the log
    # by itself is 45 minutes.)
    FORGETFUL = {
        "mariadb": {"innodb_flush_log_at_trx_commit": "0", "innodb_flush_log_at_timeout": "2700"},
        "postgresql": {"synchronous_commit": "off"},
    }
    FLUSH = {"mariadb": "FLUSH ENGINE LOGS", "postgresql": "CHECKPOINT"}

    def test_under_load(self) -> None:
        server = self.start(durable=True)
        ledger = self.ledger_on(server)
        for _ in range(5):  # on a busy machine one second may be too short
            outages.kill_server(ledger, server, 1.0, random.randrange(2**32))
            if ledger.assert_right().calls > 20:
                return
        self.fail("the workers made no calls")

    def test_answered_calls_are_durable(self) -> None:
        """The control: a server that does not wait for the disk loses answered calls, and the check reports it."""
        for settings in ({}, self.FORGETFUL[self.backend]):
            # (On a disk: in memory, MariaDB writes its log immediately, whatever its settings.)
            server = self.start(durable=True, **self.QUIET[self.backend], **settings)
            ledger = self.ledger_on(server)
            with session(server.url) as connection:
                connection.exec_driver_sql(self.FLUSH[self.backend])
            if self.backend == "postgresql":
                self.suspend_wal_writer(server)
            # (One worker: calls that wait for each other are made durable by another statement, see record 0022.)
            with ledger.crew(1, 0):
                machine.wait_until(lambda: ledger.journal.size > 2000, 30.0)  # noqa: B023
                server.kill()
                server.start()
            problems = ledger.check().problems
            self.assertEqual(bool(settings), "answered call is lost" in " ".join(problems), problems)

    def suspend_wal_writer(self, server: servers.Server) -> None:
        """Suspend the process of PostgreSQL that flushes the log of asynchronous commits, until the server ends."""
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        with session(server.url) as connection:
            # (It is started after the server accepts connections.)
            machine.wait_until(lambda: connection.exec_driver_sql(query).first() is not None, 30.0)
            os.kill(connection.exec_driver_sql(query).scalar_one(), signal.SIGSTOP)
        self.addCleanup(server.resume)  # a suspended process does not stop


class TestDropped(base.BackendTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def test_under_load(self) -> None:
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "dropped")))
        self.assertGreater(outages.drop_connections(ledger, 1.0, random.randrange(2**32)), 0)
        self.assertEqual([], [kind for kind in ledger.assert_right().errors if kind != "OverQuota"])


class TestNoConnectionLeft(base.LedgerTestCase):
    def test_threads_share_one_connection(self) -> None:
        """(If none becomes free in time: functional.test_connections.)"""
        engine = self.make_engine(max_pool_size=1, max_overflow=0)

        def work(_number: int) -> None:
            for _ in range(10):
                engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        self.assertEqual((0, 0), self.figures())
        self.assert_invariants()


class TestServerIsFull(OwnServerTestCase):
    def test_too_many_clients(self) -> None:
        """The server accepts no more connections: the caller gets an error in time, and is served after a connection is
        freed.
        """
        server = self.start(max_connections="10")
        ledger = self.ledger_on(server)
        ledger.engine.close()
        engine = ledger.make_engine(retry_seconds=0.5)
        with contextlib.ExitStack() as stack:
            others = sa.create_engine(server.url, poolclass=sa.NullPool)
            with contextlib.suppress(sa.exc.DBAPIError):
                for _ in range(20):
                    stack.enter_context(others.connect())
            self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, base.ADMIN, {"gpu": 1})
        engine.reserve(base.ADMIN, {"gpu": 1})
