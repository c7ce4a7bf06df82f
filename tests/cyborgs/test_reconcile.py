# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota reconcile on the tables of the real Cyborg: differences, repairs and error messages."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys

import fixtures as fx

from cyborg_quota import Claim
from tests import base as ledger_base
from tests import doc_examples, fixtures
from tests.cyborgs import quota

PASSWORD = "hunter2_of_cyborg"
NOTHING = quota.Output(0, "", "")
COMPARISON_SECONDS = 60.0
PAGED = """
import sys
from oslo_config import cfg
from cyborg_quota.conf import loading
from cyborg_quota.cyborg import cyborg_host

ours, *cyborgs = sys.argv[1:]
conf = loading.load(cfg.ConfigOpts(), ["--config-file", ours])
conf.set_override("config_file", cyborgs, group="cyborg")
records = cyborg_host.records(conf)
from cyborg_quota.cyborg import arq_records as module

module.PAGE_ROWS = 1
for one in records.all():
    print(one.arq, flush=True)
    sys.stdin.readline()
"""


class ReconcileTestCase(quota.QuotaTestCase):
    """Bound and charged ARQs, whose charges the tests then falsify."""

    def bound(self, count: int = 1, profile: str | None = None) -> list[str]:
        arqs = self.client.created(profile or self.profile, count)
        self.bind(arqs)
        return arqs

    def forget(self, *arqs: str) -> None:
        """Remove the ARQs from the ledger, as if they had been bound without quota."""
        for arq in arqs:
            self.engine.release(ledger_base.ADMIN, project_id=self.project_id, consumer=arq)

    def charge(self, arq: str, project_id: str | None = None, source: str | None = "cyborg", **deltas: int) -> None:
        claim = Claim(arq, deltas or {"fpga": 1}, source=source)
        self.engine.adopt(ledger_base.ADMIN, [claim], project_id or self.project_id)


