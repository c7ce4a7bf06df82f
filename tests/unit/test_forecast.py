# SPDX-License-Identifier: Apache-2.0
"""The least-squares line, its interval, and which projects are shown."""

from __future__ import annotations

import random

from oslotest import base

from cyborg_quota.replay import forecast

DAY = forecast.DAY_SECONDS


class TestFit(base.BaseTestCase):
    def test_the_quantiles_of_student_s_t(self) -> None:
        """Reference values from a printed table (two-sided, 95 %)."""
        for degrees, quantile in ((3, 3.182446), (5, 2.570582), (10, 2.228139), (28, 2.048407), (120, 1.979930)):
            self.assertAlmostEqual(quantile, forecast.student_t(degrees), places=5)

    def test_a_line_through_known_points(self) -> None:
        """Computed by hand: x 1..5, y 2 4 5 4 5 give the slope 0.6, and its standard error is sqrt(0.08)."""
        line = forecast.fit([1, 2, 3, 4, 5], [2, 4, 5, 4, 5])
        self.assertAlmostEqual(0.6, line.slope)
        self.assertAlmostEqual(3.182446 * 0.08**0.5, line.margin, places=5)
        self.assertFalse(line.has_trend)

    def test_points_on_a_line_have_no_interval(self) -> None:
        line = forecast.fit([0, 1, 2, 3, 4], [1, 3, 5, 7, 9])
        for x in line.crossing(101):
            self.assertAlmostEqual(50, x)

    def test_the_interval_covers_the_true_time_in_95_percent(self) -> None:
        """1,000 lines of slope 1 with normal noise, which reach 60 at the time 60."""
        chooser = random.Random(1)
        xs = [float(x) for x in range(20)]
        covered = 0
        for _ in range(1000):
            line = forecast.fit(xs, [x + chooser.gauss(0, 2) for x in xs])
            _, low, high = line.crossing(60)
            covered += line.has_trend and low <= 60 <= high
        self.assertTrue(930 <= covered <= 970, covered)

    def test_noise_has_a_trend_in_5_percent(self) -> None:
        chooser = random.Random(2)
        xs = [float(x) for x in range(20)]
        trends = sum(forecast.fit(xs, [chooser.gauss(0, 1) for _ in xs]).has_trend for _ in range(1000))
        self.assertTrue(30 <= trends <= 70, trends)


class TestForecast(base.BaseTestCase):
    def forecast(self, amounts: list[int], limit: int | None, horizon: float = 365) -> list[forecast.Forecast]:
        limits = {} if limit is None else {("p", "gpu"): [(0.0, limit)]}
        return forecast.forecast({("p", "gpu"): (amounts, amounts[-1])}, limits, horizon)

    def test_a_rising_project(self) -> None:
        (one,) = self.forecast([1, 2, 3, 4, 5, 6], 16)
        self.assertEqual((6, 16, 10.0), (one.held, one.limit, round(one.reached, 9)))

    def test_what_is_not_shown(self) -> None:
        for amounts, limit in (
            ([1, 2, 3, 4, 5, 6], None),
            ([1, 2, 3, 4, 5, 6], 6),
            ([1, 2, 3, 4], 16),
            ([6, 5, 4, 3, 2, 1], 16),
            ([5, 5, 5, 5, 5, 5], 16),
            ([0, 0, 0, 0, 0, 0], 0),
            ([3, 9, 1, 8, 2, 4], 16),
            ([1, 2, 3, 4, 5, 6], 2**62),
        ):
            self.assertEqual([], self.forecast(amounts, limit), amounts)
        self.assertEqual([], self.forecast([1, 2, 3, 4, 5, 6], 16, 9))

    def test_a_late_bound_beyond_the_horizon_is_open(self) -> None:
        (one,) = self.forecast([1, 3, 2, 5, 4, 6], 16, 12)
        self.assertIsNone(one.latest)
        self.assertLessEqual(one.earliest, one.reached)


class TestDailyPeaks(base.BaseTestCase):
    def test_a_peak_counts_on_its_day_and_what_remains_on_the_next_ones(self) -> None:
        peaks = forecast.DailyPeaks(5 * DAY, 5)
        for time, change in ((-9.0, 2), (-8.0, -1), (0.1 * DAY, 5), (0.2 * DAY, -5), (2.5 * DAY, -1), (4.9 * DAY, 3)):
            peaks.add(time, ("p", "gpu"), change)
        self.assertEqual({("p", "gpu"): ([6, 1, 1, 0, 3], 3)}, peaks.series())

    def test_a_change_at_the_very_end(self) -> None:
        peaks = forecast.DailyPeaks(5 * DAY, 5)
        peaks.add(5 * DAY, ("p", "gpu"), 2)
        self.assertEqual(([0, 0, 0, 0, 2], 2), peaks.series()["p", "gpu"])
