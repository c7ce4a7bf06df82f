# SPDX-License-Identifier: Apache-2.0
"""Draws a replay as a chart: the usage of projects over time, their limits, and the refusals."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cyborg_quota.replay.errors import BadUsage
from cyborg_quota.replay.totals import Key, Tally
from cyborg_quota.replay.traces import Trace
from cyborg_quota.types import UNLIMITED

MOST_PROJECTS: Final = 6
"""The number of lines that remain distinguishable in one panel; the table lists all projects."""
MOST_PANELS: Final = 4
_UNITS: Final = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "seconds"))

Points = list[tuple[float, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class _PanelData:
    """The data of one panel: points by project, the limits, and the end of the time axis."""

    held: Mapping[str, Points]
    refusals: Mapping[str, Points]
    bounds: Sequence[int]
    end: float


def require(path: str) -> None:
    """Raise BadUsage if no chart can be drawn to ``path``; called before the replay, which may take hours."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BadUsage("--chart needs matplotlib: pip install 'cyborg_quota[chart]'")
    try:
        importlib.import_module("matplotlib.pyplot")
    except ImportError as error:  # installed, but incompatible with another package (often numpy)
        raise BadUsage(f"--chart needs matplotlib, which failed to load: {error}.") from None
    if not path.lower().endswith(".png"):
        raise BadUsage(f"--chart {path!a}: the name must end in .png.")
    if not os.path.isdir(os.path.dirname(path) or ".") or os.path.isdir(path):
        raise BadUsage(f"--chart {path!a}: no such directory to write to.")


def series(trace: Trace, refused: Collection[int]) -> tuple[dict[Key, Points], dict[Key, Points]]:
    """Return two dicts by (project_id, resource): (time, held) after each change, and at each refusal."""
    tally = Tally()
    held: dict[Key, Points] = {}
    refusals: dict[Key, Points] = {}
    for event in trace:
        key = (event.project_id, event.resource)
        is_refused = event.line in refused
        tally.add(event, is_refused=is_refused)
        if is_refused:
            refusals.setdefault(key, []).append((event.time, tally.held[key]))
        points = held.setdefault(key, [(event.time, 0)])
        if points[-1][1] != tally.held[key]:
            points.append((event.time, tally.held[key]))
    return held, refusals


def draw(path: str, trace: Trace, refused: Collection[int], limits: Mapping[Key, int]) -> None:
    """Write the chart as PNG. The keys of ``limits`` are (project_id, resource)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    held, refusals = series(trace, refused)
    end = max((points[-1][0] for points in held.values()), default=0.0)
    resources = [resource for resource, _ in Counter(key[1] for key in held).most_common(MOST_PANELS)]
    figure, axes = pyplot.subplots(
        max(len(resources), 1),
        squeeze=False,
        sharex=True,
        layout="constrained",
        figsize=(11, 1.5 + 4 * max(len(resources), 1)),
    )
    seconds, unit = next((seconds, unit) for least, seconds, unit in _UNITS if end >= least)
    for panel, resource in zip(axes[:, 0], resources, strict=False):
        bounds = {bound for key, bound in limits.items() if key[1] == resource and bound != UNLIMITED}
        data = _PanelData(
            _select_resource(held, resource, seconds),
            _select_resource(refusals, resource, seconds),
            sorted(bounds),
            end / seconds,
        )
        _panel(panel, resource, data)
    axes[-1, 0].set_xlabel(f"time since the start of the trace ({unit})")
    figure.suptitle(f"Replay of {os.path.basename(trace.name)}: {sum(map(len, refusals.values()))} reserves refused")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise BadUsage(f"--chart {path!a}: {error.strerror}.") from None
    finally:
        pyplot.close(figure)


def _select_resource(points_by_key: Mapping[Key, Points], resource: str, seconds: float) -> dict[str, Points]:
    """Return the points of one resource by project, on the chart's time scale."""
    return {
        key[0]: [(time / seconds, amount) for time, amount in points]
        for key, points in points_by_key.items()
        if key[1] == resource
    }


def _panel(panel: Any, resource: str, data: _PanelData) -> None:
    selected = _select_projects(data)
    for project_id in selected:
        points = [*data.held[project_id], (data.end, data.held[project_id][-1][1])]
        (line,) = panel.step(*zip(*points, strict=True), where="post", label=_label(project_id))
        if project_id in data.refusals:
            times, amounts = zip(*data.refusals[project_id], strict=True)
            panel.plot(times, amounts, "x", color=line.get_color(), markersize=8, markeredgewidth=2)
    if data.refusals:
        panel.plot([], [], "x", color="black", label="refused")
    for bound in data.bounds:
        panel.axhline(bound, color="black", linestyle="--", linewidth=1, label=f"limit {bound} (each project)")
    if not data.bounds and len(data.held) > 1:
        times, amounts = zip(*_total(data), strict=True)
        panel.step(times, amounts, where="post", color="grey", linewidth=2.5, label="all projects")
    left_out = len(data.held) - len(selected)
    panel.set_title(resource + (f" ({left_out} more projects not drawn)" if left_out else ""), loc="left")
    panel.set_ylabel(f"{resource}: used + reserved")
    panel.set_ylim(bottom=0)
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.grid(alpha=0.3)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _select_projects(data: _PanelData) -> Sequence[str]:
    """Return the projects with the most refusals, then those with the highest usage."""

    def rank(project_id: str) -> tuple[int, int, str]:
        peak = max(amount for _, amount in data.held[project_id])
        return -len(data.refusals.get(project_id, ())), -peak, project_id

    return sorted(data.held, key=rank)[:MOST_PROJECTS]


def _total(data: _PanelData) -> Points:
    changes: Iterable[tuple[float, int]] = sorted(
        (time, amount - before)
        for points in data.held.values()
        for (time, amount), (_, before) in zip(points, [(0.0, 0), *points], strict=False)
    )
    total, points = 0, [(0.0, 0)]
    for time, change in changes:
        total += change
        points.append((time, total))
    return [*points, (data.end, total)]


def _label(name: str) -> str:
    # matplotlib hides labels with a leading underscore, and reads a dollar sign as the start of a formula.
    short = name if len(name) <= 24 else name[:23] + "…"
    return ("\u200b" + short if short.startswith("_") else short).replace("$", r"\$")
