# SPDX-License-Identifier: Apache-2.0
"""An amount over time, with a bounded number of points. Pure."""

from __future__ import annotations

from typing import Final

MAX_POINTS: Final = 512


class Series:
    """The amount after each change, and the refusals. ``times`` are in seconds.

    Above MAX_POINTS, two points at a time become one, with the larger amount and the sum of the refusals: a peak
    is never lost. ``refused`` has the number of refusals of each point; ``total_refused`` is their sum.
    """

    __slots__ = ("amounts", "peak", "refused", "times", "total_refused")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.amounts: list[int] = []
        self.refused: list[int] = []
        self.peak = 0
        self.total_refused = 0

    def add(self, time: float, amount: int, *, refused: int = 0) -> None:
        """Add a point. ``time`` is not before that of the last point."""
        self.peak = max(self.peak, amount)
        self.total_refused += refused
        if self.times and self.times[-1] == time:
            self.amounts[-1] = amount  # only the last of several changes at one time can be drawn
            self.refused[-1] += refused
            return
        self.times.append(time)
        self.amounts.append(amount)
        self.refused.append(refused)
        if len(self.times) > MAX_POINTS:
            self._halve()

    def _halve(self) -> None:
        last = len(self.times) - 1
        pairs = range(0, last, 2)
        self.times = [self.times[index] for index in pairs] + self.times[last:]
        self.amounts = [max(self.amounts[index : index + 2]) for index in pairs] + self.amounts[last:]
        self.refused = [sum(self.refused[index : index + 2]) for index in pairs] + self.refused[last:]
