# SPDX-License-Identifier: Apache-2.0
"""Automatic repair: only of charges made by this Cyborg, and not with a wrong database."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import uuid

import fixtures as fx
import sqlalchemy as sa

from cyborg_quota import Claim
from tests import base as ledger_base
from tests import fixtures
from tests.cyborgs import base, configuration, quota, test_reconcile
from tests.cyborgs.service import Service
from tests.servers import machine

HEAL_SECONDS = 30.0
INSERT_ARQ = """
    INSERT INTO extended_accelerator_requests
        (created_at, uuid, project_id, state, device_profile_id, device_profile_group_id, instance_uuid)
    VALUES (NOW(), :uuid, :project_id, 'Bound', :profile, 0, :instance)
"""
INSERT_PROFILE = """
    INSERT INTO device_profiles (id, uuid, name, profile_json)
    VALUES (1, :uuid, 'west', '{"groups": [{"resources:FPGA": "1"}]}')
"""


@functools.cache
def _west_url(_pid: int) -> str:
    """The database of the second Cyborg. The tests of this process share it: Cyborg's migrations take seconds."""
    return fixtures.fresh_url("mariadb", "west")


class HealTestCase(test_reconcile.ReconcileTestCase):
    def held(self) -> dict[str | None, str | None]:
        """{consumer: source} of the committed reservations."""
        return {row.consumer: row.source for row in self.engine.list_reservations(ledger_base.ADMIN, state="committed")}

    def adopt(self, arq: str, source: str | None, project_id: str) -> None:
        self.engine.adopt(ledger_base.ADMIN, [Claim(arq, {"fpga": 1}, source=source)], project_id)


class TestDefault(HealTestCase):
    """The conductor with the default: reconcile_heal = true."""

    options = "reconcile_heal = true\nreconcile_interval = 1\nreconcile_seconds = 1\nreconcile_grace = 1"

    def test_own_differences(self) -> None:
        """Charges of deleted or unbound ARQs are released, what is bound is charged; other sources are only logged."""
        deleted, unbound, free, stays = self.bound(4)
        self.assertEqual(202, self.client.unbind([unbound]).status)
        self.assertEqual(204, self.client.delete([deleted]).status)
        self.forget(free)
        for arq, source in ((deleted, "cyborg"), (unbound, "cyborg"), ("of none", None), ("of west", "west")):
            self.adopt(arq, source, self.project_id)
        expected = {free: "cyborg", stays: "cyborg", "of none": None, "of west": "west"}
        machine.wait_until(lambda: self.held() == expected, HEAL_SECONDS)
        self.assertEqual((expected, (4, 0)), (self.held(), self.figures()))
        conductor = self.stack.conductor
        conductor.wait_for("ARQ of none: not attached")
        self.assertNotIn("ARQ of west", conductor.output())

    def test_an_empty_record(self) -> None:
        """With a wrong database, nothing is released, and the log gives the reason."""
        [arq] = self.bound(1)
        self.records.clear()
        self.stack.conductor.wait_for("The ledger was not repaired: Cyborg has no accelerator request at all: 1 of")
        self.assertEqual((1, 0), self.figures())
        output = self.reconcile("--heal")
        self.assertEqual((1, ""), (output.status, output.out))
        self.assertIn("Cyborg has no accelerator request at all", output.err)
        self.assertEqual(0, self.reconcile("--heal", "--force").status)
        self.assertEqual(["released"], [row[3] for row in self.reservations(arq)])


