# SPDX-License-Identifier: Apache-2.0
"""Runs a replay and stores its position. A replay that is killed and run again ends with the same totals.

This needs no extra transaction for an admitted event. The group of a reserve contains its trace and line, so the
ledger records that the line was admitted. The line of a refused reserve is written to the table ``replays``. A
checkpoint every CHECKPOINT_EVENTS lines bounds the search after a crash. The position after a crash is the last line
that one of the three records. The events after it can only be commits, rollbacks and releases, because a reserve would
be recorded. They are repeated, which is safe: these calls are idempotent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.replay.errors import BadUsage, Located
from cyborg_quota.replay.tables import Position, Stored
from cyborg_quota.replay.totals import Tally
from cyborg_quota.replay.traces import HEADER_LINE, Event, Trace, TraceError
from cyborg_quota.validation import Context

CHECKPOINT_EVENTS: Final = 256


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
    _line: int = HEADER_LINE
    _saved: int = HEADER_LINE
    _is_ledger_checked: bool = False
    _maybe_released: set[int] = dataclasses.field(default_factory=set)
    _repeated: set[int] = dataclasses.field(default_factory=set)

    def run(self) -> None:
        """Apply all remaining events.

        Raises TraceError at an invalid line, Located for an error of the engine, and BadUsage if an earlier run had
        other limits. The position is stored in every case.
        """
        events = iter(self.trace)
        stored = self.position.load()
        try:
            if stored is None:
                first = list(itertools.islice(events, 1))  # detects an invalid header before anything is written
                events = itertools.chain(first, events)
                self.position.begin(self._line)
            else:
                events = self._resume(events, stored)
            for event in events:
                self._apply(event)
        except BaseException:
            with contextlib.suppress(exceptions.QuotaError):
                if self._line > self._saved:
                    self.position.save(self._line)
            raise
        self.position.save(self._line)

    def _resume(self, events: Iterator[Event], stored: Stored) -> Iterator[Event]:
        """Find the position and repeat the settling events after it; returns the remaining events."""
        self.is_resumed = True
        self.refused = set(stored.refused)
        self.over_capacity = set(stored.over_capacity)
        self._line = max(stored.position, *stored.refused, HEADER_LINE)
        uncertain: list[Event] = []
        remaining: Iterator[Event] = iter(())
        try:
            for event in events:
                if event.line > self._line and self.tally.is_fresh(event):
                    group = self._group(event)
                    if not self.engine.list_reservations(
                        self.context, event.project_id, consumer=event.consumer, group=group, limit=1
                    ):
                        remaining = itertools.chain([event], events)
                        break
                    self._line = event.line
                    uncertain.clear()
                elif event.line > self._line:
                    uncertain.append(event)
                    if self.tally.is_repeated(event):
                        self._repeated.add(event.line)
                self.tally.add(event, is_refused=event.line in self.refused)
        except TraceError as error:
            remaining = _raising(error)
        self._saved = self._line
        self.position.save(self._line)
        self.progress(self.tally.events - len(uncertain))
        self._repeat(uncertain)
        return remaining

    def _repeat(self, uncertain: list[Event]) -> None:
        """Apply events that are counted but perhaps not applied.

        These are settling calls only: a repeated reserve charges nothing, and is skipped.
        """
        released: set[tuple[str, str]] = set()
        for event in reversed(uncertain):
            holder = (event.project_id, event.consumer)
            if event.kind == "release":
                released.add(holder)
            elif event.kind == "commit" and holder in released:
                self._maybe_released.add(event.line)
        for event in uncertain:
            if not self.tally.is_skipped(event) and event.line not in self._repeated:
                self._call_engine(event)
            self._advance(event)

    def _apply(self, event: Event) -> None:
        is_refused = not (self.tally.is_skipped(event) or self._call_engine(event))
        self.tally.add(event, is_refused=is_refused)
        if is_refused:
            self.refused.add(event.line)
        self._advance(event)

    def _advance(self, event: Event) -> None:
        self._line = event.line
        self.done += 1
        self.progress(1)
        if self._line - self._saved >= CHECKPOINT_EVENTS:
            self.position.save(self._line)
            self._saved = self._line

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
            uuids = self.engine.reserve(
                self.context,
                {event.resource: event.amount},
                project_id=event.project_id,
                consumer=event.consumer,
                group=self._group(event),
                provider=self.provider,
            )
        except (exceptions.OverQuota, exceptions.OverCapacity) as refusal:
            is_over_capacity = isinstance(refusal, exceptions.OverCapacity)
            self.position.refuse(event.line, is_over_capacity=is_over_capacity)
            if is_over_capacity:
                self.over_capacity.add(event.line)
            return False
        if not self._is_ledger_checked and self.tally.is_fresh(event):
            # The first reservation must be made by this replay, and not held by its consumer before.
            reservations = self.engine.list_reservations(self.context, reservations=uuids)
            if any(reservation.group != self._group(event) for reservation in reservations):
                raise BadUsage(
                    f"Consumer {event.consumer} of project {event.project_id} holds reservations that this "
                    "replay did not make. Use a separate database for the replay."
                )
            self._is_ledger_checked = True
        return True

    def _settle(self, event: Event) -> None:
        calls = {"commit": self.engine.commit, "rollback": self.engine.rollback, "release": self.engine.release}
        try:
            calls[event.kind](self.context, project_id=event.project_id, consumer=event.consumer)
        except (exceptions.ReservationReleased, exceptions.ReservationRolledBack):
            # The commit and the release were applied before the crash, and are repeated from the commit on.
            if event.line not in self._maybe_released:
                raise

    def _group(self, event: Event) -> str:
        return f"replay:{self.trace.digest[:16]}:{event.line}"


def _raising(error: TraceError) -> Iterator[Event]:
    """Return an iterator that raises the error at its first step, after the events before it were applied."""
    yield from ()
    raise error
