# SPDX-License-Identifier: Apache-2.0
"""The commands and the expirer, with limits from a Keystone that cannot be reached (its port is closed)."""

from __future__ import annotations

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
"""


class KeystoneDownTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.prepare(
            "reserve --project p1 --consumer c gpu=2",
            "reserve --project p2 --consumer c gpu=3",
            "commit --project p1 --consumer c",
        )
        self.configure(KEYSTONE.format(port=machine.free_port()))

    def test_commands_that_need_a_limit_fail(self) -> None:
        for line in ("check gpu=1 p1", "show p1", "show --usage p1", "list --usage"):
            error = self.refused(1, *line.split())
            self.assertIn("Limits have been unavailable", error)
            self.assertNotIn("not-to-be-seen", error)

    def test_commands_that_need_no_limit(self) -> None:
        self.make_overdue()
        self.assertEqual("expired 1\npurged 0\n", self.call_expirer("--once").out)
        for line in ("db sync", "audit", "expire", "reservation list", "release --project p1 --consumer c"):
            ended = self.call(*line.split())
            self.assertEqual((0, ""), (ended.status, ended.err), line)


class ProjectNamesTest(base.CliTestCase):
    """The limits are in the database; Keystone has the names of the projects, and cannot be reached."""

    def setUp(self) -> None:
        super().setUp()
        port = machine.free_port()
        self.configure(KEYSTONE.format(port=port).replace("driver = keystone", "driver = database"))
        self.reason = f"Projects cannot be looked up: Keystone at http://127.0.0.1:{port}/v3 cannot be reached"
        self.prepare("set --default gpu=5", "set --force gpu=7 p1", "reserve --project p1 --consumer c gpu=1")

    def test_a_name_needs_keystone(self) -> None:
        for argv in (
            ["list", "--usage", "--project"],
            ["show", "--ancestors"],
            ["release", "--consumer", "c", "--project"],
            ["check", "gpu=1"],
        ):
            error = self.refused(1, *argv, "physics")
            self.assertIn(self.reason, error)
            self.assertNotRegex(error, "--force|not-to-be-seen")
        self.assertIn(self.reason, self.refused(1, "project", "list", "--orphans"))

    def test_an_id_does_not_and_tables_leave_names_out(self) -> None:
        for project_id in ("p1", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"):
            self.good("show", "--usage", project_id)
        self.prepare("show --ancestors p1", "release --project p1 --consumer c")
        ended = self.call("list", "--names", "-f", "json")
        self.assertEqual((0, [None, None]), (ended.status, [row["project_name"] for row in ended.json]))
        self.assertRegex(ended.err, r"\AWARNING: The names of the projects are unknown: [^\n]*\n\Z")

    def test_a_change_needs_keystone_or_force(self) -> None:
        for argv in (
            ["set", "gpu=8"],
            ["project", "set", "--no-parent"],
        ):
            error = self.refused(1, *argv, "p1")
            self.assertIn(self.reason, error)
            self.assertIn("To use an id without Keystone, add --force.", error)
            self.assertEqual((0, ""), (self.call(*argv, "p1", "--force").status, self.call("list", "--over").err))
        self.prepare("unset --resource gpu p1")
        file = self.write_file("limits.yaml", "projects: [{id: p2}]")
        self.refused_each(1, {f"limits import {file}": self.reason})
        self.prepare(f"limits import {file} --force")
        self.assertEqual([], self.good("limits", "import", file), "without a change, nothing is looked up")
