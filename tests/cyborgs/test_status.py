# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-status: success and failure of each check, with the real Cyborg and without Cyborg."""

from __future__ import annotations

import json
import socket
import time

import sqlalchemy as sa

from cyborg_quota.db import schema
from tests import base as ledger_base
from tests import doc_examples, fixtures
from tests.cli import base as cli_base
from tests.cyborgs import quota

SUCCESS, WARNING, FAILURE = 0, 1, 2
PASSWORD = "hunter2-of-cyborg"
KEYSTONE = """
[limits]
driver = keystone
[oslo_limit]
timeout = 1
auth_type = password
auth_url = {url}
username = cyborg
password = {password}
system_scope = all
user_domain_id = default
endpoint_id = cyborg
"""


def results(text: str) -> dict[str, tuple[int, str]]:
    """The parsed output of --json: {check: (code, details)}"""
    return {check["check"]: (check["result"], check["details"]) for check in json.loads(text)["checks"]}


class TestWithCyborg(quota.QuotaTestCase):
    def check(self, *arguments: str) -> quota.Output:
        files = "\n".join(f"config_file = {path}" for path in quota.cyborg_files(self.stack)[1::2])
        more = self.conf_file.with_suffix(".status")
        more.write_text(f"[cyborg]\nreconcile_grace = 0\n{files}\n")
        self.addCleanup(more.unlink, missing_ok=True)
        confs = ("--config-file", str(self.conf_file), "--config-file", str(more))
        [(program, *words)] = [shown.command.split() for shown in doc_examples.commands_of(__name__)]
        return self.run_program(program, *confs, *words, *arguments)

    def test_success(self) -> None:
        self.set_limit(3, project_id="somebody")
        self.bind(self.client.created(self.profile))
        output = self.check("--json")
        self.assertEqual((0, ""), (output.status, output.err))
        self.assertEqual(
            {
                "configuration": (SUCCESS, "every option of the files is read"),
                "database": (SUCCESS, f"at revision {schema.HEAD}"),
                "limits": (
                    SUCCESS,
                    "[limits] driver database answers; limits of a new project: fpga -1, fpga.fake -1",
                ),
                "total limits": (SUCCESS, "none is set"),
                "counters": (SUCCESS, "agree with the reservations"),
                "Cyborg's version": (SUCCESS, "17.0.0"),
                "resource classes": (SUCCESS, "all classes of the device profiles can be charged"),
                "Cyborg's records": (SUCCESS, "agree with the ledger on 1 accelerators"),
            },
            results(output.out),
        )

    def test_warnings(self) -> None:
        """The default output is a table with the remedies."""
        [arq] = self.client.created(self.profile)
        self.bind([arq])
        self.engine.release(ledger_base.ADMIN, project_id=self.project_id, consumer=arq)
        self.new_profile({"resources:CUSTOM_RARE": "1"})
        with self.sql.begin() as connection:
            connection.exec_driver_sql("UPDATE quota_usages SET used = 7")
        output = self.check()
        self.assertEqual((1, ""), (output.status, output.err))
        lines = [line.strip("| ") for line in output.out.splitlines()]
        text = " ".join(line for line in lines if not line.startswith("+"))
        for expected in (
            "Check: counters Result: Warning Details: 1 differ from the reservations: cyborg-quota audit, then heal",
            "Check: resource classes Result: Warning Details: CUSTOM_RARE cannot be bound: no [cyborg] resource_rule "
            "matches it; add one, or set unmapped = ignore",
            "Check: Cyborg's records Result: Warning Details: 1 of 1 accelerators differ: cyborg-quota reconcile",
        ):
            self.assertIn(expected, text)

    def test_cyborgs_database_is_down(self) -> None:
        conf_file = self.stack.workdir / "extra.conf"
        before = conf_file.read_text()
        self.addCleanup(conf_file.write_text, before)
        conf_file.write_text(
            f"{before}\n[database]\nconnection = mysql+pymysql://cyborg:{PASSWORD}@127.0.0.1:1/cyborg\n"
        )
        output = self.check("--json")
        self.assertEqual((2, ""), (output.status, output.err))
        self.assertNotIn(PASSWORD, output.out)
        code, details = results(output.out)["Cyborg's records"]
        self.assertEqual((FAILURE, True), (code, "Connection refused" in details))


