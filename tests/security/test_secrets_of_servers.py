# SPDX-License-Identifier: Apache-2.0
"""With a database that answers, no password is shown: in a table, a chart, a log at DEBUG, a process's arguments."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import time
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
        admin = sa.make_url(str(fixtures.admin_url(self.backend)))
        self.user = f"u{os.getpid()}"
        name = sa.make_url(self.url).database
        if self.backend == "mariadb":
            self.create_user(f"'{self.user}'@'127.0.0.1'", "IDENTIFIED BY")
            self.sql(f"GRANT ALL ON {name}.* TO '{self.user}'@'127.0.0.1'")
        else:
            self.create_user(self.user, "LOGIN PASSWORD")
            self.sql(f"ALTER DATABASE {name} OWNER TO {self.user}")
            self.addCleanup(self.sql, f"ALTER DATABASE {name} OWNER TO {admin.username}")
            self.change_owner(self.user)
            self.addCleanup(self.change_owner, str(admin.username))
        self.good = sa.make_url(self.url).set(username=self.user, password=PASSWORD)

    def change_owner(self, user: str) -> None:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            for table in sa.inspect(connection).get_table_names():
                connection.exec_driver_sql(f"ALTER TABLE {table} OWNER TO {user}")

    def sql(self, statement: str) -> None:
        """Run SQL as the database's administrator, without SQLAlchemy's log: the statement contains the password."""
        engine = sa.create_engine(str(fixtures.admin_url(self.backend)), poolclass=sa.NullPool)
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
            contextlib.closing(connection.connection.cursor()) as cursor,
        ):
            cursor.execute(statement)

    def create_user(self, name: str, how: str) -> None:
        self.sql(f"CREATE USER {name} {how} '{PASSWORD}'")
        self.addCleanup(self.sql, f"DROP USER {name}")

    def connect(self, url: sa.URL) -> None:
        text = url.render_as_string(hide_password=False).replace("$", "$$")
        self.write(f"{QUICK}[database]\nconnection = {text}\n[limits]\ndriver = config\nlimits = gpu:2\n")

    def test_a_session(self) -> None:
        """From the first command to the chart, in the logs, the tables and the files."""
        self.connect(self.good)
        trace = pathlib.Path(self.directory, "trace.csv")
        trace.write_text("time,event,consumer,project,resource,amount\n0,reserve,c,p,gpu,1\n1,commit,c,p,gpu,1\n")
        chart = pathlib.Path(self.directory, "chart.png")
        self.assertEqual(
            0, self.assert_hidden("--debug", "replay", str(trace), "--chart", str(chart), "-f", "json").status
        )
        self.assertEqual(0, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)
        self.assertEqual(1, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)
        for form in ("json", "table"):
            for command in (("list", "--usage"), ("reservation", "list"), ("db", "version"), ("audit",)):
                self.assertEqual(0, self.assert_hidden("--debug", *command, "-f", form).status)
        self.assertEqual(0, self.assert_hidden_by_the_expirer("--debug"))
        self.assertEqual([], pieces_in(repr(hooks.tables(sa.create_engine(self.url, poolclass=sa.NullPool)))))
        picture = chart.read_bytes()
        compressed = re.search(b"\x78[\x01\x5e\x9c\xda]", picture)  # where the compressed text of a PNG may begin
        inflated = zlib.decompressobj().decompress(picture[compressed.start() :]) if compressed else b""
        self.assertEqual([], pieces_in(picture + inflated))

    def test_a_password_that_is_wrong(self) -> None:
        for password in (PASSWORD + WORDS[0], WORDS[0], BARE):
            self.connect(self.good.set(password=password))
            for argv in (("list", "--usage"), ("--debug", "list", "--usage"), ("--debug", "db", "sync")):
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
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < deadline:
            for pid in (process.pid, *machine.descendants(process.pid)):
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                self.assertEqual([], pieces_in(line), line)
                if line:
                    seen.add(pid)
            time.sleep(0.1)
        self.assertGreaterEqual(len(seen), 2, "the service has a worker")
        process.terminate()
        out, err = process.communicate(timeout=60)
        self.assertEqual([], pieces_in(out + err))
