# SPDX-License-Identifier: Apache-2.0
"""A database that cannot be reached; connections that are shared by threads, or inherited by a forked process."""

from __future__ import annotations

import functools
import pathlib
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import fixtures as pyfixtures
import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from oslotest import base as oslo_base
from sqlalchemy.util import queue

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import connect, database, schema
from cyborg_quota.db.dialects.mariadb import MariaDB
from cyborg_quota.ledger import reserve
from tests import base, fixtures, forked, hooks

SECRET = "correct-horse-battery"
RETRY_SECONDS = 0.3
CONNECT_SECONDS = 1


class TestRetryIntervals(oslo_base.BaseTestCase):
    def test_after_a_conflict(self) -> None:
        """The waits become shorter, relative to the time that is left. An unavailable database is not tried more often.

        Each attempt takes a millisecond.
        """
        settings = fixtures.settings("sqlite://", retry_seconds=1.0)

        def waits(error: Exception) -> list[tuple[float, float]]:
            """The remaining seconds before each retry of a call that always fails, and its waits."""
            left, found = 1.0, []
            while left > 0:
                found.append((left, database.backoff(len(found), error, settings, left)))
                left -= found[-1][1] + 0.001
            return found

        with mock.patch("random.uniform", lambda _low, high: high):
            conflicts, outages = waits(oslo_exc.DBDeadlock()), waits(oslo_exc.DBConnectionError())
        self.assertEqual([], [(left, seconds) for left, seconds in conflicts if seconds > left / 48])
        self.assertGreater(len(conflicts), 15)
        self.assertGreater(max(seconds for _, seconds in outages), 0.1)

    def test_a_call_within_a_call(self) -> None:
        """The deadline of the outer one holds, also after the inner one has ended (adopt reserves, and commits)."""
        deadline = database.Deadline()
        with deadline:
            began = deadline.began
            with deadline:
                pass
            self.assertEqual(began, deadline.began)
        self.assertIsNone(deadline.began)


