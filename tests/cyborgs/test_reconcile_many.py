# SPDX-License-Identifier: Apache-2.0
"""Reconciliation of many bound ARQs takes a few queries per page, seconds, and bounded memory.

There are 2,500 of them; CYBORG_QUOTA_TEST_EXAMPLES_TIMES multiplies this number.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
import uuid
from typing import NamedTuple

import fixtures as fx
import sqlalchemy as sa

from tests import fixtures
from tests.cyborgs import base, quota
from tests.cyborgs.starting import ProcessSettings
from tests.faults.proxy import Proxy

ARQS = 2_500 * fixtures.MORE
PROJECTS, OF_AN_INSTANCE = 8, 4
PAGES = ARQS // 2000 + 1
"""The pages of Cyborg's table, including the last, empty page."""
MOST_MIB = 6.0 * ARQS / 1000
"""Additional memory compared with a run on empty tables."""
INSERT = """
    INSERT INTO extended_accelerator_requests
    (uuid, project_id, state, device_profile_id, device_profile_group_id, substate, instance_uuid)
    SELECT :uuid, :project_id, 'Bound', id, 0, 'Initial', :instance FROM device_profiles WHERE name = :profile
"""


class Measurement(NamedTuple):
    """The cost of one run of the command. ``statements``: those that Cyborg's database and the ledger get."""

    seconds: float
    mib: float
    statements: int


class TestMany(quota.QuotaTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.proxy = self.useFixture(Proxy(self.url))
        # Both databases are on the same server.
        through_proxy = sa.make_url(self.stack.url).set(port=sa.make_url(self.proxy.url).port)
        connection = through_proxy.render_as_string(hide_password=False)
        (self.directory / "cyborg.conf").write_text(f"[database]\nconnection = {connection}\n")
        ledger = self.conf_file.read_text().replace(self.url, self.proxy.url)
        (self.directory / "ledger.conf").write_text(ledger)

    def measure(self, what: str, status: int, rows: int, *arguments: str) -> Measurement:
        """Run the command, which must end with this status and print so many rows, and measure it."""
        files = ("--cyborg-config-file", str(self.directory / "cyborg.conf"))
        command = [str(self.stack.programs / "cyborg-quota"), "--config-file", str(self.directory / "ledger.conf")]
        out = self.directory / f"{what}.csv"
        settings = ProcessSettings(out, self.directory / "err", os.environ, self.directory)
        before, began = self.proxy.statements, time.monotonic()
        child = self.stack.starter.start([*command, "reconcile", "--grace=0", "-f=csv", *files, *arguments], settings)
        ended = child.wait(quota.COMMAND_TIMEOUT_SECONDS), max(0, len(out.read_text().splitlines()) - 1)
        measurement = Measurement(time.monotonic() - began, child.peak_mib, self.proxy.statements - before)
        self.assertEqual((status, rows), ended, what)
        print(f"reconcile, {what}: {measurement}", file=sys.stderr)
        return measurement

    def bind_many(self) -> None:
        """Insert the rows by SQL, as they would be after months."""
        projects = [base.new_id() for _ in range(PROJECTS)]
        instances = [str(uuid.uuid4()) for _ in range(ARQS // OF_AN_INSTANCE)]
        rows = [
            {
                "uuid": str(uuid.uuid4()),
                "project_id": projects[number // OF_AN_INSTANCE % PROJECTS],
                "instance": instances[number // OF_AN_INSTANCE],
                "profile": self.profile,
            }
            for number in range(ARQS)
        ]
        with fixtures.plain_engine(self.stack.url).begin() as connection:
            connection.execute(sa.text(INSERT), rows)

    def test_first_installation(self) -> None:
        """Three runs: all ARQs attached and none charged; all charged; all deleted."""
        nothing = self.measure("nothing", 0, 0)
        self.bind_many()
        found = self.measure("found", 1, ARQS)
        self.measure("refused", 1, 0, "--heal")
        self.measure("charged", 0, ARQS, "--heal", "--force")
        with self.sql.connect() as connection:
            groups = connection.scalar(sa.text("SELECT COUNT(DISTINCT project_id, group_id) FROM reservations"))
        self.assertEqual(ARQS // OF_AN_INSTANCE, groups)
        again = self.measure("again", 0, 0)
        self.assert_agree()
        self.records.clear()
        self.measure("released", 0, ARQS, "--heal", "--force")
        self.assertEqual({}, quota.charged(self.engine))
        self.assert_agree()

        for measurement in (found, again):
            self.assertLess(measurement.mib - nothing.mib, MOST_MIB)
            self.assertLessEqual(measurement.statements - nothing.statements, 4 * PAGES)
