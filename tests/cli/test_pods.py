# SPDX-License-Identifier: Apache-2.0
"""The commands of pods: their output, and their exit statuses."""

from __future__ import annotations

import fixtures as fx

from tests.cli import base

COLUMNS = ["name", "availability_zone", "affinity", "state", "weight", "threshold", "endpoint", "region"]
HISTORY_COLUMNS = ["id", "project_id", "pod", "zone", "affinity", "starts_at", "ends_at", "reason"]
MEASURED_COLUMNS = ["pod", "resource", "capacity", "used", "measured_at", "age_seconds", "error"]


class PodTest(base.CliTestCase):
    def test_pods(self) -> None:
        options = "--zone z --affinity b=2 --affinity a=1 --weight 3 --threshold 90 --endpoint cloud1 --region r1"
        added = self.good("pod", "create", "p1", *options.split())
        self.assertEqual(["p1", "z", "a=1,b=2", "available", 3, 90, "cloud1", "r1"], [added[name] for name in COLUMNS])
        self.assertEqual([{**added, "usage": None, "measured_at": None}], self.good("pod", "list"))
        changed = self.good("pod", "set", "p1", "--state", "disabled", "--no-affinity", "--no-endpoint")
        self.assertEqual({**added, "state": "disabled", "affinity": "", "endpoint": None}, changed)
        enabled = self.good("pod", "set", "--state", "available", "p1")
        self.assertEqual({**changed, "state": "available"}, enabled)
        self.assertEqual(enabled, self.good("pod", "show", "p1"))
        self.assertIn("exists", self.refused(1, "pod", "create", "p1"))
        self.prepare("pod delete p1")
        self.assertIn("'p1' was not found", self.refused(1, "pod", "show", "p1"))

    def test_bad_input(self) -> None:
        self.refused_each(
            2,
            {
                "pod set p1": "Nothing to change",
                "pod set p1 --endpoint x/": "CLOUD/REGION",
                "pod create p2 --affinity x": "as in purpose=CAD",
                "pod create p2 --affinity x=1 --affinity x=2": "given twice",
                "pod create p2 --threshold 0": "threshold",
                "pod binding delete": "either a project or a pod",
                "pod binding delete --pod p1 --project f": "either a project or a pod",
                "pod binding delete --pod p1 --zone a": "Give neither",
                "pod select --project f --affinity a=1,a=2": "given twice",
                "pod measure --timeout 0": "integer from 1",
            },
        )
        self.assertIn("was not found", self.refused(1, "pod", "measure", "p9"))

    def test_bindings(self) -> None:
        self.prepare("pod create p1", "pod create p2")
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
        self.assertRegex(self.refused(1, "pod", "delete", "p2"), "(is|are) bound")
        self.prepare("pod binding delete --project film")
        refused = self.refused(1, "pod", "binding", "delete", "--project", "film")
        self.assertRegex(refused, "not bound.*see `pod binding list`")
        self.prepare("pod select --project film")
        ended = self.call("pod", "binding", "delete", "--pod", "p1")
        self.assertEqual((0, "", "cyborg-quota: bindings ended: 1\n"), (ended.status, ended.out, ended.err))
        refused = self.refused(1, "pod", "select", "--project", "f", "--zone", "x")
        self.assertIn("No available pod passes the filters (zone 'x', tags {}). See `pod list`.", refused)
        tags = self.good("pod", "create", "p3", "--affinity", "a=1", "--affinity", "b=CAD x=2")["affinity"]
        self.assertEqual("a=1,b=CAD x=2", tags)
        self.assertEqual("p3", self.good("pod", "select", "--project", "f", "--affinity", tags)["pod"])

    def test_usages_and_measurements(self) -> None:
        self.useFixture(fx.EnvironmentVariable("OS_CLIENT_CONFIG_FILE", str(self.directory / "clouds.yaml")))
        self.assertEqual([], self.good("pod", "measure"))
        self.prepare("pod create p1")
        self.prepare("provider create n1 --pod p1", "inventory set n1 gpu=8")
        (row,) = self.good("pod", "measure")
        self.assertEqual(MEASURED_COLUMNS, list(row))
        (listed,) = self.good("pod", "list")
        self.assertEqual(("gpu=0/8", row["measured_at"]), (listed["usage"], listed["measured_at"]))
        self.assertEqual(
            ("p1", "gpu", 8, 0, None), tuple(row[n] for n in ("pod", "resource", "capacity", "used", "error"))
        )
        self.prepare("pod create p2 --endpoint nowhere/north")
        ended = self.call("pod", "measure", "p2", "-f", "json")
        (row,) = ended.json
        self.assertEqual((1, "", None, None), (ended.status, ended.err, row["capacity"], row["measured_at"]))
        self.assertIn("there is no cloud 'nowhere', region 'north', in clouds.yaml", row["error"])
        (self.directory / "clouds.yaml").write_text("clouds: {nowhere: {auth: {password: *hunter2}}}")
        log = self.useFixture(fx.FakeLogger())
        ended = self.call("pod", "measure", "p2", "-f", "json")
        self.assertIn("there is no cloud 'nowhere'", ended.json[0]["error"])
        self.assertIn("Skipping config file", log.output)
        self.assertNotIn("hunter2", ended.out + ended.err + log.output)