class OutageTestCase(base.BackendTestCase):
    """What callers and log readers see of a database that cannot be used."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(pyfixtures.FakeLogger(level=0))

    def assert_unavailable(self, url: sa.URL | str) -> exceptions.DatabaseUnavailable:
        if isinstance(url, sa.URL):
            url = url.render_as_string(hide_password=False)
        limits = {"connect_timeout_seconds": CONNECT_SECONDS, "statement_timeout_seconds": CONNECT_SECONDS}
        engine = fixtures.open_engine(self, url, retry_seconds=RETRY_SECONDS, **limits)
        error: exceptions.DatabaseUnavailable = self.assertRaises(
            exceptions.DatabaseUnavailable, engine.reserve, base.ADMIN, {"gpu": 1}
        )
        # Without a bound of its own, an attempt would last until the server answers. (On a busy machine, also a
        # bounded one takes long.)
        self.assertLess(error.seconds, 60)
        shown = [str(error), repr(error), *traceback.format_exception(error), self.log.output]
        for text in (*shown, repr(hooks.database_of(engine)._settings)):
            self.assertNotIn(SECRET, text)
        return error

    def new_engine(self, name: str, **changes: object) -> QuotaEngine:
        """An engine on a new database of its own."""
        self.url = fixtures.fresh_url(self.backend, name)
        fixtures.create_schema(self.url)
        return fixtures.open_engine(self, self.url, **changes)


KILL = {
    "mysql": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id != CONNECTION_ID()",
        "KILL {}",
    ),
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
}


def kill_all(url: str) -> None:
    """Let the server end all other connections to this database."""
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as killer:
        others, kill = KILL[killer.dialect.name]
        for number in killer.exec_driver_sql(others).scalars().all():
            killer.exec_driver_sql(kill.format(number))


class TestServer(OutageTestCase):
    """MariaDB and PostgreSQL."""

    scenarios = fixtures.SCENARIOS[1:]

    def url(self, **changes: object) -> sa.URL:
        return sa.make_url(str(fixtures.admin_url(self.backend))).set(**{"password": SECRET, **changes})

    def test_it_cannot_be_used(self) -> None:
        """It is down; accepts and never answers; has another address, database or password: a retry would not help.

        PyMySQL's connect timeout does not cover the handshake, which is an ordinary read.
        """
        with socket.socket() as closed, socket.socket() as mute:
            closed.bind(("127.0.0.1", 0))
            mute.bind(("127.0.0.1", 0))
            self.assert_unavailable(self.url())
            self.assertNotIn("Retrying a transaction", self.log.output)
            error = self.assert_unavailable(self.url(port=closed.getsockname()[1]))
            self.assertGreaterEqual(error.seconds, RETRY_SECONDS / 2)
            self.assertIn("Retrying a transaction", self.log.output)
            mute.listen()
            self.assert_unavailable(self.url(port=mute.getsockname()[1]))
        self.assert_unavailable(self.url(host="nowhere.invalid"))
        self.assert_unavailable(sa.make_url(str(fixtures.admin_url(self.backend))).set(database="no_such_database"))

    def test_a_parameter_that_no_driver_takes(self) -> None:
        """PyMySQL raises a bare TypeError."""
        url = sa.make_url(str(fixtures.admin_url(self.backend))).update_query_dict({"nonsense": "1"})
        engine = fixtures.open_engine(self, url.render_as_string(hide_password=False), retry_seconds=RETRY_SECONDS)
        self.assertRaisesRegex(exceptions.QuotaError, "nonsense", engine.reserve, base.ADMIN, {"gpu": 1})

    def test_after_a_lost_connection_no_other_is_tried_or_made_before_a_retry(self) -> None:
        """To connect to a suspended server takes seconds; and the others, if a firewall has dropped them, fail too."""
        engine = self.new_engine("lost", retry_seconds=0.0)
        ledger, all_are_open, attempts = hooks.database_of(engine), threading.Barrier(4), list[int]()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ledger.read(lambda _connection: all_are_open.wait(60)), range(4)))
        sa.event.listen(ledger.engine, "do_connect", lambda *_: attempts.append(1))
        kill_all(self.url)
        self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, base.ADMIN, {"gpu": 1})
        self.assertEqual([], attempts)
        engine.reserve(base.ADMIN, {"gpu": 1})
        self.assertEqual([1], attempts)


class TestMariaDB(OutageTestCase):
    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "mariadb"]

    def test_other_driver_prefix(self) -> None:
        """With mariadb+pymysql://, existing and missing databases are detected as with mysql+pymysql://."""
        url = fixtures.fresh_url(self.backend, "named").replace("mysql", "mariadb", 1)
        database = fixtures.open_database(self, url)
        self.assertRaises(exceptions.DatabaseNotInitialized, fixtures.make_engine(url).check, base.ADMIN, {"gpu": 1})
        self.assertEqual((None, schema.HEAD), schema.sync(database))
        engine = fixtures.open_engine(self, url)
        uuids = engine.reserve(base.ADMIN, {"gpu": 1}, consumer="arq")
        # As two concurrent deliveries of one call do that have both found nothing.
        with (
            mock.patch.object(MariaDB, "reserve_in_single_statement", return_value=False),
            mock.patch.object(reserve.reservations, "any_live", return_value=False),
        ):
            self.assertEqual(uuids, engine.reserve(base.ADMIN, {"gpu": 1}, consumer="arq"))

    def test_killed_while_it_waits_for_the_cluster(self) -> None:
        """The server reports that it is a node of a Galera cluster."""
        engine = self.new_engine("waiting")
        hooks.database_of(engine)._pool.is_galera = True
        waiting = "SELECT 1 FROM reservations LIMIT 1"
        with hooks.Interleaved(engine, waiting, lambda: kill_all(self.url)):
            self.assertRaises(exceptions.ReservationNotFound, engine.commit, base.ADMIN, consumer="nobody")


