# SPDX-License-Identifier: Apache-2.0
"""No password is shown: not in a log at DEBUG, an error, a traceback, a help text, a table, a process's arguments.

The password is made of words that stand nowhere else, with everything between them that a URL, a configuration file
or a shell may break it at: whatever piece of it comes out, in whatever encoding, is found.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import socket
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterator

import fixtures as fx
import sqlalchemy as sa
import testscenarios

from cyborg_quota.cmd import expirer, main
from tests import fixtures, hooks
from tests.cli import base
from tests.security import test_every_command

load_tests = testscenarios.load_tests_apply_scenarios

WORDS = ("xyzzyx", "plughp", "frotzf", "wheezw")
PASSWORD = "@".join(WORDS[:2]) + "/%&$" + "=+ ".join(WORDS[2:])
QUOTED = urllib.parse.quote(PASSWORD, safe="")
BARE = "@".join(WORDS[:2]) + "/" + ":".join(WORDS[2:])
"""As somebody writes it who does not know that it must be quoted."""


def pieces_in(text: str | bytes) -> list[str]:
    """The words of the password that can be found in a text, whichever way it was encoded."""
    shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    forms = (shown, urllib.parse.unquote_plus(shown), re.sub(r"\s+", "", shown), shown.replace("\0", ""))
    return sorted({word for word in WORDS for form in forms if word in form.lower()})


class SecretsTestCase(base.CliTestCase):
    """Everything that is logged, at every level, by whichever library, is kept beside what is printed."""

    scenarios: list[tuple[str, dict[str, object]]] = []

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger(level=logging.DEBUG, nuke_handlers=False))
        # SQLAlchemy's pool tells of its connections only if it is asked before the engine is made.
        for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "keystoneauth", "urllib3"):
            logger = logging.getLogger(name)
            self.addCleanup(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG)

    def write(self, text: str) -> None:
        self.conf.write_text(text)

    def assert_hidden(self, *argv: str) -> base.Ended:
        """Run a command; nothing of the password comes out anywhere. Returns how it ended."""
        ended = self.call(*argv)
        for where, text in (("stdout", ended.out), ("stderr", ended.err), ("log", self.log.output)):
            found = pieces_in(text)
            lines = [line for line in text.splitlines() if pieces_in(line)]
            self.assertEqual([], found, f"{argv}: {where}: {lines}")
        return ended

    def assert_hidden_by_the_expirer(self, *argv: str) -> int:
        out, err = self.useFixture(fx.StringStream("stdout")), self.useFixture(fx.StringStream("stderr"))
        with fx.MonkeyPatch("sys.stdout", out.stream), fx.MonkeyPatch("sys.stderr", err.stream):
            status = expirer.main(["--config-file", str(self.conf), "--once", *argv])
        said = "".join(str(detail.as_text()) for one in (out, err) for detail in one.getDetails().values())
        self.assertEqual([], pieces_in(said + self.log.output), said)
        return status


def closed_port() -> int:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port: int = closed.getsockname()[1]
        return port


QUICK = "[quota]\nretry_seconds = 0\nconnect_timeout = 1\n"
SCHEMES = ("mysql+pymysql", "postgresql+psycopg2")


def bad_urls() -> Iterator[str]:
    """Connection URLs that lead nowhere, each with the password in it."""
    port = closed_port()
    for scheme in SCHEMES:
        yield f"{scheme}://root:{QUOTED}@127.0.0.1:{port}/db"
        yield f"{scheme}://root:{QUOTED}@nowhere.invalid/db"
        yield f"{scheme}://root:{BARE}@127.0.0.1:{port}/db"
        yield f"{scheme}://root:{BARE}@"
        yield f"{scheme}://root:{QUOTED}@127.0.0.1:{WORDS[0]}/db"
        yield f"{scheme}://root:{QUOTED}@127.0.0.1:99999/db"
        yield f"{scheme}://root@127.0.0.1:{port}/db?password={QUOTED}"
        yield f"{scheme}://root@127.0.0.1:{port}/db?passwd={QUOTED}"
        yield f"{scheme}://root@127.0.0.1:{port}/db?nonsense={QUOTED}"
        yield f"{scheme}://root@127.0.0.1:{port}/db?sslpassword={QUOTED}&sslmode=disable"
        yield f"{scheme}://root@127.0.0.1:{port}/db?charset={QUOTED}"
        yield f"{scheme}://root@127.0.0.1:{port}/db?connect_timeout={QUOTED}"
        yield f"{scheme}://root:{QUOTED}:{WORDS[1]}@127.0.0.1:{port}/db"
        yield f"{scheme}://{WORDS[0]}:{WORDS[1]}@[::1/db"
        yield f"{scheme}:/root:{QUOTED}@127.0.0.1:{port}/db"
        yield f"{scheme}//root:{QUOTED}@127.0.0.1:{port}/db"
    yield f"root:{QUOTED}@127.0.0.1/db"
    yield f"mysql://root:{QUOTED}@127.0.0.1/db"
    yield f"postgresql+asyncpg://root:{QUOTED}@127.0.0.1/db"
    yield f"postgresql+nonsense://root:{QUOTED}@127.0.0.1/db"
    yield f"oracle://root:{QUOTED}@127.0.0.1/db"
    yield f"nonsense://root:{QUOTED}@127.0.0.1/db"
    yield f"sqlite://root:{QUOTED}@127.0.0.1/db"
    yield f"sqlite:////nowhere/db?password={QUOTED}"
    yield f"://root:{QUOTED}@127.0.0.1/db"
    yield QUOTED
    yield BARE


class TestConnection(SecretsTestCase):
    """[database] connection: whatever is wrong with it."""

    COMMANDS = (("usage", "list"), ("db", "sync"), ("--debug", "usage", "list"), ("--debug", "db", "version"))

    def test_urls_that_lead_nowhere(self) -> None:
        for url in bad_urls():
            self.write(f"{QUICK}[database]\nconnection = {url.replace('$', '$$')}\n")
            for argv in self.COMMANDS:
                ended = self.assert_hidden(*argv)
                self.assertIn(ended.status, (1, 2), url)
            self.assertIn(self.assert_hidden_by_the_expirer("--debug"), (1, 2))

    def test_every_command(self) -> None:
        url = f"mysql+pymysql://root:{QUOTED}@127.0.0.1:{closed_port()}/db?password={QUOTED}"
        self.write(f"{QUICK}[database]\nconnection = {url}\n[limits]\ndriver = database\n")
        rows = {**test_every_command.OF_ONE, **dict.fromkeys(test_every_command.OF_ALL, ())}
        more = {"limit import": (str(self.conf),), "replay": (str(self.conf),)}
        for command, arguments in rows.items():
            argv = [*command.split(), *(more.get(command) or arguments)]
            self.assertNotEqual(0, self.assert_hidden("--debug", *argv).status, command)
            self.assertEqual(0, self.assert_hidden(*command.split(), "--help").status)
        self.assertEqual(0, self.assert_hidden("--help").status)

    def test_a_password_that_must_be_quoted_is_said_to_be_so(self) -> None:
        """What follows its @ would be taken for the host, and named by every error as that."""
        for scheme in SCHEMES:
            self.write(f"{QUICK}[database]\nconnection = {scheme}://root:{BARE}@127.0.0.1/db\n")
            ended = self.assert_hidden("usage", "list")
            self.assertEqual(2, ended.status)
            self.assertIn("write %40", ended.err)

    def test_parameters_of_the_connection(self) -> None:
        url = f"postgresql+psycopg2://root@127.0.0.1:{closed_port()}/db"
        for parameters in (f"password={QUOTED}", QUOTED, f"sslpassword={QUOTED}", f"nonsense={QUOTED}", BARE):
            self.write(f"{QUICK}[database]\nconnection = {url}\nconnection_parameters = {parameters}\n")
            for argv in self.COMMANDS:
                self.assert_hidden(*argv)

    def test_other_options_of_the_group(self) -> None:
        self.write(f"[database]\nconnection = {self.url}\nslave_connection = mysql+pymysql://u:{QUOTED}@h/db\n")
        self.assertEqual(0, self.assert_hidden("--debug", "usage", "list").status)


class TestFiles(SecretsTestCase):
    """A configuration file that is wrong."""

    def test_a_line_that_is_none(self) -> None:
        """oslo.config quotes the line."""
        for line in (
            f"connection mysql+pymysql://root:{QUOTED}@127.0.0.1/db",
            f" mysql+pymysql://root:{QUOTED}@127.0.0.1/db",
            f"= mysql+pymysql://root:{QUOTED}@127.0.0.1/db",
            f"[database {QUOTED}",
            f"[{QUOTED}",
            f"connection: mysql+pymysql://root:{QUOTED}\n@127.0.0.1/db",
        ):
            for text in (line, f"[database]\n{line}", f"[database]\nconnection = sqlite://\n{line}"):
                self.write(text)
                for argv in (("usage", "list"), ("--debug", "usage", "list")):
                    ended = self.assert_hidden(*argv)
                    self.assertIn(ended.status, (1, 2), text)
                self.assert_hidden_by_the_expirer("--debug")

    def test_the_line_s_number_is_told(self) -> None:
        self.write(f"[database\nconnection = mysql://root:{QUOTED}@127.0.0.1/db\n")
        self.assertIn(f"{self.conf}: line 1: ", self.assert_hidden("usage", "list").err)

    def test_a_dollar_sign_that_was_not_doubled(self) -> None:
        for text in (f"$plughp{WORDS[0]}", f"${{{WORDS[0]}}}", f"${WORDS[0]}.{WORDS[1]}"):
            self.write(f"[database]\nconnection = mysql+pymysql://root:{text}@127.0.0.1/db\n")
            for argv in (("usage", "list"), ("--debug", "usage", "list")):
                self.assertEqual(2, self.assert_hidden(*argv).status)

    def test_the_value_of_another_option(self) -> None:
        """A password that has got into the wrong line."""
        for text in (
            f"[quota]\nretry_seconds = {QUOTED}",
            f"[limits]\nlimits = {QUOTED}",
            f"[quota]\ndriver = {QUOTED}",
        ):
            self.write(f"[database]\nconnection = {self.url}\n{text}\n")
            self.assertNotEqual(0, self.call("usage", "list").status)  # (it names the value: that is no secret's place)

    def test_the_environment(self) -> None:
        self.write("")
        for url in (f"mysql+pymysql://root:{BARE}@127.0.0.1/db", f"x:{QUOTED}", f"mysql://root:$${QUOTED}@h/db"):
            with fx.EnvironmentVariable("OS_DATABASE__CONNECTION", url):
                for argv in (("usage", "list"), ("--debug", "usage", "list")):
                    self.assertEqual(2, self.assert_hidden(*argv).status, url)


class TestKeystone(SecretsTestCase):
    """[oslo_limit]: the service user's password."""

    def keystone(self, **values: str) -> None:
        options = {
            "auth_type": "password",
            "auth_url": f"http://127.0.0.1:{closed_port()}/v3",
            "username": "quota",
            "password": PASSWORD.replace("$", "$$"),
            "user_domain_id": "default",
            "system_scope": "all",
            "endpoint_id": "e",
            **values,
        }
        lines = "\n".join(f"{name} = {value}" for name, value in options.items())
        self.write(
            f"[database]\nconnection = {self.url}\n[limits]\ndriver = keystone\nkeystone_timeout = 1\n"
            f"keystone_stale_seconds = 0\n[oslo_limit]\n{lines}\n"
        )

    def test_whatever_is_wrong(self) -> None:
        for values in (
            {},
            {"auth_url": f"http://quota:{QUOTED}@127.0.0.1:{closed_port()}/v3"},
            {"auth_url": f"http://127.0.0.1:1/v3?token={QUOTED}"},
            {"auth_url": "http://nowhere.invalid/v3"},
            {"auth_type": "v3password"},
            {"auth_type": "v2password"},
            {"auth_type": "nonsense"},
            {"endpoint_id": ""},
            {"username": ""},
        ):
            self.keystone(**values)
            for argv in (
                ("reserve", "--project", "p", "gpu=1"),
                ("--debug", "reserve", "--project", "p", "gpu=1"),
                ("--debug", "limit", "list", "--project", "p"),
            ):
                self.assertIn(self.assert_hidden(*argv).status, (1, 2), values)

    def test_a_server_that_repeats_what_it_was_told(self) -> None:
        """Its answer, with the password in it, is no part of any error.

        (It answers 401 to the question for its versions too: keystoneauth1 waited for itself then, for ever.)
        """
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            self.keystone(auth_url=f"http://127.0.0.1:{server.getsockname()[1]}/v3")
            threading.Thread(target=_echo, args=(server,), daemon=True).start()
            self.assertEqual(1, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)


