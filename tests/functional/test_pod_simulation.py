# SPDX-License-Identifier: Apache-2.0
"""The simulation of pods, on generated nodes and a generated trace: each rule uses all pods before it refuses."""

from __future__ import annotations

import csv
import pathlib

import fixtures as fx
from oslotest import base

from benchmarks import pod_simulation
from cyborg_quota.replay.traces import HEADER, Trace

NODES = [1, 4, 1] * 4
TOTAL = sum(NODES)
CLAIMS = 40


class PodSimulationTest(base.BaseTestCase):
    def trace(self) -> Trace:
        """Five projects claim one accelerator every tenth of a day; the sixth part is released a day later."""
        rows = []
        for number in range(CLAIMS):
            time = number * 8640
            claim = (f"instance{number}", f"app{number % 5}", "gpu", "1")
            rows += [(time, "reserve", *claim), (time, "commit", *claim)]
            if number % 6 == 0:
                rows.append((time + 86400, "release", *claim))
        path = pathlib.Path(self.useFixture(fx.TempDir()).path) / "trace.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *sorted(rows, key=lambda row: row[0])])
        return Trace(str(path))

    def test_each_rule(self) -> None:
        trace = self.trace()
        outcomes = {rule.name: pod_simulation.simulate(rule, NODES, trace) for rule in pod_simulation.RULES}
        for outcome in outcomes.values():
            self.assertEqual((CLAIMS, TOTAL), (outcome.claims, sum(outcome.capacity.values())))
            peaks = {pod: series.peak for pod, series in outcome.use.items()}
            self.assertEqual(outcome.capacity, peaks, "all is used before a claim is refused, and nothing twice")
            self.assertGreater(outcome.refused, 0)
            self.assertIn(f" {outcome.refused} ", outcome.row)
        # A pod above its threshold gets no new binding, although the last tenth of it is free.
        self.assertGreaterEqual(outcomes["bound"].refused, outcomes["first"].refused)
        self.assertFalse(outcomes["first"].moved)
        self.assertGreater(sum(outcomes["bound"].moved.values()), 0)
        self.assertEqual({"claim", "full"}, {*outcomes["bound"].moved, "full"})
