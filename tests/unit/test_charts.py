# SPDX-License-Identifier: Apache-2.0
"""The series of a chart, and what is drawn of them."""

from __future__ import annotations

import itertools
import warnings
from typing import Any
from unittest import mock

from oslotest import base

from cyborg_quota.replay import charts
from cyborg_quota.replay.totals import MAX_POINTS, Series


def series(*amounts: int, refused: int = 0) -> Series:
    found = Series()
    for time, amount in enumerate(amounts):
        found.add(float(time), amount)
    for _ in range(refused):
        found.add(float(len(amounts)), amounts[-1], refused=1)
    return found


class TestSeries(base.BaseTestCase):
    def test_the_number_of_points_is_bounded_and_no_peak_or_refusal_is_lost(self) -> None:
        for peak in (0, 1, 7777, 9999):
            found = Series()
            for time in range(10_000):
                found.add(float(time), 50 if time == peak else time % 7, refused=time % 2)
            self.assertLessEqual(len(found.times), MAX_POINTS)
            self.assertEqual(sorted(found.times), found.times)
            self.assertEqual(
                (50, 50, 5000, 5000, 9999 % 7 if peak != 9999 else 50),
                (found.peak, max(found.amounts), found.total_refused, sum(found.refused), found.amounts[-1]),
            )

    def test_changes_at_one_time_are_one_point(self) -> None:
        found = Series()
        for amount in (1, 9, 2):
            found.add(0.0, amount, refused=1)
        self.assertEqual(([0.0], [2], [3], 9), (found.times, found.amounts, found.refused, found.peak))


class TestCharts(base.BaseTestCase):
    def draw(self, panels: list[charts.Panel]) -> Any:
        """The figure that would be saved. (test_simulate saves charts; to render 156 panels takes seconds.)"""
        from matplotlib import figure  # not above: each worker imports every module of tests

        saved: list[Any] = []
        with mock.patch.object(figure.Figure, "savefig", lambda drawn, *_args, **_kwargs: saved.append(drawn)):
            charts.draw("chart.png", "title", panels)
        return saved[0]

    def test_few_and_many_projects(self) -> None:
        """156 are in the chart of the documentation: each project has a panel with its name, and no two overlap."""
        for count in (9, 156):
            held = [series(1, 3, 2, refused=number % 40) for number in range(count)]
            panels = [charts.Panel(f"app_{number}", "gpu", one, 2) for number, one in enumerate(held)]
            drawn = self.draw(panels)
            titles = {axes.get_title(loc="left") for axes in drawn.axes}
            self.assertEqual({panel.project_id for panel in panels}, titles)
            width, height = drawn.get_size_inches()
            self.assertLess(max(width, height), 35)
            boxes = [axes.get_position() for axes in drawn.axes]
            for one, other in itertools.combinations(boxes, 2):
                self.assertTrue(one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0)
            self.assertGreater(min(box.width * width for box in boxes), 1.2, "inches")
            self.assertGreater(min(box.height * height for box in boxes), 0.6, "inches")
            refused = [int(axes.get_title(loc="right") or 0) for axes in drawn.axes]
            self.assertEqual(sorted(refused, reverse=True), refused)
            self.assertFalse(any("not drawn" in text.get_text() for text in drawn.texts))

    def test_refusals_are_ticks_below_the_line(self) -> None:
        """4,095 crosses on one line hid the line."""
        panel = charts.Panel("p", "gpu", series(*[1] * 300, refused=4095), 1)
        (axes,) = self.draw([panel]).axes
        self.assertEqual([], [line for line in axes.lines if line.get_marker() not in ("None", "")])
        (ticks,) = axes.collections
        self.assertTrue(all(y < 0 for segment in ticks.get_segments() for _, y in segment))

    def test_names_that_the_font_may_lack(self) -> None:
        """They are escaped, without a warning on stderr."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            drawn = self.draw([charts.Panel(name, "gpu", series(1), 2) for name in ("\u30d7x", "\u30d7" * 9, "é$")])
        titles = {axes.get_title(loc="left") for axes in drawn.axes}
        self.assertEqual({"\\u30d7x", "\\u30d7\\u3…30d7\\u30d7", r"\xe9$"}, titles)
