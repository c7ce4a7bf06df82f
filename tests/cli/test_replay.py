# SPDX-License-Identifier: Apache-2.0
"""replay, through the command line: totals, refusals, invalid traces, continuation."""

from __future__ import annotations

import pathlib
from typing import Any

import fixtures as fx
import yaml

from cyborg_quota import QuotaEngine, exceptions
from tests.cli import base

EXAMPLE = str(pathlib.Path(__file__).parents[2] / "etc/cyborg_quota/traces/example.csv")
TOTALS = ["events", "admitted", "refused", "committed", "rolled_back", "released", "skipped", "used", "reserved"]


class ReplayCase(base.CliTestCase):
    def replay(self, *argv: str) -> dict[str, Any]:
        """Return the report, whatever was printed on stderr."""
        ended = self.call("replay", *argv, "-f", "json")
        self.assertEqual(0, ended.status, ended.err)
        report: dict[str, Any] = ended.json
        return report

    def totals(self, report: dict[str, Any]) -> list[int]:
        return [report[name] for name in TOTALS]


class ReplayTest(ReplayCase):
    def test_the_shipped_trace(self) -> None:
        report = self.good("replay", EXAMPLE, "--limit", "gpu=4")
        self.assertEqual([42, 14, 3, 11, 2, 6, 6, 8, 1], self.totals(report))
        self.assertEqual([*TOTALS, "seconds", "events_per_second", "projects"], list(report))
        columns = ["project_id", "resource", "limit", "admitted", "refused", "used", "reserved"]
        self.assertEqual(dict(zip(columns, ["edge", "fpga", -1, 3, 0, 1, 0], strict=True)), report["projects"][0])
        held = "project_id resource used reserved"
        of_report = [tuple(row[name] for name in held.split()) for row in report["projects"]]
        self.assertEqual(self.columns("list --usage", held), of_report)
        self.assertEqual([], self.good("audit"))

    def test_which_limits_apply(self) -> None:
        """Those of the configuration, unless some are given; a second run must have those of the first."""
        self.limit("gpu:0,fpga:0")
        for _ in range(2):
            report = self.replay(EXAMPLE, "--limit", "gpu=100")
            self.assertEqual((0, -1), (report["refused"], report["projects"][0]["limit"]))
        for other in (["--limit", "gpu=5"], [], ["--limit", "gpu=100", "--limit", "fpga=1"]):
            self.assertIn("another database", self.refused(2, "replay", EXAMPLE, *other))
        self.configure(base.DATABASE)
        path = self.trace("0,reserve,a,p,gpu,2", "1,reserve,b,p,gpu,2")
        self.prepare("set --default gpu=4", f"replay {path}")
        self.assertEqual("nothing to do", self.call("replay", path).err.strip()[-13:])
        self.good("set", "--default", "gpu=1")
        self.assertIn("another database", self.refused(2, "replay", path))

    def test_every_format(self) -> None:
        argv = ("replay", EXAMPLE, "--limit", "gpu=4")
        table = self.call(*argv).out
        self.assertIn("| edge       | fpga     | unlimited |        3 |       0 |    1 |        0 |", table)
        self.assertRegex(table, r"\| admitted +\| 14 +\|")
        report = yaml.safe_load(self.call(*argv, "-f", "yaml").out)
        self.assertEqual([42, 14, 3], self.totals(report)[:3])
        values = self.call(*argv, "-f", "value", "-c", "events", "-c", "used").out
        self.assertEqual("42\n8\n", values)

    def test_a_trace_without_events(self) -> None:
        path = self.trace()
        for _ in range(2):
            report = self.replay(path)
            self.assertEqual(([0] * 9, []), (self.totals(report), report["projects"]))

    def test_its_resources_need_not_be_registered(self) -> None:
        report = self.replay(self.trace("0,reserve,c,p,tpu.v5,3", "1,commit,c,p,tpu.v5,3"), "--limit", "tpu.v5=3")
        self.assertEqual([2, 1, 0, 1, 0, 0, 0, 3, 0], self.totals(report))

    def test_with_a_provider(self) -> None:
        """A refusal because of a limit is reported first. A repeated run tells both kinds of refusals apart.

        A repeated reserve takes no capacity.
        """
        self.prepare("provider create n1", "inventory set n1 gpu=2")
        reserves = [f"{number},reserve,c{number},p,gpu,1" for number in range(3)]
        repeated = ["4,reserve,c4,p,gpu,1"] * 2
        trace = self.trace(*reserves, "3,release,c0,p,gpu,1", *repeated, "5,reserve,c5,q,gpu,9")
        counts = {"admitted": 4, "refused": 2, "placed": 3, "over_capacity": 1}
        for _ in range(2):
            report = self.replay(trace, "--provider", "any", "--limit", "gpu=5")
            self.assertEqual(counts, {name: report[name] for name in counts})
        self.assertEqual([], self.good("audit"))
        self.assertIn("another database", self.refused(2, "replay", trace, "--provider", "n1", "--limit", "gpu=5"))

    def test_what_it_reserves_does_not_expire(self) -> None:
        """It may be continued days later, and a trace has times of its own."""
        self.configure("[quota]\nreservation_expire = 1")
        self.replay(self.trace("0,reserve,a,p,gpu,1"))
        self.assertGreater(self.good("reservation", "list")[0]["expire"], "2100")