class TestFile(OutageTestCase):
    """SQLite."""

    scenarios = fixtures.ON_SQLITE

    def test_interrupted_between_begin_and_work(self) -> None:
        """Ctrl-C arrives immediately after the write lock was taken: no lock may be left that no process holds."""
        engine = self.new_engine("interrupted")
        engine.reserve(base.ADMIN, {"gpu": 1})
        sql = hooks.database_of(engine).engine
        interrupt = mock.Mock(side_effect=KeyboardInterrupt)
        sa.event.listen(sql, "begin", interrupt)  # runs after our own listener, which has sent BEGIN IMMEDIATE
        self.assertRaises(KeyboardInterrupt, engine.reserve, base.ADMIN, {"gpu": 1})
        sa.event.remove(sql, "begin", interrupt)

        other = fixtures.open_engine(self, self.url, sqlite_busy_timeout_seconds=0.0, retry_seconds=0.0)
        other.reserve(base.ADMIN, {"gpu": 1})
        engine.reserve(base.ADMIN, {"gpu": 1})
        self.assertEqual(3, engine.get_usages(base.ADMIN)["gpu"].reserved)

    def test_no_database(self) -> None:
        """The content of the file stays. Nor is a directory one, or a file in one that does not exist."""
        directory = pathlib.Path(self.useFixture(pyfixtures.TempDir()).path)
        for name in (f"{directory}/missing/x.sqlite", directory):
            self.assert_unavailable(f"sqlite:///{name}")
        path = directory / "notes.txt"
        path.write_text("not a database, and longer than a header of a hundred bytes. " * 9)
        before = path.read_bytes()
        engine = fixtures.make_engine(f"sqlite:///{path}")
        self.assertRaises(exceptions.DatabaseError, engine.reserve, base.ADMIN, {"gpu": 1})
        self.assertEqual(before, path.read_bytes())

    def test_a_child_outlives_the_connections_of_its_parent(self) -> None:
        """Its changes are in the file, and not in a log that the parent has deleted. (No other process has it open.)"""
        hooks.database_of(self.new_engine("outlived")).close()
        subprocess.run([sys.executable, "-c", OUTLIVE, self.url], check=True)
        self.assertEqual(7, fixtures.open_engine(self, self.url).get_usages(base.ADMIN)["gpu"].reserved)


OUTLIVE = """
import os, sys
from tests import base, fixtures
engine = fixtures.make_engine(sys.argv[1])
engine.reserve(base.ADMIN, {"gpu": 1})
(has_used, tell_used), (has_closed, tell_closed) = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    engine.reserve(base.ADMIN, {"gpu": 1})
    os.write(tell_used, b".")
    os.read(has_closed, 1)
    for _ in range(5):
        engine.reserve(base.ADMIN, {"gpu": 1})
    os._exit(0)
os.read(has_used, 1)
engine.close()
os.write(tell_closed, b".")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""A program with the address of a database as its argument, which reserves 7 GPUs."""


class TestShared(base.LedgerTestCase):
    """One engine with many users."""

    def test_threads(self) -> None:
        """8 threads, 10 cycles each: no charge is lost, and nothing is left in flight."""
        self.limits.own[None, "gpu"] = 8
        start = threading.Barrier(8)

        def work(name: int) -> None:
            start.wait()
            for number in range(10):
                uuids = self.engine.reserve(self.context, {"gpu": 1}, consumer=f"{name} {number}")
                call = (self.engine.commit, self.engine.rollback)[number % 2]
                call(self.context, uuids)
                self.engine.release(self.context, uuids)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        self.assert_invariants()
        self.assertEqual((0, 0), self.figures())

    def test_fork(self) -> None:
        """The child inherits the engine, but not its connections: both continue. Also before its first use."""
        self.engine.reserve(self.context, {"gpu": 1}, consumer="before")
        fresh, children = self.make_engine(), []
        for number in range(3):
            children.append(forked.start(functools.partial(self.reserve_five, number)))
            self.engine.reserve(self.context, {"gpu": 1}, consumer=f"parent {number}")
        children.append(forked.start(lambda: fresh.reserve(self.context, {"gpu": 1})))
        fresh.reserve(self.context, {"gpu": 1})
        self.assertEqual([0] * 4, [forked.wait(pid) for pid in children])
        self.engine.close()  # (it can be used again)
        self.engine.commit(self.context, consumer="before")
        self.assertEqual((1, 20), self.figures())
        self.assert_invariants()

    def reserve_five(self, number: int) -> None:
        for turn in range(5):
            self.engine.reserve(self.context, {"gpu": 1}, consumer=f"child {number} {turn}")
        self.engine.close()

    def assert_free_in_a_child(self, target: Any, name: str) -> None:
        """The child reserves while another thread of the parent is inside ``target.name``, with a lock."""
        is_inside, may_go_on = threading.Event(), threading.Event()
        thread = threading.Thread(target=self.engine.check, args=(self.context, {"gpu": 1}), daemon=True)
        with hooks.Meanwhile(target, name, lambda: (is_inside.set(), may_go_on.wait(60))):
            thread.start()
            self.assertTrue(is_inside.wait(60), f"{name} was not called")
            child = forked.start(lambda: self.engine.reserve(self.context, {"gpu": 1}))
            self.assertEqual(0, forked.wait(child))
            may_go_on.set()
            thread.join(60)
        self.assertFalse(thread.is_alive(), "it hangs")

    def test_of_the_database_and_of_the_pool(self) -> None:
        """The other thread creates the engine; or opens the first connection, for which SQLAlchemy locks the engine."""
        self.assert_free_in_a_child(connect, "make_engine")
        self.engine = self.make_engine()
        self.assert_free_in_a_child(hooks.database_of(self.engine).engine.dialect, "initialize")
        self.assertEqual((0, 2), self.figures())


