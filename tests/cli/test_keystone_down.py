# SPDX-License-Identifier: Apache-2.0
"""The commands and the expirer, with limits from a Keystone that cannot be reached (its port is closed)."""

from __future__ import annotations

import signal
import time

from tests.cli import base
from tests.servers import machine

KEYSTONE = """
[limits]
driver = keystone
[oslo_limit]
timeout = 1
auth_type = password
auth_url = http://127.0.0.1:{port}/v3
username = cyborg
password = not-to-be-seen
system_scope = all
user_domain_id = default
endpoint_id = cyborg
[DEFAULT]
log_file = {log}
[quota]
expire_interval = 1
"""


class KeystoneDownTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        for project_id, amount in (("p1", 2), ("p2", 3)):
            self.good("reserve", "--project", project_id, "--consumer", "c", f"gpu={amount}")
        self.good("commit", "--project", "p1", "--consumer", "c")
        self.port = machine.free_port()
        self.log = self.directory / "expirer.log"
        self.configure(KEYSTONE.format(port=self.port, log=self.log))

    def test_commands_that_need_a_limit_fail(self) -> None:
        for line in ("check gpu=1 p1", "show p1", "show --usage p1", "list --usage"):
            error = self.refused(1, *line.split())
            self.assertIn("Limits have been unavailable", error)
            self.assertNotIn("not-to-be-seen", error)

    def test_commands_that_need_no_limit(self) -> None:
        for line in ("db sync", "audit", "expire", "reservation list", "release --project p2 --consumer c"):
            ended = self.call(*line.split())
            self.assertEqual((0, ""), (ended.status, ended.err), line)

    def test_the_expirer_starts_and_expires(self) -> None:
        self.make_overdue()
        process = self.spawn(program="cyborg-quota-expirer", start_new_session=True)
        deadline = time.monotonic() + 60
        while not (self.log.exists() and "Expired 1 reservations." in self.log.read_text()):
            self.assertIsNone(process.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(0, process.returncode)
        self.assertNotIn("Traceback", self.log.read_text())


class ProjectNamesTest(base.CliTestCase):
    """The limits are in the database; Keystone has the names of the projects, and cannot be reached."""

    def setUp(self) -> None:
        super().setUp()
        port = machine.free_port()
        self.configure(KEYSTONE.format(port=port, log="").replace("driver = keystone", "driver = database"))
        self.reason = f"Projects cannot be looked up: Keystone at http://127.0.0.1:{port}/v3 cannot be reached"
        self.call("set", "--default", "gpu=5")
        self.call("set", "--force", "gpu=7", "p1")
        self.good("reserve", "--project", "p1", "--consumer", "c", "gpu=1")

    def test_a_name_needs_keystone(self) -> None:
        for argv in (
            ["list", "--usage", "--project"],
            ["show", "--ancestors"],
            ["release", "--consumer", "c", "--project"],
            ["check", "gpu=1"],
        ):
            error = self.refused(1, *argv, "physics")
            self.assertIn(self.reason, error)
            self.assertNotIn("--force", error)
            self.assertNotIn("not-to-be-seen", error)
        self.assertIn(self.reason, self.refused(1, "project", "list", "--orphans"))

    def test_an_id_does_not(self) -> None:
        for project_id in ("p1", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"):
            self.good("show", "--usage", project_id)
        self.good("show", "--ancestors", "p1")
        self.assertEqual(0, self.call("release", "--project", "p1", "--consumer", "c").status)

    def test_a_limit_or_a_place_in_the_tree_needs_keystone_or_force(self) -> None:
        for argv in (
            ["set", "gpu=8"],
            ["project", "set", "--no-parent"],
        ):
            error = self.refused(1, *argv, "p1")
            self.assertIn(self.reason, error)
            self.assertIn("To use an id without Keystone, add --force.", error)
            self.assertEqual((0, ""), (self.call(*argv, "p1", "--force").status, self.call("list", "--over").err))
        self.assertEqual(0, self.call("unset", "--resource", "gpu", "p1").status)

    def test_a_file_needs_keystone_or_force(self) -> None:
        file = self.directory / "limits.yaml"
        file.write_text("projects: [{id: p2}]")
        self.assertIn(self.reason, self.refused(1, "limits", "import", str(file)))
        self.good("limits", "import", str(file), "--force")
        self.assertEqual([], self.good("limits", "import", str(file)), "without a change, nothing is looked up")

    def test_tables_leave_names_out(self) -> None:
        ended = self.call("list", "--names", "-f", "json")
        self.assertEqual(0, ended.status)
        self.assertRegex(ended.err, r"\AWARNING: The names of the projects are unknown: [^\n]*\n\Z")
        self.assertEqual([None, None], [row["project_name"] for row in ended.json])
