# SPDX-License-Identifier: Apache-2.0
"""No password is shown: in a log at DEBUG, an error, a traceback or a help text, for any configuration error."""

from __future__ import annotations

import logging
import urllib.parse

import fixtures as fx
import testscenarios
import webob
import webob.dec
from oslo_config import cfg

from cyborg_quota.conf import loading
from tests.api import server
from tests.security import test_every_command
from tests.security.secrets import BARE, PASSWORD, QUICK, QUOTED, WORDS, SecretsTestCase, pieces_in
from tests.servers.machine import free_port

load_tests = testscenarios.load_tests_apply_scenarios

SCHEMES = ("mysql+pymysql", "postgresql+psycopg2")


def bad_urls() -> list[str]:
    """Connection URLs that cannot work, each with the password in it."""
    port = free_port()
    of_servers = (
        f"://root:{QUOTED}@127.0.0.1:{port}/db",
        f"://root:{QUOTED}@nowhere.invalid/db",
        f"://root:{BARE}@127.0.0.1:{port}/db",
        f"://root:{BARE}@",
        f"://root:{QUOTED}@127.0.0.1:{WORDS[0]}/db",
        f"://root:{QUOTED}@127.0.0.1:99999/db",
        f"://root@127.0.0.1:{port}/db?password={QUOTED}",
        f"://root@127.0.0.1:{port}/db?passwd={QUOTED}",
        f"://root@127.0.0.1:{port}/db?nonsense={QUOTED}",
        f"://root@127.0.0.1:{port}/db?sslpassword={QUOTED}&sslmode=disable",
        f"://root@127.0.0.1:{port}/db?charset={QUOTED}",
        f"://root@127.0.0.1:{port}/db?connect_timeout={QUOTED}",
        f"://root:{QUOTED}:{WORDS[1]}@127.0.0.1:{port}/db",
        f"://{WORDS[0]}:{WORDS[1]}@[::1/db",
        f":/root:{QUOTED}@127.0.0.1:{port}/db",
        f"//root:{QUOTED}@127.0.0.1:{port}/db",
    )
    others = (
        f"root:{QUOTED}@127.0.0.1/db",
        f"mysql://root:{QUOTED}@127.0.0.1/db",
        f"postgresql+asyncpg://root:{QUOTED}@127.0.0.1/db",
        f"postgresql+nonsense://root:{QUOTED}@127.0.0.1/db",
        f"oracle://root:{QUOTED}@127.0.0.1/db",
        f"nonsense://root:{QUOTED}@127.0.0.1/db",
        f"sqlite://root:{QUOTED}@127.0.0.1/db",
        f"sqlite:////nowhere/db?password={QUOTED}",
        f"://root:{QUOTED}@127.0.0.1/db",
        QUOTED,
        BARE,
    )
    return [scheme + rest for scheme in SCHEMES for rest in of_servers] + list(others)


