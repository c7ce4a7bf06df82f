# SPDX-License-Identifier: Apache-2.0
"""Runs a trace against limits in memory, with the pure rules of the engine. No database is read or written.

The memory use depends on the numbers of projects and of consumers that hold something, not on the length of the trace.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.ledger import enforcement, transitions
from cyborg_quota.ledger.transitions import CountersOf
from cyborg_quota.limits.timeline import LimitSet
from cyborg_quota.replay.totals import Holder, Series
from cyborg_quota.replay.traces import Event
from cyborg_quota.types import (
    LIVE_STATES,
    RESERVED,
    TOTAL,
    UNLIMITED,
    Constraint,
    Counters,
    Row,
    UsageKey,
)

_NO_COUNTERS: Final = Counters()


@dataclasses.dataclass(eq=False)
class Simulation:
    """The counters of a ledger under given limits, and what these limits refused.

    The keys of ``refused``, ``bound_by``, ``peak`` and ``counters`` are those of usage rows; the project TOTAL is
    the sum of all projects of the trace. ``peak`` is the largest amount that the limit of the project was compared
    with: its own, or that of its subtree.

    ``counters_of``: see Enforcers.
    """

    limits: LimitSet
    counters_of: CountersOf
    refused: Counter[UsageKey] = dataclasses.field(default_factory=Counter)
    bound_by: dict[UsageKey, Counter[str]] = dataclasses.field(default_factory=dict)
    peak: dict[UsageKey, int] = dataclasses.field(default_factory=dict)
    counters: dict[UsageKey, Counters] = dataclasses.field(default_factory=dict)
    touched: Sequence[UsageKey] = ()
    _live: dict[Holder, Row] = dataclasses.field(default_factory=dict)
    _skipped: set[Holder] = dataclasses.field(default_factory=set)
    _constraints: dict[UsageKey, tuple[list[UsageKey], list[Constraint]]] = dataclasses.field(default_factory=dict)

    def held(self, key: UsageKey) -> int:
        """The amount that the limit of the project is compared with."""
        now = self.counters.get(key, _NO_COUNTERS)
        return now.subtree if self.limits.model.bounds_subtree or key.project_id == TOTAL else now.used + now.reserved

    def add(self, event: Event) -> bool:
        """Apply one event. False: it is a reserve, and was refused. ``touched`` has the keys that it may have changed.

        After a refused reserve, the other events of its consumer are skipped. Raises the errors of the engine:
        ReservationConflict, UsageOverflow, and for a commit what ``transitions`` raises.
        """
        holder = (event.project_id, event.consumer)
        self.touched = ()
        if event.kind == "reserve":
            return self._reserve(event, holder)
        if holder in self._skipped:
            return True
        live = self._live.get(holder)
        if live is None:
            if event.kind == "commit":
                raise exceptions.ReservationNotFound(event.consumer)
            return True
        plan = transitions.decide(event.kind, [live])
        if plan.error is not None:
            raise plan.error
        for move in plan.moves:
            self._charge(UsageKey(live.project_id, live.resource), *transitions.effect(live.state, move.to, live.delta))
            if move.to in LIVE_STATES:
                self._live[holder] = live._replace(state=move.to)
            else:
                del self._live[holder]
        return True

    def _reserve(self, event: Event, holder: Holder) -> bool:
        self._skipped.discard(holder)
        key = UsageKey(event.project_id, event.resource)
        live = self._live.get(holder)
        if live is not None:
            deltas, wanted = {live.resource: live.delta}, {event.resource: event.amount}
            if deltas != wanted:
                raise exceptions.ReservationConflict(event.consumer, deltas, wanted)
            return True
        request = dict.fromkeys(self.counters_of(event.resource, None), event.amount)
        path, constraints = self._path(key)
        violations = enforcement.find_violations(event.project_id, constraints, self.counters, request)
        if violations:
            self._skipped.add(holder)
            self.refused[key] += 1
            binding = enforcement.binding(violations, [counter.project_id for counter in path])
            self.bound_by.setdefault(key, Counter())[binding.project_id] += 1
            self.touched = path
            return False
        width = enforcement.widths([counter.project_id for counter in path], request, self.counters)
        if enforcement.find_violations(event.project_id, width, self.counters, request):
            raise exceptions.UsageOverflow(event.project_id, event.resource, event.amount)
        self._live[holder] = Row(event.line, event.consumer, 0, *key[:2], event.amount, RESERVED, overdue=False)
        self._charge(key, *transitions.effect(None, RESERVED, event.amount))
        return True

    def _charge(self, key: UsageKey, reserved: int, used: int) -> None:
        """Add to the counters of a project, its ancestors and all projects."""
        self.touched, _ = self._path(key)
        for name in self.touched:
            now, is_own = self.counters.get(name, _NO_COUNTERS), name.project_id == key.project_id
            own = (now.used + used, now.reserved + reserved) if is_own else (now.used, now.reserved)
            self.counters[name] = Counters(*own, now.subtree + used + reserved)
            self.peak[name] = max(self.peak.get(name, 0), self.held(name))

    def _path(self, key: UsageKey) -> tuple[list[UsageKey], list[Constraint]]:
        known = self._constraints.get(key)
        if known is None:
            known = self._constraints[key] = ([], [])
            for counter in self.counters_of(key.resource, None):
                project_ids, constraints = self.limits.constraints(key.project_id, counter.resource)
                known[0].extend(UsageKey(project_id, *counter) for project_id in project_ids)
                known[1].extend(constraints)
        return known


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What the limits before and the new limits do to the claims of one project for one resource.

    ``peak`` is the largest amount that was held under the limits before. ``limit_before`` and ``limit_after`` are the
    limits of the project; None: not set. ``bound_by`` is the project whose new limit refused the most claims,
    or TOTAL.
    """

    project_id: str
    resource: str
    refused_before: int
    refused_after: int
    peak: int
    limit_before: int | None
    limit_after: int | None
    bound_by: str | None


