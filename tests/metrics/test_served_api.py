# SPDX-License-Identifier: Apache-2.0
"""The metrics of the REST API in a process of its own, as gunicorn runs it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import fixtures as fx
import sqlalchemy as sa

from cyborg_quota.metrics import exporter
from tests import base
from tests.servers import machine

UNREAD = "The names of projects for cyborg_quota_project_info could not be read"
CONFIG = """\
[database]
connection = {url}
[limits]
driver = database
[metrics]
listen = {address}
projects = *
project_names = true
[keystone_authtoken]
auth_type = none
www_authenticate_uri = http://{nobody}
[oslo_limit]
auth_type = password
auth_url = http://{nobody}/v3
username = nobody
password = secret
system_scope = all
user_domain_id = default
"""


class TestServedAPI(base.LedgerTestCase):
    """The process is elected: no other one serves metrics. Nothing answers at the address of Keystone."""

    def setUp(self) -> None:
        super().setUp()
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1})
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.address = f"127.0.0.1:{machine.free_port()}"
        nobody = f"127.0.0.1:{machine.free_port()}"
        conf = self.directory / "cyborg_quota.conf"
        conf.write_text(CONFIG.format(url=self.url, address=self.address, nobody=nobody))
        self.process = self.start(conf)

    def start(self, conf: pathlib.Path) -> subprocess.Popen[bytes]:
        options = ["--bind", f"127.0.0.1:{machine.free_port()}", "--worker-class", "gthread", "--threads", "2"]
        command = [sys.executable, "-m", "gunicorn", *options, "cyborg_quota.api.wsgi:application"]
        environment = {**os.environ, "OS_CYBORG_QUOTA_CONFIG_FILES": str(conf)}
        with (self.directory / "log").open("wb") as log:
            process = subprocess.Popen(machine.ends_with_parent(command), env=environment, stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def exports(self) -> bool:
        """Whether the process exports the values of the ledger. A scrape also makes it read the names."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as got:
            return b'cyborg_quota_reserved{project_id="higgs"' in got.read()
        return False

    def generation(self) -> int:
        """That of the lease; negative: vacant."""
        with self.sql.connect() as connection:
            query = sa.text("SELECT generation FROM fences WHERE name = :name")
            return int(connection.execute(query, {"name": f"lease:{exporter.ELECTION}"}).scalar_one())

    def test_it_reads_names_and_resigns_when_it_ends(self) -> None:
        machine.wait_until(lambda: self.exports() or self.process.poll() is not None, 60)
        self.assertIsNone(self.process.poll(), self.log)
        machine.wait_until(lambda: UNREAD in self.log, 30)
        self.assertIn(UNREAD, self.log)
        self.assertGreater(self.generation(), 0)
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, self.process.wait(60))
        self.assertLess(self.generation(), 0, self.log)