class TestConnection(SecretsTestCase):
    """[database] connection, with any error in it."""

    COMMANDS = (("--debug", "list", "--usage"), ("db", "sync"))
    """By the engine and by the database alone. (--debug adds a traceback and a log to what is printed without it.)"""

    def test_urls_that_cannot_work(self) -> None:
        for url in bad_urls():
            self.conf.write_text(f"{QUICK}[database]\nconnection = {url.replace('$', '$$')}\n")
            for argv in self.COMMANDS:
                self.assertIn(self.assert_hidden(*argv).status, (1, 2), url)
            self.assertIn(self.assert_hidden_by_the_expirer("--debug"), (1, 2))

    def test_every_command(self) -> None:
        url = f"mysql+pymysql://root:{QUOTED}@127.0.0.1:{free_port()}/db?password={QUOTED}"
        self.conf.write_text(f"{QUICK}[database]\nconnection = {url}\n[limits]\ndriver = database\n")
        file = (str(self.conf),)
        rows = {
            **test_every_command.OF_ONE,
            **dict.fromkeys(test_every_command.OF_ALL, ()),
            "limits import": file,
            "replay": file,
        }
        for command, arguments in rows.items():
            self.assertNotEqual(0, self.assert_hidden("--debug", *command.split(), *arguments).status, command)
        # (No --help reads the configuration: test_shell.py.)
        for argv in (["--help"], ["list", "--usage", "--help"]):
            self.assertEqual(0, self.assert_hidden(*argv).status)

    def test_an_unquoted_password_is_reported(self) -> None:
        """The text after its @ would be taken for the host, and quoted as such by every error."""
        for scheme in SCHEMES:
            self.conf.write_text(f"{QUICK}[database]\nconnection = {scheme}://root:{BARE}@127.0.0.1/db\n")
            ended = self.assert_hidden("list", "--usage")
            self.assertEqual((2, True), (ended.status, "write %40" in ended.err), ended.err)

    def test_parameters_of_the_connection(self) -> None:
        url = f"postgresql+psycopg2://root@127.0.0.1:{free_port()}/db"
        for parameters in (f"password={QUOTED}", QUOTED, f"sslpassword={QUOTED}", f"nonsense={QUOTED}", BARE):
            self.conf.write_text(f"{QUICK}[database]\nconnection = {url}\nconnection_parameters = {parameters}\n")
            for argv in self.COMMANDS:
                self.assert_hidden(*argv)
        # Another option of the group.
        self.conf.write_text(
            f"[database]\nconnection = {self.url}\nslave_connection = mysql+pymysql://u:{QUOTED}@h/db\n"
        )
        self.assertEqual(0, self.assert_hidden("--debug", "list", "--usage").status)


class TestFiles(SecretsTestCase):
    """A configuration file with errors."""

    def test_an_invalid_line(self) -> None:
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
                self.conf.write_text(text)
                self.assertIn(self.assert_hidden("--debug", "list", "--usage").status, (1, 2), text)
                self.assert_hidden_by_the_expirer("--debug")

    def test_what_is_reported(self) -> None:
        """The number of the line; and that a file is not in UTF-8, for which Python's error has the whole content."""
        url = f"mysql://root:{QUOTED}@127.0.0.1/db"
        for text, told in (
            (f"[database\nconnection = {url}\n".encode(), f"{self.conf}: line 1: "),
            (f"[database]\nconnection = {url}\n# ".encode() + b"\xfc\n", "not in UTF-8"),
        ):
            self.conf.write_bytes(text)
            self.assertIn(told, self.assert_hidden("--debug", "list", "--usage").err)
            self.assert_hidden_by_the_expirer("--debug")

    def test_errors_of_another_configuration(self) -> None:
        """The configuration of Cyborg, for example: the errors of oslo.config are passed on."""
        for text in (
            f"[database]\npassword {QUOTED}",
            f"[database {QUOTED}",
            f"[database]\nconnection = mysql://root:$plughp{WORDS[0]}@127.0.0.1/db",
            f"[database]\nconnection = mysql://root:${WORDS[0]}.{WORDS[1]}@127.0.0.1/db",
            f"[database]\nconnection = mysql://root:$database.{WORDS[1]}@127.0.0.1/db",
        ):
            self.conf.write_text(text)
            conf = cfg.ConfigOpts()
            conf.register_opt(cfg.StrOpt("connection"), "database")
            error = self.assertRaises(cfg.Error, self.asked, conf)
            self.assertNotEqual([], pieces_in(str(error)), "there is nothing to hide")
            self.assertEqual([], pieces_in(loading.safe_message(error)), text)

    def asked(self, conf: cfg.ConfigOpts) -> str:
        conf(["--config-file", str(self.conf)], project="another")
        return str(conf.database.connection)

    def test_an_unescaped_dollar_sign(self) -> None:
        for text in (f"$plughp{WORDS[0]}", f"${{{WORDS[0]}}}", f"${WORDS[0]}.{WORDS[1]}"):
            self.conf.write_text(f"[database]\nconnection = mysql+pymysql://root:{text}@127.0.0.1/db\n")
            self.assertEqual(2, self.assert_hidden("--debug", "list", "--usage").status)

    def test_the_environment(self) -> None:
        self.conf.write_text("")
        for url in (f"mysql+pymysql://root:{BARE}@127.0.0.1/db", f"x:{QUOTED}", f"mysql://root:$${QUOTED}@h/db"):
            with fx.EnvironmentVariable("OS_DATABASE__CONNECTION", url):
                self.assertEqual(2, self.assert_hidden("--debug", "list", "--usage").status)


