# SPDX-License-Identifier: Apache-2.0
"""The commands of pods: their output, and their exit statuses."""

from __future__ import annotations

import fixtures as fx

from tests.cli import base

COLUMNS = ["name", "availability_zone", "affinity", "state", "weight", "threshold", "endpoint", "region"]
HISTORY_COLUMNS = ["id", "project_id", "pod", "zone", "affinity", "starts_at", "ends_at", "reason"]
USAGE_COLUMNS = ["pod", "resource", "capacity", "used", "measured_at", "age_seconds"]


class PodTest(base.CliTestCase):
    def test_pods(self) -> None:
        options = ("--zone", "z", "--affinity", "b=2", "--affinity", "a=1", "--weight", "3", "--threshold", "90")
        added = self.good("pod", "create", "p1", *options, "--endpoint", "cloud1", "--region", "r1")
        self.assertEqual(["p1", "z", "a=1,b=2", "available", 3, 90, "cloud1", "r1"], [added[name] for name in COLUMNS])
        self.assertEqual([{**added, "usage": None, "measured_at": None}], self.good("pod", "list"))
        changed = self.good("pod", "set", "p1", "--state", "disabled", "--no-affinity", "--no-endpoint")
        self.assertEqual(
            ("disabled", "", None, 3), tuple(changed[n] for n in ("state", "affinity", "endpoint", "weight"))
        )
        self.assertEqual("maintenance", self.good("pod", "set", "--state", "maintenance", "p1")["state"])
        enabled = self.good("pod", "set", "--state", "available", "p1")
        self.assertEqual(enabled, self.good("pod", "show", "p1"))
        self.assertIn("exists", self.refused(1, "pod", "create", "p1"))
        self.assertIn("Nothing to change", self.refused(2, "pod", "set", "p1"))
        self.assertIn("as in purpose=CAD", self.call("pod", "create", "p2", "--affinity", "x").err)
        self.assertIn("given twice", self.refused(2, "pod", "create", "p2", "--affinity", "x=1", "--affinity", "x=2"))
        self.assertIn("threshold", self.refused(2, "pod", "create", "p2", "--threshold", "0"))
        self.assertEqual(0, self.call("pod", "delete", "p1").status)
        self.assertIn("'p1' was not found", self.refused(1, "pod", "show", "p1"))

    def test_bindings(self) -> None:
        for name in ("p1", "p2"):
            self.good("pod", "create", name)
        selected = self.good("pod", "select", "--project", "film", "gpu=2")
        self.assertEqual(["pod", "zone", "affinity", "starts_at", "reason", "endpoint", "region"], list(selected))
        self.assertEqual(("p1", None, "", "first"), tuple(selected[n] for n in ("pod", "zone", "affinity", "reason")))
        self.assertEqual("operator", self.good("pod", "binding", "set", "p2", "--project", "film")["reason"])
        history = self.good("pod", "binding", "list", "--history")
        self.assertEqual(HISTORY_COLUMNS, list(history[0]))
        self.assertEqual([("p1", False), ("p2", True)], [(one["pod"], one["ends_at"] is None) for one in history])
        page = self.good("pod", "binding", "list", "--history", "--limit", "1", "--marker", str(history[0]["id"]))
        self.assertEqual(history[1:], page)
        self.assertEqual([], self.good("pod", "binding", "list", "--pod", "p1"))
        self.assertIn("is bound", self.refused(1, "pod", "delete", "p2").replace("are bound", "is bound"))
        self.assertEqual(0, self.call("pod", "binding", "delete", "--project", "film").status)
        self.assertIn("not bound", self.refused(1, "pod", "binding", "delete", "--project", "film"))
        self.assertIn("see `pod binding list`", self.refused(1, "pod", "binding", "delete", "--project", "film"))
        self.good("pod", "select", "--project", "film")
        ended = self.call("pod", "binding", "delete", "--pod", "p1")
        self.assertEqual((0, "", "cyborg-quota: bindings ended: 1\n"), (ended.status, ended.out, ended.err))
        for bad in ((), ("--pod", "p1", "--project", "f")):
            self.assertIn("either a project or a pod", self.refused(2, "pod", "binding", "delete", *bad))
        self.assertIn("Give neither", self.refused(2, "pod", "binding", "delete", "--pod", "p1", "--zone", "a"))
        refused = self.refused(1, "pod", "select", "--project", "f", "--zone", "x")
        self.assertIn("No available pod passes the filters (zone 'x', tags {}).", refused)
        self.assertIn("See `pod list`.", refused)
        tags = self.good("pod", "create", "p3", "--affinity", "a=1", "--affinity", "b=CAD x=2")["affinity"]
        self.assertEqual("a=1,b=CAD x=2", tags)
        self.assertEqual("p3", self.good("pod", "select", "--project", "f", "--affinity", tags)["pod"])
        self.assertIn("given twice", self.refused(2, "pod", "select", "--project", "f", "--affinity", "a=1,a=2"))

    def test_the_last_measurement(self) -> None:
        self.good("pod", "create", "p1")
        (row,) = self.good("pod", "list")
        self.assertEqual([None, None], [row["usage"], row["measured_at"]])
        self.good("provider", "create", "n1", "--pod", "p1")
        self.good("inventory", "set", "n1", "gpu=8", "fpga=2")
        self.good("pod", "measure")
        (row,) = self.good("pod", "list")
        self.assertEqual("fpga=0/2,gpu=0/8", row["usage"])
        self.assertIn(str(row["measured_at"]), self.call("pod", "list").out)

    def test_collect(self) -> None:
        self.useFixture(fx.EnvironmentVariable("OS_CLIENT_CONFIG_FILE", str(self.directory / "clouds.yaml")))
        self.assertEqual([], self.good("pod", "measure"))
        self.good("pod", "create", "p1")
        self.good("provider", "create", "n1", "--pod", "p1")
        self.good("inventory", "set", "n1", "gpu=8")
        (row,) = self.good("pod", "measure")
        self.assertEqual([*USAGE_COLUMNS, "error"], list(row))
        self.assertEqual(
            ("p1", "gpu", 8, 0, None), tuple(row[n] for n in ("pod", "resource", "capacity", "used", "error"))
        )
        self.good("pod", "create", "p2", "--endpoint", "nowhere/north")
        ended = self.call("pod", "measure", "p2", "-f", "json")
        self.assertEqual((1, ""), (ended.status, ended.err))
        self.assertEqual((None, None), (ended.json[0]["capacity"], ended.json[0]["measured_at"]))
        self.assertIn("there is no cloud 'nowhere', region 'north', in clouds.yaml", ended.json[0]["error"])
        (self.directory / "clouds.yaml").write_text("clouds: {nowhere: {auth: {password: *hunter2}}}")
        log = self.useFixture(fx.FakeLogger())
        ended = self.call("pod", "measure", "p2", "-f", "json")
        self.assertIn("there is no cloud 'nowhere'", ended.json[0]["error"])
        self.assertIn("Skipping config file", log.output)
        self.assertNotIn("hunter2", ended.out + ended.err + log.output)
        self.assertIn("was not found", self.refused(1, "pod", "measure", "p9"))
        self.assertIn("integer from 1", self.misused("pod", "measure", "--timeout", "0"))
        self.assertIn("CLOUD/REGION", self.refused(2, "pod", "set", "p1", "--endpoint", "x/"))