class TestPool(base.LedgerTestCase):
    """A pool with few connections."""

    scenarios = fixtures.SCENARIOS[1:]

    def test_a_returned_connection_goes_to_a_call_that_waits_for_the_pool(self) -> None:
        """And not past it to the cache. (Two are open, one more than the size of the pool: the other is closed.)"""
        database = hooks.database_of(self.make_engine(max_pool_size=1, max_overflow=1, pool_timeout_seconds=1.0))
        held, connect = [database._acquire(), database._acquire()], mock.Mock()
        sa.event.listen(database.engine, "connect", connect)

        def return_them() -> None:
            for idle, kept in held:
                idle.put(kept)
            idle, kept = database._acquire()
            idle.put(kept)

        with hooks.Meanwhile(queue.Queue, "get", return_them):
            idle, kept = database._acquire()
        idle.put(kept)
        connect.assert_not_called()

    def test_a_call_waits_for_the_pool_until_its_deadline(self) -> None:
        engine = self.make_engine(max_pool_size=1, max_overflow=0, retry_seconds=0.2, connect_timeout_seconds=1)
        idle, kept = hooks.database_of(engine)._acquire()
        with mock.patch.object(queue.Queue, "get", side_effect=queue.Empty) as get:
            error = self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
        idle.put(kept)
        self.assertIn("no connection of the pool", str(error))
        get.assert_called_once_with(True, 1)  # it waits no longer than a connect may take

    def test_sync_with_one_connection(self) -> None:
        """One connection holds the lock of db sync, and the upgrade needs another one."""
        url = fixtures.fresh_url(self.backend, "alone")
        few = {"max_pool_size": 1, "max_overflow": 0, "pool_timeout_seconds": 1.0}
        self.assertEqual((None, schema.HEAD), schema.sync(fixtures.open_database(self, url, **few)))

    def sleep(self, seconds: float) -> Callable[[sa.Connection], object]:
        name = "SLEEP" if self.backend == "mariadb" else "pg_sleep"
        return lambda connection: connection.exec_driver_sql(f"SELECT {name}({seconds})").all()

    def test_transactions_with_other_time_limits_use_it_too(self) -> None:
        """Longer than the client, the server and the watchdog wait; a pause longer than a transaction may be idle."""
        usual = hooks.database_of(self.make_engine(statement_timeout_seconds=1, retry_seconds=0.1))

        def pause(connection: sa.Connection) -> None:
            for seconds in (2.2, 0):
                connection.exec_driver_sql("SELECT id FROM quota_usages").all()  # (MariaDB: this begins a transaction)
                time.sleep(seconds)

        long_transactions = usual.with_limits(allow_idle_in_transaction=True)
        usual.untimed.read(self.sleep(2.2))
        long_transactions.read(pause)
        self.assertRaises(exceptions.DatabaseUnavailable, long_transactions.read, self.sleep(2.2))
        self.assertRaises(exceptions.DatabaseUnavailable, usual.read, self.sleep(2.2))
        self.assertRaises(exceptions.DatabaseUnavailable, usual.read, pause)
        usual.untimed.read(self.sleep(2.2))
        self.assertEqual(1, usual.engine.pool.checkedout())  # type: ignore[attr-defined]
