# SPDX-License-Identifier: Apache-2.0
"""Draws a replay: what projects held over the trace's time, their limit, and what was refused."""

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
"""So many lines can be told apart; the others are in the table."""
MOST_PANELS: Final = 4
_UNITS: Final = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "seconds"))

Points = list[tuple[float, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Drawn:
    """One panel: points by project, the limits, and where the time axis ends."""

    held: Mapping[str, Points]
    refusals: Mapping[str, Points]
    bounds: Sequence[int]
    end: float


def require(path: str) -> None:
    """Raise BadUsage, before hours of replay, where no chart can be drawn to ``path``."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BadUsage("--chart needs matplotlib: pip install 'cyborg_quota[chart]'")
    try:
        importlib.import_module("matplotlib.pyplot")
    except ImportError as error:  # it is there, but does not fit what is installed beside it (numpy, most often)
        raise BadUsage(f"--chart needs matplotlib, which cannot be loaded here: {error}.") from None
    if not path.lower().endswith(".png"):
        raise BadUsage(f"--chart {path!a}: the name must end in .png.")
    if not os.path.isdir(os.path.dirname(path) or ".") or os.path.isdir(path):
        raise BadUsage(f"--chart {path!a}: no such directory to write to.")


def series(trace: Trace, refused: Collection[int]) -> tuple[dict[Key, Points], dict[Key, Points]]:
    """By (project_id, resource): (time, held) after each change, and (time, held) at each refusal."""
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
    """Write the PNG. ``limits`` goes by (project_id, resource)."""
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
        drawn = _Drawn(_of(held, resource, seconds), _of(refusals, resource, seconds), sorted(bounds), end / seconds)
        _panel(panel, resource, drawn)
    axes[-1, 0].set_xlabel(f"time since the start of the trace ({unit})")
    figure.suptitle(f"Replay of {os.path.basename(trace.name)}: {sum(map(len, refusals.values()))} reserves refused")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise BadUsage(f"--chart {path!a}: {error.strerror}.") from None
    finally:
        pyplot.close(figure)


def _of(found: Mapping[Key, Points], resource: str, seconds: float) -> dict[str, Points]:
    """One resource's points by project, on the chart's time scale."""
    return {
        key[0]: [(time / seconds, amount) for time, amount in points]
        for key, points in found.items()
        if key[1] == resource
    }


def _panel(panel: Any, resource: str, drawn: _Drawn) -> None:
    shown = _foremost(drawn)
    for project_id in shown:
        points = [*drawn.held[project_id], (drawn.end, drawn.held[project_id][-1][1])]
        (line,) = panel.step(*zip(*points, strict=True), where="post", label=_label(project_id))
        if project_id in drawn.refusals:
            times, amounts = zip(*drawn.refusals[project_id], strict=True)
            panel.plot(times, amounts, "x", color=line.get_color(), markersize=8, markeredgewidth=2)
    if drawn.refusals:
        panel.plot([], [], "x", color="black", label="refused")
    for bound in drawn.bounds:
        panel.axhline(bound, color="black", linestyle="--", linewidth=1, label=f"limit {bound} (each project)")
    if not drawn.bounds and len(drawn.held) > 1:
        times, amounts = zip(*_total(drawn), strict=True)
        panel.step(times, amounts, where="post", color="grey", linewidth=2.5, label="all projects")
    left_out = len(drawn.held) - len(shown)
    panel.set_title(resource + (f" ({left_out} more projects not drawn)" if left_out else ""), loc="left")
    panel.set_ylabel(f"{resource}: used + reserved")
    panel.set_ylim(bottom=0)
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.grid(alpha=0.3)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _foremost(drawn: _Drawn) -> Sequence[str]:
    """The projects that were refused most, then those that held most."""

    def rank(project_id: str) -> tuple[int, int, str]:
        peak = max(amount for _, amount in drawn.held[project_id])
        return -len(drawn.refusals.get(project_id, ())), -peak, project_id

    return sorted(drawn.held, key=rank)[:MOST_PROJECTS]


def _total(drawn: _Drawn) -> Points:
    changes: Iterable[tuple[float, int]] = sorted(
        (time, amount - before)
        for points in drawn.held.values()
        for (time, amount), (_, before) in zip(points, [(0.0, 0), *points], strict=False)
    )
    total, points = 0, [(0.0, 0)]
    for time, change in changes:
        total += change
        points.append((time, total))
    return [*points, (drawn.end, total)]


def _label(name: str) -> str:
    # A leading underscore would hide it from the legend, and a dollar sign would begin a formula.
    short = name if len(name) <= 24 else name[:23] + "…"
    return ("\u200b" + short if short.startswith("_") else short).replace("$", r"\$")
