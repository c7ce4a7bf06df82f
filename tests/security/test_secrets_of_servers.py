# SPDX-License-Identifier: Apache-2.0
"""With a database that answers, no password is shown: in a table, a chart, a log at DEBUG, a process's arguments."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import zlib

import sqlalchemy as sa
import testscenarios

from tests import fixtures, hooks
from tests.security.secrets import BARE, PASSWORD, QUICK, WORDS, SecretsTestCase, pieces_in
from tests.servers import machine

load_tests = testscenarios.load_tests_apply_scenarios


class TestServers(SecretsTestCase):
    """A right password and a wrong one, on each server. ``good`` is a URL of its database, with the password."""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        url, user = sa.make_url(self.url), f"u{os.getpid()}"
        if self.backend == "mariadb":
            name = f"'{user}'@'127.0.0.1'"
            self.sql(f"GRANT ALL ON {url.database}.* TO {name} IDENTIFIED BY '{PASSWORD}'")
        else:
            name = user
            self.sql(f"CREATE USER {name} SUPERUSER PASSWORD '{PASSWORD}'")
        self.addCleanup(self.sql, f"DROP USER {name}")
        self.good = url.set(username=user, password=PASSWORD)

    def sql(self, statement: str) -> None:
        """Run SQL as the database's administrator, without SQLAlchemy's log: the statement contains the password."""
        engine = sa.create_engine(str(fixtures.admin_url(self.backend)), poolclass=sa.NullPool)
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
            contextlib.closing(connection.connection.cursor()) as cursor,
        ):
            cursor.execute(statement)

    def connect(self, url: sa.URL) -> None:
        text = url.render_as_string(hide_password=False).replace("$", "$$")
        self.conf.write_text(f"{QUICK}[database]\nconnection = {text}\n[limits]\ndriver = config\nlimits = gpu:2\n")

    def test_a_session(self) -> None:
        """From the first command to the chart, in the logs, the tables and the files."""
        self.connect(self.good)
        trace = pathlib.Path(self.directory, "trace.csv")
        trace.write_text("time,event,consumer,project,resource,amount\n0,reserve,c,p,gpu,1\n1,commit,c,p,gpu,1\n")
        chart = pathlib.Path(self.directory, "chart.png")
        reserve = ("reserve", "--project", "p", "gpu=1")
        reads = (("list", "--usage"), ("reservation", "list"), ("db", "version"), ("audit",))
        for status, argv in (
            (0, ("replay", str(trace), "--chart", str(chart), "-f", "json")),
            (0, reserve),
            (1, reserve),
            *((0, (*command, "-f", form)) for form in ("json", "table") for command in reads),
        ):
            self.assertEqual(status, self.assert_hidden("--debug", *argv).status, argv)
        self.assertEqual(0, self.assert_hidden_by_the_expirer("--debug"))
        self.assertEqual([], pieces_in(repr(hooks.tables(sa.create_engine(self.url, poolclass=sa.NullPool)))))
        picture = chart.read_bytes()
        compressed = re.search(b"\x78[\x01\x5e\x9c\xda]", picture)  # where the compressed text of a PNG may begin
        inflated = zlib.decompressobj().decompress(picture[compressed.start() :]) if compressed else b""
        self.assertEqual([], pieces_in(picture + inflated))

    def test_a_password_that_is_wrong(self) -> None:
        for password in (PASSWORD + WORDS[0], WORDS[0], BARE):
            self.connect(self.good.set(password=password))
            for argv in (("--debug", "list", "--usage"), ("--debug", "db", "sync")):
                self.assertEqual(1, self.assert_hidden(*argv).status)

    def test_a_password_in_the_query(self) -> None:
        self.connect(self.good.set(password=None).update_query_dict({"password": PASSWORD}))
        self.assertEqual(0, self.assert_hidden("--debug", "list", "--usage").status)
        more = {"sslpassword": PASSWORD} if self.backend == "postgresql" else {"ssl_ca": PASSWORD}
        self.connect(self.good.update_query_dict(more))
        self.assert_hidden("--debug", "list", "--usage")

    def test_the_arguments_of_every_process(self) -> None:
        """Any user of the machine can read them."""
        self.connect(self.good)
        process = self.spawn(program="cyborg-quota-expirer")
        machine.wait_until(lambda: bool(machine.descendants(process.pid)), 60)
        workers = machine.descendants(process.pid)
        self.assertTrue(workers, "the service has a worker")
        for pid in (process.pid, *workers):
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            self.assertEqual((True, []), (bool(line), pieces_in(line)), line)
        process.terminate()
        out, err = process.communicate(timeout=60)
        self.assertEqual([], pieces_in(out + err))
