# SPDX-License-Identifier: Apache-2.0
"""Automatic repair: only of charges made by this Cyborg, and not with a wrong database."""

from __future__ import annotations

import subprocess

from tests import base as ledger_base
from tests.cyborgs import quota, test_reconcile
from tests.servers import machine

HEAL_SECONDS = 30.0


class HealTestCase(test_reconcile.ReconcileTestCase):
    def held(self) -> dict[str | None, str | None]:
        """{consumer: source} of the committed reservations."""
        return {row.consumer: row.source for row in self.engine.list_reservations(ledger_base.ADMIN, state="committed")}


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
            self.charge(arq, source=source)
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


class TestWithoutSource(HealTestCase):
    """(tests/functional/test_reconciler.py has ledgers that several Cyborgs share.)"""

    options = "reconcile_interval = 0\nsource = east"

    def test_the_charges_of_an_older_release(self) -> None:
        """Charges without a source are compared and repaired after --claim-source."""
        [arq] = self.bound(1)
        with self.sql.begin() as connection:
            connection.exec_driver_sql("UPDATE reservations SET source = NULL")
        self.charge("a ghost", source=None)
        reported = self.reconcile("--heal")
        self.assertEqual(1, reported.status)
        self.assertIn("cyborg-quota: 1 more ARQs are charged correctly, but without a source", reported.err)
        output = self.reconcile("--heal", "--claim-source", "-f", "csv", "-c", "arq")
        self.assertEqual((0, ['"arq"', '"a ghost"']), (output.status, output.out.splitlines()))
        said = "set the source of 2 charges that had none.", "Differences repaired: 1."
        self.assertEqual("".join(f"cyborg-quota: {line}\n" for line in said), output.err)
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
        files = "".join(f"config_file = {name}\n" for name in quota.cyborg_files(self.stack)[1::2])
        self.conf_file.write_text(f"{text}\n{files}")
        program = "import sys\nimport cyborg_quota.cyborg.wsgi"
        api = subprocess.run(
            [*self.stack.isolated, "-c", program, *self.stack.config_files()],
            capture_output=True,
            text=True,
            check=False,
            timeout=quota.COMMAND_TIMEOUT_SECONDS,
        )
        self.assertRegex(api.stderr.splitlines()[-1], r"^cyborg-api: \[cyborg\] source is not set: ")
        self.assertNotIn("Traceback", api.stderr)
        outputs = [
            self.run_program("cyborg-quota-conductor", *self.stack.config_files()),
            self.reconcile("--heal"),
            self.upgrade_check(),
            quota.Output(2 * (api.returncode != 0), "", api.stdout + api.stderr),
        ]
        for output in outputs:
            self.assertEqual(2, output.status, output)
            self.assertIn("[cyborg] source is not set: set it to the name of this Cyborg's region", output.err)