def _echo(server: socket.socket) -> None:
    """Answer every request with 401 and the request itself."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # the test is over
            return
        request = connection.recv(65536)
        head = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(request)
        connection.sendall(head + request)
        connection.close()


class TestNotifications(SecretsTestCase):
    """The URL of the message bus."""

    def test_a_transport_that_cannot_be_used(self) -> None:
        for url in (
            f"rabbit://quota:{QUOTED}@127.0.0.1:{closed_port()}/",
            f"rabbit://quota:{BARE}@127.0.0.1/",
            f"rabbit:/quota:{QUOTED}@127.0.0.1/",
            f"nonsense://quota:{QUOTED}@127.0.0.1/",
            f"kombu+nonsense://quota:{QUOTED}@127.0.0.1:{WORDS[0]}/",
            QUOTED,
        ):
            for option in ("[DEFAULT]\ntransport_url", "[oslo_messaging_notifications]\ntransport_url"):
                self.write(f"{option} = {url}\n[database]\nconnection = {self.url}\n[notices]\nnotifications = true\n")
                self.assert_hidden_by_the_expirer("--debug")


class TestServers(SecretsTestCase):
    """A database that answers: a right password, and a wrong one."""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        admin = sa.make_url(str(fixtures.admin_url(self.backend)))
        self.user = f"u{os.getpid()}"
        self.sql(f"CREATE USER {self.quoted(self.user)} {self.identified()}")
        self.addCleanup(self.sql, f"DROP USER {self.quoted(self.user)}")
        name = sa.make_url(self.url).database
        if self.backend == "mariadb":
            self.sql(f"GRANT ALL ON {name}.* TO {self.quoted(self.user)}")
        else:
            self.sql(f"ALTER DATABASE {name} OWNER TO {self.user}")
            self.addCleanup(self.sql, f"ALTER DATABASE {name} OWNER TO {admin.username}")
            self.own(self.user)
            self.addCleanup(self.own, str(admin.username))
        self.good = sa.make_url(self.url).set(username=self.user, password=PASSWORD)

    def own(self, user: str) -> None:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            for table in sa.inspect(connection).get_table_names():
                connection.exec_driver_sql(f"ALTER TABLE {table} OWNER TO {user}")

    def sql(self, statement: str) -> None:
        """As the database's administrator, and past SQLAlchemy's log: the statement has the password in it."""
        engine = sa.create_engine(str(fixtures.admin_url(self.backend)), poolclass=sa.NullPool)
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
            contextlib.closing(connection.connection.cursor()) as cursor,
        ):
            cursor.execute(statement)

    def quoted(self, user: str) -> str:
        return f"'{user}'@'127.0.0.1'" if self.backend == "mariadb" else user

    def identified(self) -> str:
        return f"IDENTIFIED BY '{PASSWORD}'" if self.backend == "mariadb" else f"LOGIN PASSWORD '{PASSWORD}'"

    def connect(self, url: sa.URL) -> None:
        text = url.render_as_string(hide_password=False).replace("$", "$$")
        self.write(f"{QUICK}[database]\nconnection = {text}\n[limits]\ndriver = config\nlimits = gpu:2\n")

    def test_a_session(self) -> None:
        """From the first command to the chart, in the logs, the tables and the files that are left."""
        self.connect(self.good)
        trace = pathlib.Path(self.directory, "trace.csv")
        trace.write_text("time,event,consumer,project,resource,amount\n0,reserve,c,p,gpu,1\n1,commit,c,p,gpu,1\n")
        chart = pathlib.Path(self.directory, "chart.png")
        self.assertEqual(
            0, self.assert_hidden("--debug", "replay", str(trace), "--chart", str(chart), "-f", "json").status
        )
        self.assertEqual(0, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)
        self.assertEqual(1, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)
        for form in ("json", "yaml", "csv", "table", "value"):
            for command in (("usage", "list"), ("reservation", "list"), ("db", "version"), ("usage", "audit")):
                self.assertEqual(0, self.assert_hidden("--debug", *command, "-f", form).status)
        self.assertEqual(0, self.assert_hidden_by_the_expirer("--debug"))
        self.assertEqual([], pieces_in(repr(hooks.tables(sa.create_engine(self.url, poolclass=sa.NullPool)))))
        picture = chart.read_bytes()
        inflated = [zlib.decompressobj().decompress(picture[at:]) for at in _streams(picture)]
        self.assertEqual([], pieces_in(picture + b"".join(inflated)))

    def test_a_password_that_is_wrong(self) -> None:
        for password in (PASSWORD + WORDS[0], WORDS[0], BARE):
            self.connect(self.good.set(password=password))
            for argv in (("usage", "list"), ("--debug", "usage", "list"), ("--debug", "db", "sync")):
                self.assertEqual(1, self.assert_hidden(*argv).status)

    def test_a_password_in_the_query(self) -> None:
        self.connect(self.good.set(password=None).update_query_dict({"password": PASSWORD}))
        self.assertEqual(0, self.assert_hidden("--debug", "usage", "list").status)
        more = {"sslpassword": PASSWORD} if self.backend == "postgresql" else {"ssl_ca": PASSWORD}
        self.connect(self.good.update_query_dict(more))
        self.assert_hidden("--debug", "usage", "list")

    def test_the_arguments_of_every_process(self) -> None:
        """Any user of the machine can read them."""
        self.connect(self.good)
        process = self.spawn(program="cyborg-quota-expirer")
        seen: set[int] = set()
        deadline = time.monotonic() + 20
        while len(seen) < 2 and time.monotonic() < deadline:
            for pid in _family(process.pid):
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                self.assertEqual([], pieces_in(line), line)
                if line:
                    seen.add(pid)
            time.sleep(0.1)
        self.assertGreaterEqual(len(seen), 2, "the service has a worker")
        process.terminate()
        out, err = process.communicate(timeout=60)
        self.assertEqual([], pieces_in(out + err))


def _streams(picture: bytes) -> list[int]:
    """Where the compressed texts of a PNG may begin."""
    return [found.start() for found in re.finditer(b"\x78[\x01\x5e\x9c\xda]", picture)][:1]


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = task.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            yield from _family(int(task.parent.name))


class TestTheSearch(SecretsTestCase):
    """Known-bad ways: the search finds what is shown on purpose."""

    def test_every_encoding(self) -> None:
        for text in (
            PASSWORD, QUOTED, BARE, QUOTED.lower(), urllib.parse.quote_plus(PASSWORD), repr(PASSWORD), WORDS[3],
            ascii(PASSWORD), "\n".join(WORDS[0]), WORDS[0].encode("utf-16-le"), WORDS[1].upper(),
        ):  # fmt: skip
            self.assertNotEqual([], pieces_in(text), text)
        self.assertEqual([], pieces_in("postgresql+psycopg2://root:***@127.0.0.1/db"))

    def test_a_program_that_prints_it(self) -> None:
        self.write(f"{QUICK}[database]\nconnection = mysql+pymysql://root:{QUOTED}@127.0.0.1:{closed_port()}/db\n")
        complain = main.Shell._complain

        def blab(shell: main.Shell, text: str, debug: bool) -> None:
            complain(shell, f"{text} ({shell.conf.database.connection})", debug)

        self.assert_hidden("usage", "list")
        with fx.MonkeyPatch("cyborg_quota.cmd.main.Shell._complain", blab):
            self.assertRaises(AssertionError, self.assert_hidden, "usage", "list")

    def test_a_program_that_logs_it(self) -> None:
        logging.getLogger("anything").debug("connecting to mysql://root:%s@127.0.0.1", QUOTED)
        self.assertRaises(AssertionError, self.assert_hidden, "--help")