class Comparison:
    """Runs two simulations side by side. ``series``: the amounts held, by key, if ``records``.

    ``counters_of``: see Enforcers.
    """

    def __init__(
        self,
        before: LimitSet,
        after: LimitSet,
        *,
        counters_of: CountersOf,
        records: bool = False,
    ) -> None:
        self.before = Simulation(before, counters_of)
        self.after = Simulation(after, counters_of)
        self._records = records
        self.series: dict[UsageKey, tuple[Series, Series]] = {}

    def add(self, event: Event) -> None:
        """Apply one event to both. Raises the errors of Simulation.add."""
        for index, simulation in enumerate((self.before, self.after)):
            is_refused = not simulation.add(event)
            if not self._records:
                continue
            for key in simulation.touched:
                if self._is_unlimited_total(key):
                    continue
                if key not in self.series:
                    self.series[key] = (Series(), Series())
                is_own = key == UsageKey(event.project_id, event.resource)
                self.series[key][index].add(event.time, simulation.held(key), refused=int(is_refused and is_own))

    def outcomes(self) -> list[Outcome]:
        """One for each project and resource that was charged or refused, and for their ancestors; the worst first.

        A resource with a total limit has one for all projects together (TOTAL).
        """
        runs = (self.before, self.after)
        keys = {key for run in runs for key in (*run.counters, *run.refused)}
        outcomes = []
        for key in keys:
            if self._is_unlimited_total(key):
                continue
            bound_by = self.after.bound_by.get(key)
            outcome = Outcome(
                *key[:2],
                self.before.refused[key],
                self.after.refused[key],
                self.before.peak.get(key, 0),
                self.before.limits.limit(*key[:2]),
                self.after.limits.limit(*key[:2]),
                None if bound_by is None else min(bound_by, key=lambda name: (-bound_by[name], name)),
            )
            outcomes.append(outcome)
        return sorted(outcomes, key=_badness)

    def _is_unlimited_total(self, key: UsageKey) -> bool:
        """Whether the key is that of all projects, and neither run has a total limit of the resource."""
        return key.project_id == TOTAL and all(
            run.limits.limit(*key[:2]) == UNLIMITED for run in (self.before, self.after)
        )


def _badness(outcome: Outcome) -> tuple[Any, ...]:
    """The sort key: the most claims refused first, then the highest peak relative to the limit."""
    limit = outcome.limit_after
    share = 0.0 if limit == UNLIMITED else outcome.peak / max(limit or 0, 1)
    return -outcome.refused_after, -outcome.refused_before, -share, outcome.project_id, outcome.resource
