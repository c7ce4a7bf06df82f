# SPDX-License-Identifier: Apache-2.0
"""resource list: what is counted, and where its limit comes from."""

from __future__ import annotations

from typing import Any

from tests.cli import base

QUOTA = "[quota]\nresources = gpu,fpga\nresource_descriptions = gpu:Graphics accelerator\n"


class ResourceListTest(base.CliTestCase):
    def rows(self, limits: str) -> list[list[Any]]:
        self.configure(f"{QUOTA}[limits]\n{limits}")
        rows = self.good("resource", "list")
        self.assertEqual(["resource", "description", "limit", "limit_source"], list(rows[0]))
        return [list(row.values()) for row in rows]

    def test_each_limit_driver(self) -> None:
        gpu = ["gpu", "Graphics accelerator"]
        none = "none: [limits] driver is noop"
        self.assertEqual([["fpga", "", None, none], [*gpu, None, none]], self.rows("driver = noop"))
        self.assertEqual(
            [["fpga", "", None, "none: not in [limits] limits"], [*gpu, 0, "[limits] limits"]],
            self.rows("driver = config\nlimits = gpu:0"),
        )
        self.rows("driver = database")
        self.call("set", "--default", "gpu=-1")
        self.call("set", "fpga=5", "p")
        self.assertEqual(
            [["fpga", "", None, "not set: [limits] missing = refuse"], [*gpu, -1, "set --default"]],
            self.rows("driver = database"),
        )

    def test_the_initial_limit_replaces_the_default(self) -> None:
        self.configure(f"{QUOTA}[limits]\ndriver = database\n")
        self.call("set", "--default", "gpu=100")
        rows = self.rows("driver = database\nroot_initial_limit = 7")
        self.assertEqual([[7, "[limits] root_initial_limit"]] * 2, [row[2:] for row in rows])

    def test_keystone_is_not_asked(self) -> None:
        rows = self.rows("driver = keystone")
        self.assertEqual([[None, "registered limits in Keystone"]] * 2, [row[2:] for row in rows])

    def test_pages(self) -> None:
        self.configure("[quota]\nresources = gpu,fpga,nic")

        def names(*argv: str) -> list[str]:
            return [row["resource"] for row in self.good("resource", "list", *argv)]

        self.assertEqual(["fpga", "gpu"], names("--limit", "2"))
        self.assertEqual(["nic"], names("--limit", "2", "--marker", "gpu"))
        self.assertEqual(["gpu"], names("--resource", "gpu"))
        self.assertIn("no such row", self.refused(2, "resource", "list", "--marker", "tpu"))
        self.misused("resource", "list", "--limit", "0")

    def test_a_description_that_cannot_be_parsed(self) -> None:
        self.configure("[quota]\nresource_descriptions = gpu")
        self.assertIn("resource_descriptions", self.refused(2, "resource", "list"))
