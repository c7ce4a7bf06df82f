# SPDX-License-Identifier: Apache-2.0
"""Extrapolates the usage of projects: the time at which a straight line through their daily peaks reaches their limit.

The line is that of ordinary least squares. The interval for the time at which it reaches a limit follows from Fieller's
theorem (E. C. Fieller, "Some problems in interval estimation", 1954), as in inverse regression. All but ``read_peaks``
is pure.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cyborg_quota.db import history
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.replay.totals import Key
from cyborg_quota.types import UNLIMITED

DAY_SECONDS: Final = 86400.0
CONFIDENCE: Final = 0.95
MIN_DAYS: Final = 5
"""Fewer daily peaks leave too few degrees of freedom for an interval."""


class Fit(NamedTuple):
    """A straight line ``mean_y + slope * (x - mean_x)``. ``margin`` is that of the slope: slope +- margin, at 95 %."""

    mean_x: float
    mean_y: float
    slope: float
    margin: float
    points: int
    sum_of_squares: float

    @property
    def has_trend(self) -> bool:
        """Whether the slope differs from 0, at the 5 % level."""
        return abs(self.slope) > self.margin

    def crossing(self, y: float) -> tuple[float, float, float]:
        """(x, lowest x, highest x) at which the line reaches ``y``. Only for a line that has a trend.

        The bounds solve (slope (x - mean_x) - (y - mean_y))^2 = margin^2 (sum_of_squares / points + (x - mean_x)^2).
        """
        distance = y - self.mean_y
        squared_margin = self.margin * self.margin
        a = self.slope * self.slope - squared_margin
        b = self.slope * distance
        c = distance * distance - squared_margin * self.sum_of_squares / self.points
        root = math.sqrt(max(b * b - a * c, 0.0))
        low, high = sorted(((b - root) / a, (b + root) / a))
        return self.mean_x + distance / self.slope, self.mean_x + low, self.mean_x + high


def fit(xs: Sequence[float], ys: Sequence[float]) -> Fit:
    """The least-squares line through at least three points with different ``xs``."""
    count = len(xs)
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    sum_of_squares = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum_of_squares
    residuals = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    deviation = math.sqrt(residuals / (count - 2) / sum_of_squares)
    return Fit(mean_x, mean_y, slope, student_t(count - 2) * deviation, count, sum_of_squares)


@functools.cache
def student_t(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t distribution, by bisection of its integral (Simpson's rule)."""

    def tail(t: float, steps: int = 400) -> float:
        """The probability of a value between -t and t."""
        width = t / steps
        weights = (1 if index in (0, steps) else 4 if index % 2 else 2 for index in range(steps + 1))
        total = math.fsum(
            weight * (1 + (index * width) ** 2 / degrees) ** (-(degrees + 1) / 2)
            for index, weight in enumerate(weights)
        )
        constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
        return 2 * constant * total * width / 3

    low, high = 0.0, 64.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < confidence else (low, middle)
    return high


