# SPDX-License-Identifier: Apache-2.0
"""Charts. Of a replay or a simulation: small multiples, one panel for each project and resource, the worst first.

Each panel has its own vertical scale, so that a project with 3 accelerators can be read beside one with 600. Refusals
are drawn as a row of ticks below the line, and counted in the title of the panel: thousands of them do not cover it.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cyborg_quota.replay.totals import Key, Series, Tally
from cyborg_quota.replay.traces import BadUsage, Trace
from cyborg_quota.types import UNLIMITED
from cyborg_quota.types.capacity import ResourceReport

MAX_PANELS: Final = 240
"""More panels would be too small to read on one sheet; the table lists all projects."""
FORMATS: Final = (".png", ".svg")

_PANEL_INCHES: Final = (1.95, 1.35)
_SMALL: Final = 6.5
_UNITS: Final = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "seconds"))
_HELD, _BEFORE, _LIMIT, _REFUSED = "tab:blue", "0.65", "black", "tab:red"

_CLAIMED, _ELSEWHERE, _FREE, _PROMISED = "tab:blue", "tab:orange", "0.88", "tab:red"
_MAX_PERCENT: Final = 400.0
"""Longer bars of promises are cut here, so that the others stay readable. The text beside a bar has its amount."""
_ROW_INCHES: Final = 0.62


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """What one panel shows. ``before`` and ``limit_before`` are those of the limits to compare with, if any."""

    project_id: str
    resource: str
    held: Series
    limit: int | None
    before: Series | None = None
    limit_before: int | None = None


def require(path: str) -> None:
    """Raise BadUsage if no chart can be drawn to ``path``; called before the replay, which may take hours."""
    try:
        importlib.import_module("matplotlib.pyplot")
    except ImportError as error:  # not installed, or incompatible with another package (often numpy)
        raise BadUsage(f"--chart needs matplotlib: install cyborg_quota[chart] ({error}).") from None
    if not path.lower().endswith(FORMATS):
        raise BadUsage(f"--chart {path!a}: the name must end in {' or '.join(FORMATS)}.")
    if not os.path.isdir(os.path.dirname(path) or ".") or os.path.isdir(path):
        raise BadUsage(f"--chart {path!a}: no such directory to write to.")


def replay_panels(trace: Trace, refused: Collection[int], limits: Mapping[Key, int]) -> list[Panel]:
    """The panels of a replay. ``refused``: line numbers. The keys of ``limits`` are (project_id, resource)."""
    tally = Tally()
    by_key: dict[Key, Series] = {}
    for event in trace:
        key = (event.project_id, event.resource)
        is_refused = event.line in refused
        tally.add(event, is_refused=is_refused)
        by_key.setdefault(key, Series()).add(event.time, tally.held[key], refused=int(is_refused))
    return [Panel(*key, series, limits.get(key, UNLIMITED)) for key, series in by_key.items()]


def _badness(panel: Panel) -> tuple[float, float, int, str, str]:
    """The sort key: the most refusals first, then what comes closest to its limit, then the largest amount."""
    limit = panel.limit
    share = 0.0 if limit is None or limit == UNLIMITED else panel.held.peak / max(limit, 1)
    return -panel.held.total_refused, -share, -panel.held.peak, panel.project_id, panel.resource


def draw(path: str, title: str, panels: Iterable[Panel]) -> None:
    """Write the chart. The end of ``path`` selects PNG or SVG. Raises BadUsage if the file cannot be written."""
    pyplot = _pyplot()
    ordered = sorted(panels, key=_badness)
    shown = ordered[:MAX_PANELS]
    columns = max(math.ceil(math.sqrt(len(shown) * 1.2)), 3)
    rows = max(math.ceil(len(shown) / columns), 1)
    width, height = columns * _PANEL_INCHES[0] + 0.3, rows * _PANEL_INCHES[1] + 0.9
    figure = pyplot.figure(figsize=(width, height))
    end = max((panel.held.times[-1] for panel in shown if panel.held.times), default=0.0)
    seconds, unit = next((seconds, unit) for least, seconds, unit in _UNITS if end >= least)
    # (No constrained or tight layout: with 156 panels it takes longer than all the rest.)
    grid = figure.add_gridspec(
        rows, columns, left=0.35 / width, right=1 - 0.1 / width, top=1 - 0.75 / height, bottom=0.25 / height,
        wspace=0.22, hspace=0.45,
    )  # fmt: skip
    resources = {panel.resource for panel in ordered}
    for index, panel in enumerate(shown):
        axes = figure.add_subplot(grid[index // columns, index % columns])
        _panel(axes, panel, seconds, end or 1.0, names_resource=len(resources) > 1)
    refused = sum(panel.held.total_refused for panel in ordered)
    more = f"; {len(ordered) - len(shown)} more not drawn" if len(ordered) > len(shown) else ""
    duration = f"{end / seconds:.3g} {unit}"
    subtitle = f"{refused} claims refused; used + reserved over {duration}, each panel on its own scale{more}"
    _head(figure, title, ordered, subtitle)
    save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # (Without parse_math: a dollar sign in a name would be read as the start of a formula.)
    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False})
    return pyplot


def save(figure: Any, path: str) -> None:
    """Write a figure to a file, and close it. Raises BadUsage."""
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise BadUsage(f"--chart {path!a}: {error.strerror}.") from None
    finally:
        pyplot.close(figure)


def _head(figure: Any, title: str, panels: Sequence[Panel], subtitle: str) -> None:
    from matplotlib import lines

    height = figure.get_figheight()
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.22 / height, title, fontsize=11, weight="bold")
    figure.text(0.15 / figure.get_figwidth(), 1 - 0.42 / height, subtitle, fontsize=8)
    keys: list[tuple[str, Any, str]] = [(_HELD, "-", "held"), (_LIMIT, "--", "limit"), (_REFUSED, "-", "refused")]
    if any(panel.before is not None for panel in panels):
        keys += [(_BEFORE, "-", "held before"), (_BEFORE, "--", "limit before")]
    handles = [lines.Line2D([], [], color=color, linestyle=style, label=label) for color, style, label in keys]
    figure.legend(
        handles=handles, loc="upper right", ncols=len(handles), frameon=False, fontsize=8,
        bbox_to_anchor=(1.0, 1 - 0.02 / height),
    )  # fmt: skip


def _panel(axes: Any, panel: Panel, seconds: float, end: float, *, names_resource: bool) -> None:
    series = [(panel.held, _HELD, 1.0)] + ([(panel.before, _BEFORE, 0.8)] if panel.before is not None else [])
    for curve, color, width in reversed(series):
        if curve.times:
            times = [time / seconds for time in (*curve.times, end)]
            axes.step(times, [*curve.amounts, curve.amounts[-1]], where="post", color=color, linewidth=width)
    bounds = [(panel.limit_before, _BEFORE), (panel.limit, _LIMIT)]
    drawn = [(limit, color) for limit, color in bounds if limit is not None and limit != UNLIMITED]
    for limit, color in drawn:
        axes.axhline(limit, color=color, linestyle="--", linewidth=0.8)
    top = max([1, *(curve.peak for curve, _, _ in series), *(limit for limit, _ in drawn)])
    times = [time / seconds for time, count in zip(panel.held.times, panel.held.refused, strict=True) if count]
    axes.vlines(times, -0.16 * top, -0.03 * top, color=_REFUSED, linewidth=0.7)
    axes.set_xlim(0, end / seconds)
    axes.set_ylim(-0.18 * top, 1.08 * top)
    axes.set_xticks([])
    # Two labels: of the limit if there is one, else of the top of the scale; and 0.
    axes.set_yticks([0, drawn[-1][0] if drawn and drawn[-1][0] > 0 else top])
    axes.tick_params(labelsize=_SMALL, length=2, pad=1)
    name = label(panel.project_id) + (f" {label(panel.resource)}" if names_resource else "")
    axes.set_title(name, loc="left", fontsize=_SMALL + 0.5, pad=2)
    if panel.held.total_refused:
        axes.set_title(f"{panel.held.total_refused}", loc="right", fontsize=_SMALL + 0.5, pad=2, color=_REFUSED)


def label(name: str) -> str:
    """A name as a label in ASCII, shortened to 20 characters. (The font lacks many other characters.)"""
    name = name.encode("ascii", "backslashreplace").decode()
    return name if len(name) <= 20 else name[:9] + "…" + name[-10:]


def draw_capacity(path: str, reports: Sequence[ResourceReport]) -> None:
    """Draw two bars for each resource with a capacity: what exists, and what is promised, in percent of the capacity.

    The scale is relative, so that a resource with 40 units can be read beside one with 10,000; the amounts are printed.
    The end of ``path`` selects PNG or SVG. Raises BadUsage if the file cannot be written.
    """
    pyplot = _pyplot()
    from matplotlib import patches

    shown = [report for report in reports if report.capacity > 0]
    height = _ROW_INCHES * max(len(shown), 1) + 1.25
    figure, axes = pyplot.subplots(figsize=(9.0, height))
    for row, report in enumerate(shown):
        _bars(axes, row, report)
    axes.set_yticks(range(len(shown)), [label(report.resource) for report in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlim(0, 2 * _MAX_PERCENT)  # with space for the texts
    axes.set_xlabel("percent of the capacity")
    keys = ((_CLAIMED, "claimed"), (_ELSEWHERE, "used elsewhere"), (_FREE, "free"), (_PROMISED, "promised"))
    handles = [patches.Patch(color=color, label=text) for color, text in keys]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=8)
    axes.set_title("Capacity and promises", loc="left", fontsize=11, weight="bold")
    figure.subplots_adjust(left=0.18, right=0.98, top=1 - 0.45 / height, bottom=0.5 / height)
    save(figure, path)


def _bars(axes: Any, row: int, report: ResourceReport) -> None:
    parts = ((report.used, _CLAIMED), (report.used_elsewhere, _ELSEWHERE), (report.free, _FREE))
    left = 0.0
    for amount, color in parts:
        width = 100 * amount / report.capacity
        axes.barh(row - 0.17, width, left=left, height=0.34, color=color)
        left += width
    text = f"{report.used} claimed, {report.used_elsewhere} elsewhere, {report.free} free of {report.capacity}"
    axes.text(max(left, 100) + 1, row - 0.17, text, fontsize=7, va="center")
    percent = _MAX_PERCENT
    if report.promised != UNLIMITED:
        percent = min(100 * report.promised / report.capacity, _MAX_PERCENT)
    axes.barh(row + 0.17, percent, height=0.22, color=_PROMISED, alpha=0.75)
    promised = "unlimited" if report.promised == UNLIMITED else f"{report.promised} promised"
    if report.oversubscription is not None:
        promised += f" ({report.oversubscription} x), {len(report.not_served)} projects could not be served"
    axes.text(percent + 1, row + 0.18, promised, fontsize=7, va="center")
