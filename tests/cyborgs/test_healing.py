# SPDX-License-Identifier: Apache-2.0
"""Automatic repair: only of charges made by this Cyborg, and not with a wrong database."""

from __future__ import annotations

import subprocess

from tests import base as ledger_base
from tests.cyborgs import quota, test_reconcile
from tests.servers import machine

HEAL_SECONDS = 30.0


class TestDefault(test_reconcile.ReconcileTestCase):
    """The conductor with the default: reconcile_heal = true."""

    options = "reconcile_heal = true\nreconcile_interval = 1\nreconcile_seconds = 1\nreconcile_grace = 1"

    def held(self) -> dict[str | None, str | None]:
        """{consumer: source} of the committed reservations."""
        return {row.consumer: row.source for row in self.engine.list_reservations(ledger_base.ADMIN, state="committed")}

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
        reason = "Cyborg has no accelerator request at all"
        self.stack.conductor.wait_for(f"The ledger was not repaired: {reason}: 1 of")
        output = self.reconcile("--heal")
        self.assertEqual((1, "", (1, 0)), (output.status, output.out, self.figures()))
        self.assertIn(reason, output.err)
        self.assertEqual(0, self.reconcile("--heal", "--force").status)
        self.assertEqual(["released"], [row[3] for row in self.reservations(arq)])


class TestNoSource(quota.QuotaTestCase):
    """Without [cyborg] source, nothing that charges or repairs starts."""

    def test_refused(self) -> None:
        text = self.conf_file.read_text().replace("source = cyborg\n", "")
        files = "".join(f"config_file = {name}\n" for name in quota.cyborg_files(self.stack)[1::2])
        self.conf_file.write_text(f"{text}\n{files}")
        command = [*self.stack.isolated, "-c", "import cyborg_quota.cyborg.wsgi", *self.stack.config_files()]
        api = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=quota.COMMAND_TIMEOUT_SECONDS
        )
        self.assertRegex(api.stderr.splitlines()[-1], r"^cyborg-api: \[cyborg\] source is not set: ")
        self.assertNotIn("Traceback", api.stderr)
        outputs = [
            self.run_program("cyborg-quota-conductor", *self.stack.config_files()),
            self.reconcile("--heal"),
            self.run_program("cyborg-quota-status", "--config-file", str(self.conf_file), "upgrade", "check", "--json"),
            quota.Output(2 * (api.returncode != 0), api.stdout, api.stderr),
        ]
        for output in outputs:
            self.assertEqual(2, output.status, output)
            words = "[cyborg] source is not set: set it to the name of this Cyborg's region"
            self.assertIn(words, output.out + output.err)
