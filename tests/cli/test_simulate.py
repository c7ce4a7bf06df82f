# SPDX-License-Identifier: Apache-2.0
"""limit simulate: it refuses what a replay through the engine refuses, under each enforcement model."""

from __future__ import annotations

import datetime
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

import yaml

from cyborg_quota.replay.simulation import Comparison
from tests import doc_examples, fixtures
from tests.cli import base
from tests.cli.test_replay import EXAMPLE

COLUMNS = [
    "project_id",
    "resource",
    "refused_before",
    "refused_after",
    "peak",
    "limit_before",
    "limit_after",
    "bound_by",
]
TREE: dict[str, Any] = {
    "defaults": {"gpu": 9, "fpga": 4},
    "projects": [
        {
            "id": "top",
            "limits": {"gpu": 8, "fpga": -1},
            "children": [
                {"id": "left", "limits": {"gpu": 5, "fpga": 3}},
                {"id": "right", "limits": {"gpu": 3, "fpga": 2}},
            ],
        },
        {"id": "alone", "limits": {"gpu": 2}},
    ],
}


def random_trace(seed: int, events: int = 150) -> list[str]:
    """Lines of a trace that the engine accepts; some reserves repeat a live one."""
    chooser = random.Random(seed)
    lines, live = [], {}
    for number in range(events):
        project = chooser.choice(["top", "left", "right", "alone", "unknown"])
        if not live or chooser.random() < 0.45:
            consumer, amount = f"c{number}", chooser.choice([1, 1, 2, 3])
            live[consumer] = [project, chooser.choice(["gpu", "gpu", "fpga"]), amount, "reserve"]
            event = "reserve"
        else:
            consumer = chooser.choice(sorted(live))
            events_after = {"reserve": ["commit", "commit", "rollback", "release", "reserve"]}
            event = chooser.choice(events_after.get(live[consumer][3], ["release", "commit"]))
        project, resource, amount, state = live[consumer]
        lines.append(f"{number},{event},{consumer},{project},{resource},{amount}")
        live[consumer][3] = "commit" if event == "commit" else state
        if event in ("rollback", "release"):
            del live[consumer]
    return lines


