# SPDX-License-Identifier: Apache-2.0
"""What has become of a trace's events: the totals, and who holds what. Pure.

All of it follows from the trace and the lines of the reserves that were refused. So a replay that goes on keeps only
those, and the totals of the part it has done already are counted afresh.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from cyborg_quota.replay.traces import Event

ADMITTED, REFUSED, SKIPPED = "admitted", "refused", "skipped"
_SETTLED = {"commit": "committed", "rollback": "rolled_back", "release": "released"}
OUTCOMES = (ADMITTED, REFUSED, *_SETTLED.values(), SKIPPED)
"""What an event can come to; their counts add up to the number of events."""

Key = tuple[str, str]


@dataclasses.dataclass(slots=True)
class Tally:
    """Fed with events in the trace's order. ``by_project`` and ``held`` go by (project_id, resource)."""

    totals: Counter[str] = dataclasses.field(default_factory=Counter)
    by_project: dict[Key, Counter[str]] = dataclasses.field(default_factory=dict)
    held: Counter[Key] = dataclasses.field(default_factory=Counter)
    _live: dict[Key, tuple[Key, int]] = dataclasses.field(default_factory=dict)
    _turned_away: set[Key] = dataclasses.field(default_factory=set)

    @property
    def events(self) -> int:
        return self.totals.total()

    def is_skipped(self, event: Event) -> bool:
        """Whether its consumer was refused, and so has nothing that could be settled."""
        return event.kind != "reserve" and (event.project_id, event.consumer) in self._turned_away

    def is_fresh(self, event: Event) -> bool:
        """Whether it is a reserve that, if admitted, leaves new reservations: its consumer holds nothing."""
        return event.kind == "reserve" and (event.project_id, event.consumer) not in self._live

    def is_repeated(self, event: Event) -> bool:
        """Whether it is a reserve of just what its consumer holds already."""
        held = ((event.project_id, event.resource), event.amount)
        return event.kind == "reserve" and self._live.get((event.project_id, event.consumer)) == held

    def add(self, event: Event, *, is_refused: bool = False) -> str:
        """Count one event; returns its outcome."""
        outcome = self._outcome(event, is_refused)
        self.totals[outcome] += 1
        self.by_project.setdefault((event.project_id, event.resource), Counter())[outcome] += 1
        return outcome

    def _outcome(self, event: Event, is_refused: bool) -> str:
        who = (event.project_id, event.consumer)
        if event.kind == "reserve":
            if is_refused:
                self._turned_away.add(who)
                return REFUSED
            self._turned_away.discard(who)
            if who not in self._live:
                key = (event.project_id, event.resource)
                self._live[who] = (key, event.amount)
                self.held[key] += event.amount
            return ADMITTED
        if who in self._turned_away:
            return SKIPPED
        if event.kind != "commit" and who in self._live:
            key, amount = self._live.pop(who)
            self.held[key] -= amount
        return _SETTLED[event.kind]