class StoppedReplayTest(ReplayCase):
    def test_bad_arguments(self) -> None:
        self.misused("replay")
        for bad in ("gpu", "gpu=x", "gpu=-2", "=1", "gpu=4611686018427387905"):
            self.misused("replay", EXAMPLE, "--limit", bad)
        self.refused_each(
            2,
            {
                f"replay {EXAMPLE} --limit gpu=1 --limit gpu=2": "given twice",
                f"replay {self.directory}/none.csv": "No such file",
                "replay /dev/null": "regular file",
            },
        )

    def test_events_before_an_invalid_line_are_kept(self) -> None:
        path = self.trace("0,reserve,a,p,gpu,1", "1,commit,a,p,gpu,1", "2,steal,a,p,gpu,1")
        for _ in range(2):
            line = self.refused(2, "replay", path)
            self.assertIn("trace.csv, line 4: event 'steal' is none of", line)
            self.assertEqual(1, self.good("list", "--usage")[0]["used"])

    def test_a_refused_event_is_named_by_its_line(self) -> None:
        for reason, *lines in (
            ("line 3: Consumer 'a' already holds gpu=1", "0,reserve,a,p,gpu,1", "1,reserve,a,p,gpu,2"),
            ("line 4: Reservation", "0,reserve,b,p,gpu,1", "1,rollback,b,p,gpu,1", "2,commit,b,p,gpu,1"),
            ("line 2: Reservation, consumer or group 'nobody' was not found", "0,commit,nobody,p,gpu,1"),
            ("line 3: Project p2 cannot hold", "0,reserve,x,p2,gpu,2147483647", "0,reserve,y,p2,gpu,1"),
        ):
            path = self.trace(*lines)
            for _ in range(2):
                self.assertIn(f"trace.csv, {reason}", self.refused(1, "replay", path))

    def test_an_outage_is_named_by_its_line_and_can_be_continued(self) -> None:
        path = self.trace("0,reserve,a,p,gpu,1", "1,commit,a,p,gpu,1", "2,reserve,b,p,gpu,1")
        gone = fx.MockPatchObject(
            QuotaEngine, "commit", side_effect=exceptions.DatabaseUnavailable("the server is away", 6.0)
        )
        with gone:
            self.assertIn("line 3: The database did not complete", self.refused(1, "replay", path))
        ended = self.call("replay", path, "-f", "json")
        self.assertEqual("cyborg-quota: resumed after event 1\n", ended.err)
        self.assertEqual([3, 2, 0, 1, 0, 0, 0, 1, 1], self.totals(ended.json))

    def test_an_interrupt_prints_how_to_continue(self) -> None:
        path = self.trace("0,reserve,a,p,gpu,1", "1,commit,a,p,gpu,1")
        with fx.MockPatchObject(QuotaEngine, "commit", side_effect=KeyboardInterrupt):
            ended = self.call("replay", path)
        self.assertEqual((130, ""), (ended.status, ended.out))
        self.assertEqual("cyborg-quota: interrupted after 1 events; run the command again to resume\n", ended.err)
        self.assertEqual([2, 1, 0, 1, 0, 0, 0, 1, 0], self.totals(self.replay(path)))


class ChartTest(ReplayCase):
    def test_a_broken_chart_library_is_reported_before_the_replay(self) -> None:
        """It is not installed, or does not fit the installed numpy."""

        def fail(name: str) -> None:
            raise ImportError(f"{name}: numpy.core.multiarray failed to import")

        self.useFixture(fx.MonkeyPatch("importlib.import_module", fail))
        line = self.refused(2, "replay", EXAMPLE, "--chart", str(self.directory / "chart.png"))
        self.assertIn("install cyborg_quota[chart] (matplotlib.pyplot: numpy.core.multiarray", line)
        self.assertEqual([], self.good("list", "--usage"))

    def test_the_chart_is_a_png(self) -> None:
        """matplotlib is part of the test extra, so this test is not skipped."""
        path = self.directory / "chart.png"
        for lines in ([], ["0,reserve,_a,$p$,gpu,1"], None):
            trace = EXAMPLE if lines is None else self.trace(*lines)
            ended = self.call("replay", trace, "--limit", "gpu=4", "--chart", str(path), "-f", "json")
            self.assertEqual(0, ended.status, ended.err)
            self.assertEqual(b"\x89PNG", path.read_bytes()[:4])
            path.unlink()