class TestFound(ReconcileTestCase):
    def test_each_kind(self) -> None:
        """The differences are reported, and repaired regardless of limits; then none is left."""
        [free] = self.bound()
        [model] = self.bound(1, self.new_profile({"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}))
        instance = str(self.records.arqs()[free].instance_uuid)
        self.forget(free, model)
        self.charge("a ghost")
        self.charge(model)  # and not the resource of its model
        self.engine.reserve(ledger_base.Context(self.project_id), {"fpga": 1}, consumer="in flight")
        self.set_limit(0)
        mine = f"{self.project_id} fpga=1"
        expected = {
            free: ("not charged", "nothing", mine),
            "a ghost": ("not attached", mine, "nothing"),
            model: ("wrong amount", mine, f"{mine} fpga.fake=1"),
        }

        result = self.reconcile("-f", "json")
        self.assertEqual((1, ""), (result.status, result.err))
        rows = json.loads(result.out)
        found = [(row["arq"], (row["problem"], row["charged"], row["attached"])) for row in rows]
        self.assertEqual(sorted(expected.items()), found)
        self.assertEqual(instance, next(row["instance"] for row in rows if row["arq"] == free))
        self.assertEqual({self.project_id: 2}, quota.charged(self.engine), "it wrote without --heal")

        healed = self.reconcile("--heal", "-f", "json")
        repaired = [{**row, "result": "repaired"} for row in rows]
        self.assertEqual((0, repaired), (healed.status, json.loads(healed.out)))
        self.assertIn(f"Differences repaired: {len(rows)}.", healed.err)
        self.assertEqual(NOTHING, self.reconcile())
        self.assertEqual([(2, 1), (1, 0)], [self.figures(name) for name in ("fpga", "fpga.fake")])
        self.engine.rollback(ledger_base.ADMIN, consumer="in flight", project_id=self.project_id)
        self.assert_agree()
        self.assertEqual(instance, self.reservations(free)[-1][4])

    def test_the_commands_of_the_pages(self) -> None:
        """What each prints is on the page; --heal and --claim-source leave no difference."""
        [arq] = self.bound()
        for shown in doc_examples.commands_of(__name__):
            words = shlex.split(shown.command)[2:]
            self.forget(arq)
            if "--claim-source" in words:
                self.charge(arq, source="RegionOld" if words[-1] == "RegionOld" else None)
            result = self.reconcile(*words)
            if "--claim-source" in words:
                self.assertIn("set the source of 1 charges that had ", result.err)
            repairs = not {"--heal", "--claim-source"}.isdisjoint(words)
            self.assertEqual(not repairs, bool(result.status), result)
            if repairs:
                self.assertEqual(NOTHING, self.reconcile(), shown.place)
            if shown.output:
                expected = shown.output.replace("131b7e9f8a7a4b8aab1876484861565c", self.project_id)
                self.assertEqual(doc_examples.normalized(expected), doc_examples.normalized(result.out))

    def test_another_weight(self) -> None:
        """What is charged keeps its amount until it is repaired, and an end gives back the stored amount."""
        arqs = self.bound(2)
        with self.conf_file.open("a") as file:
            file.write("resource_rule = FPGA: fpga=3\n")
        self.assertEqual(204, self.client.delete(arqs[:1]).status)
        self.assertEqual({self.project_id: 1}, quota.charged(self.engine))
        [row] = json.loads(self.reconcile("--heal", "-f", "json").out)
        mine = f"{self.project_id} fpga"
        self.assertEqual(("wrong amount", f"{mine}=1", f"{mine}=3"), (row["problem"], row["charged"], row["attached"]))
        self.assertEqual({self.project_id: 3}, quota.charged(self.engine))
        self.assertEqual(NOTHING, self.reconcile())
        self.assertEqual(204, self.client.delete(arqs[1:]).status)
        self.assertEqual({}, quota.charged(self.engine))

    def test_not_counted(self) -> None:
        """An ARQ bound before its class had a rule is reported, and not changed."""
        self.client.created(self.new_profile({"resources:CUSTOM_RARE": "1"}))
        with fixtures.plain_engine(self.stack.url).begin() as connection:
            connection.exec_driver_sql("UPDATE extended_accelerator_requests SET state = 'Bound'")
        reason = "no [cyborg] resource_rule matches it; add one, or set unmapped = ignore"
        message = f"cyborg-quota: resource class CUSTOM_RARE is not counted: {reason}\n"
        self.assertEqual(quota.Output(0, "", message), self.reconcile())


class TestConcurrentChanges(ReconcileTestCase):
    def test_a_page_is_deleted_and_others_are_added(self) -> None:
        """Of three pages of one ARQ, the second is deleted when it was read; ARQs of a new device profile are bound."""
        first, second, third = sorted(self.bound(3))
        command = [*self.stack.isolated, "-c", PAGED, str(self.conf_file), *quota.cyborg_files(self.stack)[1::2]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
            assert process.stdin is not None and process.stdout is not None
            self.assertEqual(first, process.stdout.readline().strip())
            process.stdin.write("go on\n")
            self.assertEqual(second, process.stdout.readline().strip())
            self.assertEqual(204, self.client.delete([second]).status)
            others = self.bound(8, self.new_profile({"resources:FPGA": "1"}))
            found = process.communicate("go on\n" * 11, timeout=COMPARISON_SECONDS)[0].split()
        self.assertEqual(sorted([third, *(arq for arq in others if arq > second)]), found)


class TestErrors(quota.QuotaTestCase):
    """Errors are one line with the reason, without a traceback or a password."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)

    def test_cyborgs_configuration_and_database(self) -> None:
        """The errors are reported immediately; Cyborg's services would wait and retry."""
        path = self.directory / "cyborg.conf"
        server = self.stack.url.rpartition("@")[2]
        for text, status, words in (
            (None, 2, f"Cyborg's configuration: Failed to find some config files: {self.directory}"),
            ("", 2, "Cyborg's configuration has no [database] connection. Name its file"),
            ("connection = \n[datab", 2, "Cyborg's configuration: Failed to parse"),
            # oslo.config quotes the line, which may hold a password; the message gives only its position.
            (f"[database]\npassword {PASSWORD}\n", 2, "cyborg.conf: line 2: No ':' or '=' found in assignment"),
            # It takes the text after a $ for an option's name, and quotes that too.
            *(
                (f"[database]\nconnection = mysql://cyborg:{name}@127.0.0.1/cyborg\n", 2, "write $$ for a $.")
                for name in (f"a${PASSWORD}", f"${PASSWORD}.x")
            ),
            (
                f"[database]\nconnection = mysql+pymysql://cyborg:{PASSWORD}@127.0.0.1:1/cyborg\n",
                1,
                "Cyborg's database could not be read (DBConnectionError",
            ),
            (
                f"[database]\nconnection = mysql+pymysql://nobody:{PASSWORD}@{server}\n",
                1,
                "Access denied for user 'nobody'",
            ),
            (
                f"[database]\nconnection = sqlite:///{self.directory}/empty.sqlite\n",
                1,
                "no such table: extended_accelerator_requests",
            ),
            (
                f"[database]\nconnection = none+such://cyborg:{PASSWORD}@127.0.0.1/cyborg\n",
                1,
                "Cyborg's database could not be read (NoSuchModuleError)",
            ),
        ):
            if text is not None:
                path.write_text(text)
            result = self.command("reconcile", "--cyborg-config-file", str(path))
            self.assertEqual((status, "", 1), (result.status, result.out, result.err.count("\n")), result.err)
            self.assertRegex(result.err, f"^cyborg-quota: .*{re.escape(words)}")
            self.assertNotIn(PASSWORD, result.err)
        self.assertIn("write an integer from 0 to 3600", self.command("reconcile", "--grace", "-1").err)

    def test_errors_of_the_conductor(self) -> None:
        path = self.directory / "cyborg.conf"
        for text, wanted in (
            (f"password {PASSWORD}", "cyborg.conf: line 2: No ':' or '=' found in assignment"),
            (f"connection = mysql://cyborg:${PASSWORD}@127.0.0.1/cyborg", "write $$ for a $."),
            (f"[DEFAULT]\ntransport_url = rabbit://cyborg:${PASSWORD}@127.0.0.1/", "write $$ for a $."),
        ):
            path.write_text(f"[database]\n{text}\n")
            result = self.run_program("cyborg-quota-conductor", "--config-file", str(path))
            self.assertEqual((2, ""), (result.status, result.out), result.err)
            last = result.err.splitlines()[-1]
            self.assertTrue(last.startswith("cyborg-quota-conductor: ") and last.endswith(wanted), result.err)
            self.assertNotIn(PASSWORD, result.err)

    def test_cyborg_is_not_installed(self) -> None:
        """Cyborg is not installed in the Python of these tests."""
        command = [sys.executable, "-m", "cyborg_quota.cli.main", "--config-file", str(self.conf_file), "reconcile"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        message = (
            "cyborg-quota: Cyborg is not installed in this Python environment; install cyborg_quota into the one that "
            "Cyborg runs in.\n"
        )
        self.assertEqual((2, "", message), (ended.returncode, ended.stdout, ended.stderr))
