# SPDX-License-Identifier: Apache-2.0
"""How the commands, the upgrade check and the expirer report edges that a previous limit driver made."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import time

import sqlalchemy as sa

from cyborg_quota.cmd import status
from tests.cli import base


class IgnoredEdgesTest(base.CliTestCase):
    """p1 and p2 lie below dom, where the driver keystone put them; the present driver is ``database``."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.directory / "expirer.log"
        self.configure(f"[limits]\ndriver = database\n[DEFAULT]\nlog_file = {self.log}")
        for argv in ("limit set --default gpu=3", "project add dom", "project add p1 --parent dom"):
            self.call(*argv.split())
        self.call("project", "add", "p2", "--parent", "dom")
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql("UPDATE projects SET origin = 'keystone' WHERE parent_id = 'dom'")

    def checked(self) -> tuple[int, str]:
        """The upgrade check's result of the project tree."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status.main(["--config-file", str(self.conf), "upgrade", "check", "--json"])
        (found,) = [check for check in json.loads(out.getvalue())["checks"] if check["check"] == "project tree"]
        return found["result"], found["details"]

    def test_detach(self) -> None:
        code, details = self.checked()
        self.assertEqual(1, code)
        self.assertIn("(2 of keystone)", details)
        self.assertIn("cyborg-quota project detach --origin keystone", details)
        expected = [{"project_id": name, "parent_id": "dom"} for name in ("p1", "p2")]
        self.assertEqual(expected, self.good("project", "detach", "--origin", "keystone", "--dry-run"))
        self.assertEqual(expected, self.good("project", "detach", "--origin", "keystone"))
        self.assertEqual([], self.good("project", "detach", "--origin", "keystone"))
        self.assertEqual((0, "no edge is ignored or will be replaced"), self.checked())

    def test_keep(self) -> None:
        self.assertEqual({0}, {row["depth"] for row in self.good("limit", "tree")})
        self.good("project", "detach", "--origin", "keystone", "--keep")
        depths = {row["project_id"]: row["depth"] for row in self.good("limit", "tree")}
        self.assertEqual({"dom": 0, "p1": 1, "p2": 1}, depths)

    def test_an_unknown_origin(self) -> None:
        self.assertIn("invalid choice: 'nova'", self.misused("project", "detach", "--origin", "nova"))
        self.misused("project", "detach")

    def test_the_expirer_warns_once_at_its_start(self) -> None:
        self.configure(f"[limits]\ndriver = database\n[DEFAULT]\nlog_file = {self.log}\n[quota]\nexpire_interval = 1")
        process = self.spawn(program="cyborg-quota-expirer", start_new_session=True)
        deadline = time.monotonic() + 60
        while not (self.log.exists() and "project detach" in self.log.read_text()):
            self.assertIsNone(process.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        lines = [line for line in self.log.read_text().splitlines() if "previous limit driver" in line]
        self.assertEqual(1, len(lines))
        self.assertIn(" WARNING ", lines[0])
        self.assertNotIn("Traceback", self.log.read_text())
