# SPDX-License-Identifier: Apache-2.0
"""Simulates a trace in memory under half of each project's peak, as `simulate` does."""

from __future__ import annotations

import pathlib
import time

from benchmarks.report import Figure, Report
from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree
from cyborg_quota.limits.models import StrictHierarchy
from cyborg_quota.limits.timeline import LimitSet
from cyborg_quota.replay.simulation import Comparison
from cyborg_quota.replay.traces import Trace
from cyborg_quota.types import ResourceKey

MOST_SECONDS = 2.0
"""For 18,836 events."""


def simulate(path: pathlib.Path, limits: LimitSet) -> tuple[Comparison, float]:
    """Compare no limits with ``limits``; returns the comparison and the seconds of processor time.

    They include reading the file. (The simulation waits for nothing, so on an idle machine they are the elapsed time.)
    """
    none = LimitSet.of_every_project({})
    comparison = Comparison(none, limits, counters_of=lambda resource, _pod: [ResourceKey(resource)])
    begin = time.process_time()
    for event in Trace(str(path)):
        comparison.add(event)
    return comparison, time.process_time() - begin


def half_of_peaks(path: pathlib.Path) -> LimitSet:
    """A limit of half the peak (rounded down) for each project and resource of the trace."""
    comparison, _ = simulate(path, LimitSet.of_every_project({}))
    halves = {key: peak // 2 for key, peak in comparison.before.peak.items()}
    return LimitSet(LimitTree({}, halves, {}, InitialLimits()), StrictHierarchy(), missing_is_unlimited=True)


def run(report: Report, path: pathlib.Path, events: int) -> None:
    """Measure one simulation: a median of several would hide the first, which is what a user waits for."""
    comparison, seconds = simulate(path, half_of_peaks(path))
    refused = comparison.after.refused.total()
    case = f"trace, {events:,} events, {refused:,} refused"
    report.details["simulation"] = {"seconds": seconds, "refused": refused}
    report.add(Figure("memory", case, "simulated, processor time", seconds, "s", MOST_SECONDS, None, True))
