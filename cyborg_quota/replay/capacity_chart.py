# SPDX-License-Identifier: Apache-2.0
"""Draws the capacity report: two bars for each resource, what exists and what is promised, in percent of the capacity.

The scale is relative, so that a resource with 40 units can be read beside one with 10,000; the amounts are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cyborg_quota.replay.charts import escape, label, save
from cyborg_quota.types import UNLIMITED
from cyborg_quota.types.capacity import ResourceReport

_CLAIMED, _ELSEWHERE, _FREE, _PROMISED = "tab:blue", "tab:orange", "0.88", "tab:red"
_MOST_PERCENT: Final = 400.0
"""A longer bar of promises is cut here, and its end shows an arrow: otherwise it would hide all others."""
_INSIDE_PERCENT: Final = 250.0
"""The text of a longer bar of promises is drawn inside the bar."""
_ROW_INCHES: Final = 0.62


def draw(path: str, reports: Sequence[ResourceReport]) -> None:
    """Write the chart. The end of ``path`` selects PNG or SVG. Raises BadUsage if the file cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [report for report in reports if report.capacity > 0]
    height = _ROW_INCHES * max(len(shown), 1) + 1.25
    figure, axes = pyplot.subplots(figsize=(9.0, height))
    for row, report in enumerate(shown):
        _bars(axes, row, report)
    axes.set_yticks(range(len(shown)), [label(report.resource) for report in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlim(0, max([300.0, *(1.05 * _promised_percent(report) for report in shown)]))
    axes.set_xlabel("percent of the capacity")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _legend(axes, without=len(reports) - len(shown))
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
    percent = _promised_percent(report)
    is_cut = report.promised == UNLIMITED or percent == _MOST_PERCENT
    axes.barh(row + 0.17, percent, height=0.22, color=_PROMISED, alpha=0.75)
    promised = "unlimited" if report.promised == UNLIMITED else f"{report.promised} promised"
    if report.oversubscription is not None:
        promised += f" ({report.oversubscription} x), {len(report.not_served)} projects could not be served"
    promised += " \u2192" if is_cut else ""
    place, look = (-1, {"ha": "right", "color": "white"}) if percent > _INSIDE_PERCENT else (1, {})
    axes.text(percent + place, row + 0.18, promised, fontsize=7, va="center", **look)


def _promised_percent(report: ResourceReport) -> float:
    if report.promised == UNLIMITED:
        return _MOST_PERCENT
    return min(100 * report.promised / report.capacity, _MOST_PERCENT)


def _legend(axes: Any, *, without: int) -> None:
    from matplotlib import patches

    keys = ((_CLAIMED, "claimed"), (_ELSEWHERE, "used elsewhere"), (_FREE, "free"), (_PROMISED, "promised"))
    handles = [patches.Patch(color=color, label=text) for color, text in keys]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=8)
    more = f" ({without} without capacity not drawn)" if without else ""
    axes.set_title(escape(f"Capacity and promises{more}"), loc="left", fontsize=11, weight="bold")