class SimulateCase(base.CliTestCase):
    options = base.DATABASE

    def limits(self, content: Any) -> str:
        return self.write_file("new.yaml", yaml.safe_dump(content))

    def simulate(self, content: Any, against: str, *argv: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.good("simulate", self.limits(content), "--against", against, *argv) or []
        return rows


class SameAsReplayTest(SimulateCase):
    """The reference is a replay of the same trace, through the engine, on a ledger that has the new limits."""

    tree = TREE

    def replay(self, trace: str, serial: int) -> dict[tuple[str, str], int]:
        """The number of refused claims of a replay on an empty ledger with ``tree``, by (project_id, resource)."""
        url = fixtures.fresh_url("sqlite", f"reference{serial}")
        self.configure(f"sqlite_synchronous = false\n{self.options}", url=url)
        self.prepare("db sync", f"limits import {self.limits(self.tree)}")
        ended = self.call("replay", trace, "-f", "json")
        self.assertEqual(0, ended.status, ended.err)
        self.configure(self.options)
        return {(row["project_id"], row["resource"]): row["refused"] for row in ended.json["projects"]}

    def test_each_enforcement_model(self) -> None:
        total = 0
        for serial, model in enumerate(("flat", "strict_two_level", "strict_hierarchy")):
            self.options = f"[limits]\ndriver = database\nenforcement_model = {model}"
            self.configure(self.options)
            for seed in range(fixtures.MORE):
                trace = self.trace(*random_trace(10 * serial + seed))
                rows = self.simulate(self.tree, trace)
                simulated = {(row["project_id"], row["resource"]): row["refused_after"] for row in rows}
                expected = self.replay(trace, 10 * serial + seed)
                self.assertEqual(expected, {key: simulated[key] for key in expected}, (model, seed))
                self.assertEqual(0, sum(simulated[key] for key in simulated.keys() - expected.keys()))
                total += sum(expected.values())
        self.assertGreater(total, 10)

    def test_limits_that_are_missing(self) -> None:
        """Where no limit is set, the engine refuses; with [limits] missing = unlimited it does not."""
        trace = self.trace("0,reserve,a,p,tpu,1", "0,reserve,b,p,gpu,1")
        names = ("resource", "refused_before", "refused_after", "limit_before", "limit_after")
        for missing, expected in (
            ("refuse", {("gpu", 1, 0, None, 5), ("tpu", 1, 1, None, None)}),
            ("unlimited", {("gpu", 0, 0, -1, 5), ("tpu", 0, 0, -1, -1)}),
        ):
            self.configure(f"{base.DATABASE}missing = {missing}")
            rows = self.simulate({"defaults": {"gpu": 5}}, trace)
            self.assertEqual(expected, {tuple(row[name] for name in names) for row in rows})


class RowsTest(SimulateCase):
    options = base.DATABASE + "missing = unlimited"

    def test_the_shipped_trace(self) -> None:
        rows = self.simulate({"defaults": {"gpu": 4}}, EXAMPLE)
        self.assertEqual(COLUMNS, list(rows[0]))
        refused = {(row["project_id"], row["resource"]): row["refused_after"] for row in rows}
        self.assertEqual({("edge", "gpu"): 1, ("film", "gpu"): 1, ("lab", "gpu"): 1, ("edge", "fpga"): 0}, refused)
        self.assertEqual(0, rows[-1]["refused_after"])
        self.assertEqual([], self.good("list", "--usage"))

    def test_the_limit_of_an_ancestor_binds(self) -> None:
        self.call("limits", "import", self.limits(TREE))
        trace = self.trace(
            "0,reserve,a,left,gpu,2", "1,commit,a,left,gpu,2", "2,reserve,b,right,gpu,2", "3,reserve,c,left,gpu,1"
        )
        new = {"projects": [{"id": "top", "limits": {"gpu": 3}, "children": [
            {"id": "left", "limits": {"gpu": 2}}, {"id": "right", "limits": {"gpu": 1}}]}]}  # fmt: skip
        self.assertEqual(
            {
                ("right", "gpu", 0, 1, 2, 3, 1, "right"),
                ("left", "gpu", 0, 1, 3, 5, 2, "left"),
                ("top", "gpu", 0, 0, 5, 8, 3, None),
            },
            {tuple(row[name] for name in COLUMNS) for row in self.simulate(new, trace) if row["resource"] == "gpu"},
        )
        self.configure("[limits]\ndriver = database\nenforcement_model = strict_two_level\nmissing = unlimited")
        new["projects"][0]["children"] = [{"id": "left"}, {"id": "right"}]
        ended = self.call("simulate", self.limits(new), "--against", trace, "-f", "json")
        self.assertIn("cyborg-quota: Not allowed: the limit of left in gpu would be 5", ended.err)
        bound_by = {row["project_id"]: row["bound_by"] for row in ended.json}
        self.assertEqual((1, "top"), (ended.status, bound_by["right"]), "although the model does not allow the limits")

    def test_a_worse_project_comes_first(self) -> None:
        trace = self.trace(
            *(
                f"0,reserve,{project}{number},{project},gpu,1"
                for project, count in (("a", 3), ("b", 5), ("c", 2))
                for number in range(count)
            )
        )
        rows = self.simulate({"defaults": {"gpu": 2}}, trace)
        self.assertEqual([("b", 3), ("a", 1), ("c", 0)], [(row["project_id"], row["refused_after"]) for row in rows])

    def test_other_limit_drivers(self) -> None:
        for options, before in (("driver = noop", 0), ("driver = config\nlimits = gpu:4", 3)):
            self.configure(f"[limits]\n{options}")
            rows = self.simulate({"defaults": {"gpu": 0}}, EXAMPLE)
            self.assertEqual(before, sum(row["refused_before"] for row in rows))
            self.assertLess(10, sum(row["refused_after"] for row in rows))

    def test_against_the_ledger(self) -> None:
        self.prepare(*["reserve --project p gpu=2"] * 3)
        (row,) = self.simulate({"defaults": {"gpu": 3}}, "ledger")
        self.assertEqual(["p", "gpu", 0, 2, 6, -1, 3, "p"], list(row.values()))
        self.assertEqual([row], self.simulate({"defaults": {"gpu": 3}}, "ledger", "--since", "1h"))


class OverridesTest(SimulateCase):
    def setUp(self) -> None:
        super().setUp()
        self.now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        self.prepare("set --default gpu=10", "project set p --no-parent", "reserve --project p gpu=4")

    def override(self, limit: int, start: float, end: float) -> dict[str, Any]:
        """An entry of the file."""
        times = [f"{(self.now + datetime.timedelta(hours=hours)).isoformat()}Z" for hours in (start, end)]
        return {"resource": "gpu", "limit": limit, "from": times[0], "until": times[1]}

    def test_no_override_is_applied(self) -> None:
        """One line says so, if there are any."""
        new = self.limits({"projects": [{"id": "p", "overrides": [self.override(0, -20, 24)]}]})
        for _ in range(2):
            for against in ("ledger", self.trace("0,reserve,a,p,gpu,4")):
                ended = self.call("simulate", new, "--against", against, "-f", "json")
                [row] = ended.json
                self.assertEqual((0, 0, 10), (ended.status, row["refused_after"], row["limit_after"]))
                self.assertRegex(ended.err, r"\A.*Overrides are not applied.*\n\Z")
            self.prepare(f"limits import {new}")
            new = self.limits({})
        self.refused_each(2, {f"simulate {new} --against {self.directory}/none": "No such file"})

    def test_limits_per_pod_are_not_applied(self) -> None:
        """A trace does not say in which pod a claim is. One line says so."""
        trace = self.trace("0,reserve,a,p,gpu,4")
        new = self.limits({"projects": [{"id": "p", "pods": {"p1": {"gpu": 1}}}]})
        ended = self.call("simulate", new, "--against", trace, "-f", "json")
        self.assertEqual((0, 0), (ended.status, ended.json[0]["refused_after"]))
        self.assertRegex(ended.err, r"\A.*Limits per pod are not applied.*\n\Z")
        self.assertEqual("", self.call("simulate", self.limits({}), "--against", trace).err)

    def test_the_model_validates_the_overrides(self) -> None:
        self.configure("[limits]\ndriver = database\nenforcement_model = strict_hierarchy")
        self.prepare("project set child --parent p")
        content = {"projects": [{"id": "p", "children": [{"id": "child", "overrides": [self.override(11, 1, 2)]}]}]}
        ended = self.call("simulate", self.limits(content), "--against", "ledger", "-f", "json")
        self.assertEqual((1, 0), (ended.status, ended.json[0]["refused_after"]), ended.err)
        self.assertIn("Not allowed: the limits in gpu of the children of p would sum up to 11", ended.err)


class BadInputTest(SimulateCase):
    def test_bad_arguments(self) -> None:
        new = self.limits({"defaults": {"gpu": 3}})
        self.misused("simulate", new)
        for bad in ("-1d", "0d", "1", "d", "99999999999d", "400000d"):
            self.misused("simulate", new, "--against", "ledger", f"--since={bad}")
        nowhere = self.directory / "none"
        self.refused_each(
            2,
            {
                f"simulate {new} --against {EXAMPLE} --since 1d": "--since needs",
                f"simulate {new} --against {nowhere}": "No such file",
                f"simulate {nowhere} --against {EXAMPLE}": "Cannot read",
                f"simulate {new} --against {EXAMPLE} --chart x.jpg": "--chart",
                "trace export --since yesterday": "yesterday",
                f"trace export {self.directory}": "Cannot write",
                f"trace export {nowhere}/x.csv": "Cannot write",
            },
        )


class HalfOfThePeakTest(SimulateCase):
    """The commands of what-if.rst, on a small trace. (The page's trace is not part of the source tree.)"""

    def test_the_example_of_the_documentation(self) -> None:
        self.configure()
        trace = self.trace("0,reserve,a,p,gpu,3", "1,reserve,b,p,gpu,2", "2,release,a,p,gpu,3", "3,reserve,c,q,gpu,1")
        (self.directory / "gpu_attach_trace.csv").write_text(pathlib.Path(trace).read_text())
        programs = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
        environment = {**os.environ, "PATH": programs, "OS_DATABASE__CONNECTION": self.url, "HOME": str(self.directory)}
        for shown in doc_examples.commands_of(__name__):
            line = shown.command + re.sub("(?m)^> ", "", shown.output)
            subprocess.run(
                ["sh", "-c", line], cwd=self.directory, env=environment, stdout=subprocess.DEVNULL, check=True
            )
        self.assertEqual(b"\x89PNG", (self.directory / "half.png").read_bytes()[:4])
        rows = self.simulate(yaml.safe_load((self.directory / "half.yaml").read_text()), trace)
        found = [tuple(row[name] for name in ("project_id", "refused_after", "peak", "limit_after")) for row in rows]
        self.assertEqual([("p", 1, 5, 2), ("q", 1, 1, 0)], found)


class ExportTest(SimulateCase):
    def test_a_replay_of_the_export(self) -> None:
        self.configure()
        self.prepare(f"replay {EXAMPLE}")
        before = self.good("list", "--usage")
        path = self.directory / "export.csv"
        self.done("trace", "export", str(path))
        for argv in ((), ("-",)):
            self.assertEqual(path.read_text(), self.call("trace", "export", *argv).out)
        self.configure(url=fixtures.fresh_url("sqlite", "exported"))
        self.prepare("db sync", f"replay {path}")
        self.assertEqual(before, self.good("list", "--usage"))

    def test_a_process_that_is_killed_leaves_no_file(self) -> None:
        """The temporary file has no name, also while a simulation reads it."""
        self.configure("[limits]\ndriver = noop")
        self.good("reserve", "--project", "p", "gpu=1")
        self.configure("[limits]\ndriver = database")
        self.useFixture(base.fx.MockPatchObject(tempfile, "tempdir", str(self.directory / "temporary")))
        (self.directory / "temporary").mkdir()
        add, names = Comparison.add, list[str]()

        def note(comparison: Comparison, *event: Any) -> None:
            names.extend(os.listdir(self.directory / "temporary"))
            add(comparison, *event)

        with mock.patch.object(Comparison, "add", note):
            self.simulate({"defaults": {"gpu": 0}}, "ledger")
        self.assertEqual([], names)