class SharedLedgerTestCase(HealTestCase):
    """A second Cyborg, west, shares the ledger. It has tables and ARQs, but neither an API nor an agent."""

    def setUp(self) -> None:
        super().setUp()
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        is_new = not _west_url.cache_info().currsize
        url = _west_url(os.getpid())
        self.west_cyborg, self.west_conf = directory / "cyborg.conf", directory / "west.conf"
        services = {"bus": "fake:///", "nova": self.stack.nova.url, "placement": self.stack.placement_url}
        text = configuration.CYBORG.format(workdir=directory, database=url.replace("$", "$$"), **services)
        self.west_cyborg.write_text(text + self.config)
        self.west_conf.write_text(self.conf_file.read_text().replace("source = east", "") + "source = west\n")
        self.west_sql = sa.create_engine(url, poolclass=sa.NullPool)
        if is_new:
            command = [str(self.stack.programs / "cyborg-dbsync"), f"--config-file={self.west_cyborg}", "upgrade"]
            Service("west-dbsync", command, directory, bool, starter=self.stack.starter).finish()
        with self.west_sql.begin() as connection:
            for table in ("extended_accelerator_requests", "device_profiles"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
            connection.execute(sa.text(INSERT_PROFILE), {"uuid": str(uuid.uuid4())})

    def bind_in_west(self, project_id: str, source: str = "west") -> str:
        """Bind and charge as its conductor would: the ARQ by SQL, the charge by a call of the ledger."""
        row = {"uuid": str(uuid.uuid4()), "project_id": project_id, "instance": str(uuid.uuid4()), "profile": 1}
        with self.west_sql.begin() as connection:
            connection.execute(sa.text(INSERT_ARQ), row)
        claim = Claim(row["uuid"], {"fpga": 1}, group=row["instance"], source=source)  # type: ignore[arg-type]
        self.engine.adopt(ledger_base.ADMIN, [claim], project_id)
        return str(row["uuid"])

    def west(self, *arguments: str) -> quota.Output:
        named = ("--config-file", str(self.west_conf), "reconcile", "--grace", "0")
        return self.run_program("cyborg-quota", *named, "--cyborg-config-file", str(self.west_cyborg), *arguments)


class TestSharedLedger(SharedLedgerTestCase):
    """Two Cyborgs and a user of the command line share one ledger."""

    options = "reconcile_interval = 0\nsource = east"

    def test_each_repairs_its_own(self) -> None:
        [east], project_id = self.bound(1), base.new_id()
        west = self.bind_in_west(project_id)
        self.assertEqual(0, self.command("reserve", "--project", project_id, "--consumer", "by hand", "fpga=1").status)
        self.engine.commit(ledger_base.ADMIN, project_id=project_id, consumer="by hand")
        everybody = {east: "east", west: "west", "by hand": None}
        self.assertEqual(everybody, self.held())
        for source in ("east", "west"):
            self.adopt(f"ghost of {source}", source, project_id)

        listed = self.reconcile("-f", "csv", "-c", "arq", "-c", "problem", "-c", "source")
        rows = ['"by hand","not attached","none"', '"ghost of east","not attached","east"']
        self.assertEqual((1, rows), (listed.status, listed.out.splitlines()[1:]))
        self.assertIn("cyborg-quota: 1 of these ARQs have charges without a source", listed.err)
        healed = self.reconcile("--heal", "--force", "-f", "csv", "-c", "arq")
        self.assertEqual((1, ['"ghost of east"']), (healed.status, healed.out.splitlines()[1:]))
        self.assertEqual({**everybody, "ghost of west": "west"}, self.held())
        self.assertEqual(1, self.west("--heal", "--force").status)
        self.assertEqual(everybody, self.held())

    def test_the_charges_of_an_older_release(self) -> None:
        """Charges without a source are compared and repaired after --claim-source."""
        [arq] = self.bound(1)
        with self.sql.begin() as connection:
            connection.exec_driver_sql("UPDATE reservations SET source = NULL")
        self.adopt("a ghost", None, self.project_id)
        reported = self.reconcile("--heal")
        self.assertEqual(1, reported.status)
        self.assertIn("cyborg-quota: 1 more ARQs are charged correctly, but without a source", reported.err)
        output = self.reconcile("--heal", "--claim-source", "-f", "csv", "-c", "arq")
        self.assertEqual((0, ['"arq"', '"a ghost"']), (output.status, output.out.splitlines()))
        self.assertEqual("cyborg-quota: set the source of 2 charges that had none.\n", output.err)
        self.assertEqual({arq: "east"}, self.held())
        self.assert_agree()


class TestNoSource(HealTestCase):
    """Without [cyborg] source, nothing that charges or repairs starts."""

    def upgrade_check(self) -> quota.Output:
        """Its output, with the table's cells joined."""
        output = self.run_program("cyborg-quota-status", "--config-file", str(self.conf_file), "upgrade", "check")
        words = [line.strip("| ") for line in output.out.splitlines() if not line.startswith("+")]
        return quota.Output(output.status, "", " ".join(words))

    def test_refused(self) -> None:
        text = self.conf_file.read_text().replace("source = cyborg\n", "")
        files = "".join(f"config_file = {name}\n" for name in self.cyborg_files()[1::2])
        self.conf_file.write_text(f"{text}\n{files}")
        program = "import sys\nimport cyborg_quota.cyborg.wsgi"
        api = subprocess.run(
            [*self.stack.isolated, "-c", program, *self.stack.config_files()],
            capture_output=True,
            text=True,
            check=False,
            timeout=quota.COMMAND_TIMEOUT_SECONDS,
        )
        outputs = [
            self.run_program("cyborg-quota-conductor", *self.stack.config_files()),
            self.reconcile("--heal"),
            self.upgrade_check(),
            quota.Output(2 * (api.returncode != 0), "", api.stdout + api.stderr),
        ]
        for output in outputs:
            self.assertEqual(2, output.status, output)
            self.assertIn("[cyborg] source is not set: set it to the name of this Cyborg's region", output.err)