class TestKeystone(SecretsTestCase):
    """[oslo_limit]: the service user's password."""

    def keystone(self, **values: str) -> None:
        options = {
            "auth_type": "password",
            "auth_url": f"http://127.0.0.1:{free_port()}/v3",
            "username": "quota",
            "password": PASSWORD.replace("$", "$$"),
            "user_domain_id": "default",
            "system_scope": "all",
            "endpoint_id": "e",
            **values,
        }
        lines = "\n".join(f"{name} = {value}" for name, value in options.items())
        self.conf.write_text(
            f"[database]\nconnection = {self.url}\n[limits]\ndriver = keystone\n"
            f"keystone_stale_seconds = 0\n[oslo_limit]\ntimeout = 1\n{lines}\n"
        )

    def test_each_error(self) -> None:
        for values in (
            {},
            {"auth_url": f"http://quota:{QUOTED}@127.0.0.1:{free_port()}/v3"},
            {"auth_url": f"http://127.0.0.1:1/v3?token={QUOTED}"},
            {"auth_url": f"http://quota:{QUOTED}[@127.0.0.1:1/v3"},
            {"auth_url": "http://nowhere.invalid/v3"},
            {"auth_type": "v3password"},
            {"auth_type": "v2password"},
            {"auth_type": "nonsense"},
            {"endpoint_id": ""},
            {"username": ""},
        ):
            self.keystone(**values)
            for argv in (("reserve", "--project", "p", "gpu=1"), ("show", "p")):
                self.assertIn(self.assert_hidden("--debug", *argv).status, (1, 2), values)

    def test_a_server_that_repeats_the_request(self) -> None:
        """Its answer, which contains the password, is not part of any error.

        (It answers 401 to the version discovery too, which once made keystoneauth1 wait for itself for ever.)
        """
        with server.served(echo) as url:
            self.keystone(auth_url=f"{url}/v3")
            self.assertEqual(1, self.assert_hidden("--debug", "reserve", "--project", "p", "gpu=1").status)


@webob.dec.wsgify
def echo(request: webob.Request) -> webob.Response:
    """Answer every request with 401 and a copy of the request."""
    return webob.Response(status=401, text=request.as_bytes().decode())


class TestNotifications(SecretsTestCase):
    """The URL of the message bus."""

    def test_a_transport_that_cannot_be_used(self) -> None:
        for url in (
            f"rabbit://quota:{QUOTED}@127.0.0.1:{free_port()}/",
            f"rabbit://quota:{BARE}@127.0.0.1/",
            f"rabbit:/quota:{QUOTED}@127.0.0.1/",
            f"nonsense://quota:{QUOTED}@127.0.0.1/",
            f"kombu+nonsense://quota:{QUOTED}@127.0.0.1:{WORDS[0]}/",
            QUOTED,
        ):
            for option in ("[DEFAULT]\ntransport_url", "[oslo_messaging_notifications]\ntransport_url"):
                self.conf.write_text(
                    f"{option} = {url}\n[database]\nconnection = {self.url}\n[notices]\nnotifications = true\n"
                )
                self.assert_hidden_by_the_expirer("--debug")


class TestTheSearch(SecretsTestCase):
    """The control: the search finds a password that is shown on purpose, in every encoding, or logged."""

    def test_it_finds_a_password(self) -> None:
        for text in (
            PASSWORD, QUOTED, BARE, QUOTED.lower(), urllib.parse.quote_plus(PASSWORD), repr(PASSWORD), WORDS[3],
            ascii(PASSWORD), "\n".join(WORDS[0]), WORDS[0].encode("utf-16-le"), WORDS[1].upper(),
        ):  # fmt: skip
            self.assertNotEqual([], pieces_in(text), text)
        self.assertEqual([], pieces_in("postgresql+psycopg2://root:***@127.0.0.1/db"))
        logging.getLogger("anything").debug("connecting to mysql://root:%s@127.0.0.1", QUOTED)
        self.assertRaises(AssertionError, self.assert_hidden, "--help")
