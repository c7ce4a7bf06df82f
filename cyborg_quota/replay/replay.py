# SPDX-License-Identifier: Apache-2.0
"""Runs a replay. One that is killed and run again ends with the same totals.

This needs no extra transaction for an admitted event. The group of a reserve contains its trace and line, so the
ledger records that the line was admitted. The line of a refused reserve is written to the table ``replays``. The
position after a crash is the last line that one of the two records. The events after it that were applied can only be
commits, rollbacks, releases, and reserves of what their consumer held already. They are repeated, which is safe: the
calls are idempotent, except that a commit fails whose release was applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cyborg_quota import exceptions, validation
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.replay.tables import Position
from cyborg_quota.replay.totals import Tally
from cyborg_quota.replay.traces import Event, Located, Trace
from cyborg_quota.validation import Context


@dataclasses.dataclass
class Replay:
    """Applies the events of a trace to an engine, each in one durable transaction.

    ``provider``: of every reserve.

    Results after ``run``: ``tally``, ``refused`` and ``over_capacity`` (line numbers; the latter are among the former),
    ``done`` (number of events that this run applied) and ``is_resumed``.
    """

    engine: QuotaEngine
    context: Context
    trace: Trace
    position: Position
    progress: Callable[[int], None] = lambda _count: None
    provider: str | None = None
    tally: Tally = dataclasses.field(default_factory=Tally)
    refused: set[int] = dataclasses.field(default_factory=set)
    over_capacity: set[int] = dataclasses.field(default_factory=set)
    done: int = 0
    is_resumed: bool = False

    def run(self) -> None:
        """Apply all remaining events.

        Raises TraceError at an invalid line, Located for an error of the engine, and BadUsage if an earlier run had
        other limits.
        """
        self.is_resumed, line, refused, over_capacity = self.position.load()
        self.refused.update(refused)
        self.over_capacity.update(over_capacity)
        for event in self.trace:
            if event.line <= line:
                self.tally.add(event, is_refused=event.line in self.refused)
            else:
                self._apply(event)
            self.progress(1)
        self.position.save(self.trace.lines)

    def _apply(self, event: Event) -> None:
        is_refused = not (self.tally.is_skipped(event) or self._call_engine(event))
        self.tally.add(event, is_refused=is_refused)
        if is_refused:
            self.refused.add(event.line)
        self.done += 1

    def _call_engine(self, event: Event) -> bool:
        """Apply one event. Returns False if it is a reserve and was refused."""
        try:
            if event.kind == "reserve":
                return self._reserve(event)
            self._settle(event)
        except exceptions.QuotaError as error:
            raise Located(f"{self.trace.name}, line {event.line}", error) from error
        return True

    def _reserve(self, event: Event) -> bool:
        self.engine.register_resource(event.resource)
        try:
            self.engine.reserve(
                self.context,
                {event.resource: event.amount},
                project_id=event.project_id,
                expire=validation.MAX_EXPIRE_SECONDS,  # (only an event of the trace ends it)
                consumer=event.consumer,
                group=self.position.group(event.line),
                provider=self.provider,
            )
        except (exceptions.OverQuota, exceptions.OverCapacity) as refusal:
            is_over_capacity = isinstance(refusal, exceptions.OverCapacity)
            self.position.refuse(event.line, is_over_capacity=is_over_capacity)
            if is_over_capacity:
                self.over_capacity.add(event.line)
            return False
        return True

    def _settle(self, event: Event) -> None:
        calls = {"commit": self.engine.commit, "rollback": self.engine.rollback, "release": self.engine.release}
        try:
            calls[event.kind](self.context, project_id=event.project_id, consumer=event.consumer)
        except (exceptions.ReservationReleased, exceptions.ReservationRolledBack):
            # According to the trace, the consumer still holds something: a run that was killed had already applied a
            # later line.
            if not (self.is_resumed and self.tally.is_live(event)):
                raise
