# SPDX-License-Identifier: Apache-2.0
"""Counts the outcomes of a trace's events and the amounts held, also over time. Pure.

All of it follows from the trace and the lines of the refused reserves. So a replay stores only those lines, and a
resumed replay counts the totals of its finished part again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Final

from cyborg_quota.replay.traces import Event

MAX_POINTS: Final = 512
"""The largest number of points of a Series."""

ADMITTED, REFUSED, SKIPPED = "admitted", "refused", "skipped"
_SETTLED = {"commit": "committed", "rollback": "rolled_back", "release": "released"}
OUTCOMES = (ADMITTED, REFUSED, *_SETTLED.values(), SKIPPED)
"""The possible outcomes of an event; their counts add up to the number of events."""

Key = tuple[str, str]
"""(project_id, resource)"""
Holder = tuple[str, str]
"""(project_id, consumer)"""


@dataclasses.dataclass(slots=True)
class Tally:
    """The totals of the events that were added, in the order of the trace.

    The keys of ``by_project`` and ``held`` are (project_id, resource). ``placed``: the new reservations, which take
    capacity if the replay has a provider.
    """

    totals: Counter[str] = dataclasses.field(default_factory=Counter)
    by_project: dict[Key, Counter[str]] = dataclasses.field(default_factory=dict)
    held: Counter[Key] = dataclasses.field(default_factory=Counter)
    placed: int = 0
    _live: dict[Holder, tuple[Key, int]] = dataclasses.field(default_factory=dict)
    _refused: set[Holder] = dataclasses.field(default_factory=set)

    @property
    def events(self) -> int:
        return self.totals.total()

    def is_skipped(self, event: Event) -> bool:
        """Return whether the consumer's reserve was refused, so that there is nothing to settle."""
        return event.kind != "reserve" and (event.project_id, event.consumer) in self._refused

    def is_live(self, event: Event) -> bool:
        """Return whether the consumer holds something."""
        return (event.project_id, event.consumer) in self._live

    def add(self, event: Event, *, is_refused: bool = False) -> str:
        """Count one event; returns its outcome."""
        holder, key = (event.project_id, event.consumer), (event.project_id, event.resource)
        if event.kind == "reserve" and is_refused:
            outcome = REFUSED
            self._refused.add(holder)
        elif event.kind == "reserve":
            outcome = ADMITTED
            self._refused.discard(holder)
            if holder not in self._live:
                self._live[holder] = (key, event.amount)
                self.held[key] += event.amount
                self.placed += 1
        elif holder in self._refused:
            outcome = SKIPPED
        else:
            outcome = _SETTLED[event.kind]
            if holder in self._live and event.kind != "commit":
                held, amount = self._live.pop(holder)
                self.held[held] -= amount
        self.totals[outcome] += 1
        self.by_project.setdefault(key, Counter())[outcome] += 1
        return outcome


@dataclasses.dataclass(slots=True)
class Series:
    """The amount after each change, and the refusals. ``times`` are in seconds.

    Above MAX_POINTS, two points at a time become one, with the larger amount and the sum of the refusals: a peak
    is never lost. ``refused`` has the number of refusals of each point; ``total_refused`` is their sum.
    """

    times: list[float] = dataclasses.field(default_factory=list)
    amounts: list[int] = dataclasses.field(default_factory=list)
    refused: list[int] = dataclasses.field(default_factory=list)
    peak: int = 0
    total_refused: int = 0

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
            last = len(self.times) - 1
            pairs = range(0, last, 2)
            self.times = [self.times[index] for index in pairs] + self.times[last:]
            self.amounts = [max(self.amounts[index : index + 2]) for index in pairs] + self.amounts[last:]
            self.refused = [sum(self.refused[index : index + 2]) for index in pairs] + self.refused[last:]