class TestWithoutCyborg(cli_base.CliTestCase):
    """Cyborg is not installed in the Python of these tests."""

    def check(self, text: str = "", url: str | None = None) -> dict[str, tuple[int, str]]:
        """The results, with this configuration. The exit status is that of the worst."""
        self.configure(text, url=url)
        ended = self.call_status("upgrade", "check", "--json")
        self.assertNotIn(PASSWORD, ended.out)
        found = results(ended.out)
        self.assertEqual((max(code for code, _ in found.values()), ""), (ended.status, ended.err))
        return found

    def test_a_host_without_cyborg(self) -> None:
        """The ledger of such a host is healthy. If Cyborg should be there, it is a failure."""
        found = self.check()
        self.assertEqual({SUCCESS}, {code for name, (code, _) in found.items() if name != "limits"}, found)
        of_cyborg = ("Cyborg's version", "resource classes", "Cyborg's records")
        not_checked = SUCCESS, "not checked: Cyborg is not installed in this Python environment"
        self.assertEqual([not_checked] * 3, [found[one] for one in of_cyborg])
        found = self.check("[cyborg]\nconfig_file = /etc/cyborg/cyborg.conf")
        reason = (
            "Cyborg is not installed in this Python environment; install cyborg_quota into the one that Cyborg runs in."
        )
        self.assertEqual([(FAILURE, reason)] * 3, [found[one] for one in of_cyborg])

    def test_failures(self) -> None:
        empty, others, newer = (fixtures.fresh_url("sqlite", f"status{number}") for number in range(3))
        # Cyborg's database has a table with the same name.
        self.run_sql(others, "CREATE TABLE reservations (id INT)")
        fixtures.create_schema(newer)
        self.run_sql(newer, "UPDATE cyborg_quota_alembic_version SET version_num = 'ffff'")
        down = f"mysql+pymysql://cyborg:{PASSWORD}@127.0.0.1:1/quota"
        missing = f"at revision none, this release needs {schema.HEAD}; run: cyborg-quota db sync"
        for text, url, check, expected, words in (
            ("[limits]\ndrivr = database", None, "configuration", FAILURE, "is no option"),
            ("[limits]\ndriver = none-such", None, "limits", FAILURE, "none-such"),
            ("", empty, "database", FAILURE, missing),
            ("", others, "database", FAILURE, "already holds another service's reservations."),
            ("", newer, "database", WARNING, "at revision ffff, made by a newer release of cyborg_quota"),
            ("[quota]\nretry_seconds = 1", down, "database", FAILURE, "Connection refused"),
        ):
            code, details = self.check(text, url)[check]
            self.assertEqual((expected, True), (code, words in details), details)

    def run_sql(self, url: str, statement: str) -> None:
        with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql(statement)

    def test_a_keystone_that_is_down(self) -> None:
        """A closed port and a server that does not answer are reported in time, and the other checks run."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for port in (1, silent.getsockname()[1]):
                url = f"http://127.0.0.1:{port}"
                began = time.monotonic()
                found = self.check(KEYSTONE.format(url=url, password=PASSWORD))
                self.assertLess(time.monotonic() - began, 30)
                self.assertEqual((FAILURE, SUCCESS), (found["limits"][0], found["counters"][0]))
                self.assertRegex(found["limits"][1], f"^Limits have been unavailable.* {url}")

    def test_an_invalid_file(self) -> None:
        """The password in the URL is not quoted."""
        for text in (f"connection = {PASSWORD}\n", f"[database]\n{PASSWORD}\n", "[cyborg]\nbind_expire = soon\n"):
            self.conf.write_text(text)
            ended = self.call_status("upgrade", "check")
            self.assertEqual((2, "", 1), (ended.status, ended.out, ended.err.count("\n")), ended.err)
            self.assertIn("cyborg-quota-status: ", ended.err)
            self.assertNotIn(PASSWORD, ended.err)
