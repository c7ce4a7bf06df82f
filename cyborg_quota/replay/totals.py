# SPDX-License-Identifier: Apache-2.0
"""Counts the outcomes of a trace's events and the amounts held. Pure.

All of it follows from the trace and the lines of the refused reserves. So a replay stores only those lines, and a
resumed replay counts the totals of its finished part again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from cyborg_quota.replay.traces import Event

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

    def is_fresh(self, event: Event) -> bool:
        """Return whether it is a reserve that creates a new reservation if admitted: its consumer holds nothing."""
        return event.kind == "reserve" and (event.project_id, event.consumer) not in self._live

    def is_repeated(self, event: Event) -> bool:
        """Return whether it is a reserve of exactly what its consumer already holds."""
        held = self._live.get((event.project_id, event.consumer))
        return event.kind == "reserve" and held == ((event.project_id, event.resource), event.amount)

    def add(self, event: Event, *, is_refused: bool = False) -> str:
        """Count one event; returns its outcome."""
        outcome = self._outcome(event, is_refused)
        self.totals[outcome] += 1
        self.by_project.setdefault((event.project_id, event.resource), Counter())[outcome] += 1
        return outcome

    def _outcome(self, event: Event, is_refused: bool) -> str:
        holder = (event.project_id, event.consumer)
        if event.kind == "reserve":
            if is_refused:
                self._refused.add(holder)
                return REFUSED
            self._refused.discard(holder)
            if holder not in self._live:
                key = (event.project_id, event.resource)
                self._live[holder] = (key, event.amount)
                self.held[key] += event.amount
                self.placed += 1
            return ADMITTED
        if holder in self._refused:
            return SKIPPED
        if holder in self._live and event.kind != "commit":
            key, amount = self._live.pop(holder)
            self.held[key] -= amount
        return _SETTLED[event.kind]
