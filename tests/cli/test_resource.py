# SPDX-License-Identifier: Apache-2.0
"""resource list and resource create: what is counted, what describes it, and where its limit comes from."""

from __future__ import annotations

from typing import Any

from tests.cli import base

QUOTA = "[quota]\nresources = gpu,fpga\n"


class ResourceListTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.call("resource", "create", "gpu", "--description", "Graphics accelerator", "--unit", "device")

    def rows(self, limits: str) -> list[list[Any]]:
        self.configure(f"{QUOTA}[limits]\n{limits}")
        rows = self.good("resource", "list")
        self.assertEqual(["resource", "description", "unit", "limit", "limit_source"], list(rows[0]))
        return [list(row.values()) for row in rows]

    def test_each_limit_driver(self) -> None:
        fpga, gpu = ["fpga", None, None], ["gpu", "Graphics accelerator", "device"]
        none = "none: [limits] driver is noop"
        self.assertEqual([[*fpga, None, none], [*gpu, None, none]], self.rows("driver = noop"))
        self.assertEqual(
            [[*fpga, None, "none: not in [limits] limits"], [*gpu, 0, "[limits] limits"]],
            self.rows("driver = config\nlimits = gpu:0"),
        )
        self.rows("driver = database")
        self.prepare("set --default gpu=-1", "set fpga=5 p")
        self.assertEqual(
            [[*fpga, None, "not set: [limits] missing = refuse"], [*gpu, -1, "set --default"]],
            self.rows("driver = database"),
        )
        # The initial limit replaces the default; and Keystone is not asked.
        rows = self.rows("driver = database\nroot_initial_limit = 7")
        self.assertEqual([[7, "[limits] root_initial_limit"]] * 2, [row[3:] for row in rows])
        settings = (
            "auth_type = password\nauth_url = http://127.0.0.1:1/v3\nusername = cyborg\npassword = x\n"
            "user_domain_id = default\nsystem_scope = all\nendpoint_id = cyborg"
        )
        rows = self.rows(f"driver = keystone\n[oslo_limit]\n{settings}")
        self.assertEqual([[None, "registered limits in Keystone"]] * 2, [row[3:] for row in rows])


class ResourceCreateTest(base.CliTestCase):
    def test_other_commands_count_it(self) -> None:
        self.assertIn("Unknown resource 'storage'", self.refused(2, "reserve", "--project", "p", "storage=1"))
        created = {"resource": "storage", "description": None, "unit": "MB"}
        self.assertEqual(created, self.good("resource", "create", "storage", "--unit", "MB"))
        self.good("reserve", "--project", "p", "storage=5", "--consumer", "c")
        self.assertIn("storage", [row["resource"] for row in self.good("list", "--usage")])
        error = self.refused(2, "resize", "--project", "p", "--consumer", "c", "storage=3000000000")
        self.assertIn("storage in GB (1 GB = 1024 MB)", error)
        created["description"] = "Block storage"
        self.assertEqual(created, self.good("resource", "create", "storage", "--description", "Block storage"))
        self.assertEqual(created, self.good("resource", "create", "storage"))

    def test_what_is_refused(self) -> None:
        for option in ("--description", "--unit"):
            for text in ("", " x", "a\tb", "x" * 256):
                self.assertIn("Invalid", self.refused(2, "resource", "create", "storage", option, text))
        self.assertIn("Invalid resource", self.refused(2, "resource", "create", "x" * 256))
        self.assertNotIn("storage", [row["resource"] for row in self.good("resource", "list")])