class DailyPeaks:
    """The largest amount that each project held on each day, from changes in the order of time.

    ``days`` is the number of whole days; the last one ends at ``end`` (seconds). An earlier change counts as one at
    the start of the first day.
    """

    def __init__(self, end: float, days: int) -> None:
        self._begin = end - days * DAY_SECONDS
        self._days = days
        self._held: dict[Key, int] = {}
        self._peaks: dict[Key, list[int]] = {}
        self._last_day: dict[Key, int] = {}

    def add(self, time: float, key: Key, change: int) -> None:
        """Add ``change`` to what a project holds, at ``time`` seconds."""
        day = min(max(int((time - self._begin) // DAY_SECONDS), 0), self._days - 1)
        held = self._held.get(key, 0)
        peaks = self._peaks.setdefault(key, [0] * self._days)
        last_day = self._last_day.get(key, 0)
        for between in range(last_day + 1, day + 1):
            peaks[between] = held
        held += change
        self._held[key] = held
        self._last_day[key] = day
        peaks[day] = held if time < self._begin else max(peaks[day], held)

    def series(self) -> Mapping[Key, tuple[Sequence[int], int]]:
        """The daily peaks and the amount held at the end, by (project_id, resource)."""
        found = {}
        for key, peaks in self._peaks.items():
            last_day, held = self._last_day[key], self._held[key]
            found[key] = ([*peaks[: last_day + 1], *[held] * (self._days - 1 - last_day)], held)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """When a project reaches its limit. Times are in days from now; ``latest`` None: not before ``horizon``.

    ``limit`` is the limit that applies when the project reaches it.
    """

    project_id: str
    resource: str
    held: int
    limit: int
    per_day: float
    reached: float
    earliest: float
    latest: float | None


Steps = Sequence[tuple[float, int]]
"""The limit of a project over time: (days from now, the limit from then on). The first one applies now."""


def forecast(
    peaks: Mapping[Key, tuple[Sequence[int], int]], limits: Mapping[Key, Steps], horizon_days: float
) -> list[Forecast]:
    """The projects whose usage has a rising trend that reaches the limit within the horizon; the earliest first.

    A project without limits, with fewer than MIN_DAYS days, or whose limit is reached already, is left out.
    """
    found = []
    for key, (amounts, held) in peaks.items():
        steps = limits.get(key)
        if not steps or UNLIMITED < steps[0][1] <= held or len(amounts) < MIN_DAYS:
            continue
        # The x of a day is that of its end, in days from now.
        line = fit([index + 1.0 - len(amounts) for index in range(len(amounts))], [float(one) for one in amounts])
        if line.slope <= 0 or not line.has_trend:
            continue
        (reached, limit), (earliest, _), (latest, _) = (_first_reached(line, steps, bound) for bound in range(3))
        if reached <= horizon_days:
            found.append(
                Forecast(*key, held, limit, line.slope, reached, earliest, latest if latest <= horizon_days else None)
            )
    return sorted(found, key=lambda one: (one.reached, one.project_id, one.resource))


def _first_reached(line: Fit, steps: Steps, bound: int) -> tuple[float, int]:
    """The days until the line reaches the limit that applies then, and that limit; infinity if it never does.

    ``bound``: which of the times of Fit.crossing. Where a lower limit begins, the line can be above it already.
    """
    for index, (begin, limit) in enumerate(steps):
        end = steps[index + 1][0] if index + 1 < len(steps) else math.inf
        if limit != UNLIMITED and (reached := max(line.crossing(limit)[bound], begin)) < end:
            return reached, limit
    return math.inf, UNLIMITED


def read_peaks(
    database: Database, max_days: int, ancestors: Callable[[str], Sequence[str]]
) -> tuple[Mapping[Key, tuple[Sequence[int], int]], datetime.datetime]:
    """The daily peaks that the ledger's history shows, of at most the last ``max_days``; and the present time (UTC).

    A change also counts for the ``ancestors`` of its project. Empty if the history is shorter than MIN_DAYS.
    """

    def work(connection: Connection) -> tuple[Mapping[Key, tuple[Sequence[int], int]], datetime.datetime]:
        first, now = history.span(connection, None)
        days = min(int((now - first).total_seconds() // DAY_SECONDS), max_days)
        if days < MIN_DAYS:
            return {}, now
        begin = now - datetime.timedelta(days=days)
        peaks = DailyPeaks(days * DAY_SECONDS, days)
        for row in history.stream(connection, begin):
            if change := _change(row):
                for project_id in (row.project_id, *ancestors(row.project_id)):
                    peaks.add((row.moment - begin).total_seconds(), (project_id, row.resource), change)
        return peaks.series(), now

    return database.read(work)


def _change(row: history.HistoryRow) -> int:
    """What an event adds to used + reserved. A negative reservation frees when it is committed."""
    if row.delta < 0:
        return row.delta if row.step == history.COMMIT else 0
    if row.step == history.COMMIT:
        return 0
    return row.delta if row.step in (history.RESERVE, history.TAKE) else -row.delta
