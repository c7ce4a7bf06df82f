# SPDX-License-Identifier: Apache-2.0
"""The disk of a database becomes full during reserves, and while the expirer works.

On PostgreSQL, also the disk of the write-ahead log.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator

import fixtures as fixtures_
import sqlalchemy as sa
import testscenarios

from cyborg_quota import Claim, exceptions
from tests import base, fixtures, invariants, needs
from tests.cli.base import installed
from tests.faults import outages
from tests.faults.load import Ledger
from tests.servers import MariaDB, PostgreSQL, Server, machine
from tests.servers.base import session

load_tests = testscenarios.load_tests_apply_scenarios

CLAIMS = 500
CONF = """
[database]
connection = {url}
[quota]
resources = gpu
expire_interval = 1
purge_age = 0
retry_seconds = 1
statement_timeout = 2
connect_timeout = 2
"""


class SmallPostgreSQL(PostgreSQL):
    def __init__(self) -> None:
        super().__init__(settings={"min_wal_size": "32MB", "max_wal_size": "32MB", "autovacuum": "off"})

    def _initialization(self, data: pathlib.Path) -> list[str]:
        mount(data, 110)
        return super()._initialization(data)

    def _remove_traces(self, data: pathlib.Path) -> None:
        super()._remove_traces(data)
        unmount(data)


def mount(directory: pathlib.Path, megabytes: int) -> None:
    """Mount a file system of that size in memory, for the owner of the directory. Raises CalledProcessError."""
    owner = directory.stat()
    options = f"size={megabytes}m,uid={owner.st_uid},gid={owner.st_gid},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)


def unmount(directory: pathlib.Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], check=False, stderr=subprocess.DEVNULL)


class DiskTestCase(base.BackendTestCase):
    """``ledger`` is in a file system of limited size, ``disk``."""

    disk: pathlib.Path

    def setUp(self) -> None:
        super().setUp()
        if os.geteuid() != 0:
            needs.missing(self, "only root can mount a small disk")
        self.directory = pathlib.Path(self.useFixture(fixtures_.TempDir()).path)
        try:
            url = self.place()
        except subprocess.CalledProcessError:
            needs.missing(self, "no file system can be mounted here")
        self.ledger = self.useFixture(Ledger(url, {"gpu": 10**6, "fpga": 10**6}))
        self.filler = self.disk / "filler"

    def place(self) -> str:
        """Make ``disk``; returns the URL of a database on it. Raises CalledProcessError."""
        raise NotImplementedError

    def fill(self) -> None:
        """Use up all the space that is left."""
        with contextlib.suppress(OSError), self.filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)


class TestSQLite(DiskTestCase):
    """No answered call is lost, none is half done, and everything works again when there is space."""

    scenarios = fixtures.ON_SQLITE

    def place(self) -> str:
        self.disk = self.directory
        mount(self.disk, 8)
        self.addCleanup(unmount, self.disk)
        return f"sqlite:///{self.disk}/ledger.sqlite"

    def test_full_and_freed(self) -> None:
        ledger, context = self.ledger, base.Context("p")
        ledger.engine.release(context, ledger.engine.reserve(context, {"gpu": 1}))
        self.fill()
        answers = outages.reserve_until_refused(ledger, most=5000)
        self.assertIsInstance(answers, exceptions.DatabaseUnavailable, answers)
        self.filler.unlink()
        with ledger.crew(2, 0):
            time.sleep(0.3)
        report = ledger.assert_right()
        self.assertGreater(report.errors["DatabaseUnavailable"], 0)


class TestServers(DiskTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.sql = sa.create_engine(self.ledger.url, poolclass=sa.NullPool)
        self.log = self.directory / "log"

    def place(self) -> str:
        """Limit the disk: on PostgreSQL for everything, including the log; on MariaDB for the database only.

        On MariaDB, only the tables of the database grow by what the ledger writes, and report that there is no space:

        * The redo log has a fixed size, and is allocated when the data directory is made.
        * The undo log is in the system tablespace. MariaDB ends itself when that cannot grow: see the tests that kill
          the server.
        * The binary log is a file of its own, if it is switched on. MariaDB 10.11 does not report that it cannot be
          written to: COMMIT gets no answer until there is space, and the server looks once a minute ("Waiting for
          someone to free space"). That is a server that does not answer: see test_unresponsive_peers.py.
        * MariaDB 10.11 ends itself when its purge of deleted index entries has got no space in the tablespace for about
          five seconds ("Assertion failure in file row0purge.cc", after a hundred attempts). Whether and when it does,
          depends on the pages that the purge reaches.
        * Temporary files are needed only where a query groups more rows than fit into tmp_memory_table_size.
        """
        small_database = MariaDB(settings={"innodb_autoextend_increment": "1"})
        self.server: Server = {"mariadb": small_database, "postgresql": SmallPostgreSQL()}[self.backend]
        self.addCleanup(self.server.close)
        self.server.start()
        assert self.server.directory is not None
        self.disk = self.server.directory / "data"
        url = self.server.create_database("ledger")
        if self.backend == "mariadb":
            self.disk /= "ledger"
            mount(self.disk, 4)
            self.addCleanup(unmount, self.disk)
            self.addCleanup(self.server.stop)  # first
        return url

    def test_the_expirer(self) -> None:
        """The expirer, which also purges, logs one line, leaves no batch half done, and continues when there is space.

        The refused reserves use up the space of the server's files; those that are granted expire soon.
        """
        engine, context = self.ledger.engine, base.Context("p")
        claims = [Claim(None, {"gpu": 1})] * CLAIMS
        engine.reserve_many(context, claims)
        engine.rollback(context, engine.reserve_many(context, claims))
        self.ledger.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
        self.fill()
        impatient = self.ledger.make_engine(retry_seconds=0.5, statement_timeout_seconds=2)

        def reserve_many_times() -> None:
            for _ in range(200):
                impatient.reserve_many(context, claims, 1)

        self.assertRaises(exceptions.DatabaseUnavailable, reserve_many_times)
        with self.expirer():
            self.wait_until("an error", lambda: " ERROR " in self.log.read_text())
            errors = self.log.read_text().count(" ERROR ")
            self.fill_log()
            self.wait_until("another error", lambda: self.log.read_text().count(" ERROR ") >= errors + 2)
            self.filler.unlink()
            self.wait_until("the end of the backlog", lambda: self.count() == 0)
        text = self.log.read_text()
        self.assertNotIn("Traceback", text)
        errors = [line for line in text.splitlines() if " ERROR " in line]
        self.assertEqual([], [line for line in errors if not re.search(r"The database (did not|refused)", line)])
        with self.sql.connect() as connection:
            invariants.assert_hold(connection)
        self.assertEqual([], engine.audit(base.ADMIN))
        self.assertEqual(0, engine.get_usages(context)["gpu"].reserved)

    def fill_log(self) -> None:
        """On PostgreSQL: use up the log files that were preallocated."""
        if self.backend != "postgresql":
            return
        with contextlib.suppress(sa.exc.DBAPIError), session(self.server.url) as connection:
            for _ in range(20):
                connection.exec_driver_sql("SELECT pg_switch_wal()")
                connection.exec_driver_sql("SELECT pg_logical_emit_message(true, '', '')")
                self.fill()

    def count(self) -> int:
        """Return the number of rows left for the expirer; -1 if the server does not answer.

        The server is started if it has ended, as its service manager does: see ``place``. PostgreSQL ends when it
        cannot write its log.
        """
        if not self.server.running:
            self.server.start()
        query = "SELECT COUNT(*) FROM reservations WHERE consumer_id IS NULL"
        with contextlib.suppress(sa.exc.DBAPIError), self.sql.connect() as connection:
            return int(connection.exec_driver_sql(query).scalar_one())
        return -1

    @contextlib.contextmanager
    def expirer(self) -> Iterator[None]:
        """Start the installed service."""
        conf = self.directory / "conf"
        conf.write_text(CONF.format(url=self.ledger.url.replace("$", "$$")))
        command = [installed("cyborg-quota-expirer"), "--config-file", str(conf)]
        with (
            self.log.open("wb") as log,
            subprocess.Popen(command, stderr=log, start_new_session=True) as process,
        ):
            try:
                yield
            finally:
                process.terminate()

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        machine.wait_until(is_so, 40.0)
        self.assertTrue(is_so(), f"{what} did not come: {self.log.read_text()[-2000:]}")
