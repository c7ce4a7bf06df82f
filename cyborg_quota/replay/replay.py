# SPDX-License-Identifier: Apache-2.0
"""The run of a replay, and its position. Killed at any moment and run again, it ends with the same totals.

How that costs no extra transaction: a reserve carries its trace and line as its group, so the ledger itself says that
the line was admitted; a refused one writes its line into the table ``replays``; a checkpoint every so many events
bounds what has to be looked for. The position after a kill is the last line of which one of the three knows. What
came behind it can only be commits, rollbacks and releases (a reserve would be known), and they are done again: each
says to one that was done already that it was.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.db import replays
from cyborg_quota.db.database import Database, DuplicateEntry
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.replay.errors import BadUsage, Located
from cyborg_quota.replay.totals import Tally
from cyborg_quota.replay.traces import HEADER_LINE, Event, Trace, TraceError
from cyborg_quota.validation import Context

CHECKPOINT_EVENTS: Final = 256


class Position:
    """Where a replay is kept. ``limits`` says, in JSON's types, what decided; it must not change on the way."""

    def __init__(self, database: Database, digest: str, limits: Mapping[str, Any]) -> None:
        self._database = database
        self._digest = digest
        self._limits = json.loads(json.dumps(limits))
        # Each run takes the checkpoint over with a name of its own: of two at once, the first one notices.
        self._terms = self._text(str(uuid.uuid4()))
        self._before = self._terms

    def _text(self, run: str) -> str:
        return json.dumps({"limits": self._limits, "run": run}, sort_keys=True, separators=(",", ":"))

    def load(self) -> replays.Stored | None:
        """What an earlier run left. Raises BadUsage where it ran under other limits."""
        stored = self._database.read(lambda connection: replays.read(connection, self._digest))
        if stored is None:
            return None
        before = json.loads(stored.terms)["limits"]
        if before != self._limits:
            raise BadUsage(
                f"This trace was replayed on this database with other limits ({json.dumps(before, sort_keys=True)}, "
                f"now {json.dumps(self._limits, sort_keys=True)}). Use the same limits to go on, or another database."
            )
        self._before = stored.terms
        return stored

    def begin(self, position: int) -> None:
        """The first checkpoint of a fresh replay."""
        try:
            self._database.write(lambda connection: replays.begin(connection, self._digest, position, self._terms))
        except DuplicateEntry:  # our own, whose answer was lost, or that of a run begun at the same moment
            self.save(position)

    def save(self, position: int) -> None:
        """A checkpoint: all events up to this line are done."""
        moved = self._database.write(
            lambda connection: (
                replays.move(connection, self._digest, position, self._before, self._terms)
                # A first try whose answer was lost has put our own terms there.
                or replays.move(connection, self._digest, position, self._terms, self._terms)
            )
        )
        if not moved:
            raise exceptions.QuotaError("Another run of this replay has taken over on this database; this one stops.")
        self._before = self._terms

    def refuse(self, line: int) -> None:
        """The reserve on this line was refused."""
        self._database.write(lambda connection: replays.refuse(connection, self._digest, line))


class Replay:
    """Pushes a trace's events through an engine, each its own durable transaction.

    After ``run``: ``tally``, ``refused`` (lines), ``done`` (how many events this run did), ``is_resumed``.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        context: Context,
        trace: Trace,
        position: Position,
        progress: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._engine = engine
        self._context = context
        self._trace = trace
        self._cached = position
        self._progress = progress
        self.tally = Tally()
        self.refused: set[int] = set()
        self.done = 0
        self.is_resumed = False
        self._line = HEADER_LINE
        self._saved = HEADER_LINE
        self._is_own_ledger = False
        self._maybe_released: set[int] = set()
        self._repeated: set[int] = set()
        self._known: set[str] = set()
        self._mark = f"replay:{trace.digest[:16]}"

    def run(self) -> None:
        """Do all that is still to be done.

        Raises TraceError at a wrong line, Located where the engine cannot go on, BadUsage for other limits than
        before. Whatever ends it, the position is kept.
        """
        events = iter(self._trace)
        stored = self._cached.load()
        try:
            if stored is None:
                events = _begun(events)  # a wrong header is found before anything is written
                self._cached.begin(self._line)
            else:
                events = self._resume(events, stored)
            for event in events:
                self._do(event)
        except BaseException:
            with contextlib.suppress(exceptions.QuotaError):
                if self._line > self._saved:
                    self._cached.save(self._line)
            raise
        self._cached.save(self._line)

    def _resume(self, events: Iterator[Event], stored: replays.Stored) -> Iterator[Event]:
        """Find the position, do again what may be missing behind it; returns the events that are still to be done."""
        self.is_resumed = True
        self.refused = set(stored.refused)
        self._line = max(stored.position, *stored.refused, HEADER_LINE)
        behind: list[Event] = []
        ahead: Iterator[Event] = iter(())
        try:
            for event in events:
                if event.line > self._line and self.tally.is_fresh(event):
                    if not self._is_admitted(event):
                        ahead = itertools.chain([event], events)
                        break
                    self._line = event.line
                    behind.clear()
                elif event.line > self._line:
                    behind.append(event)
                    if self.tally.is_repeated(event):
                        self._repeated.add(event.line)
                self.tally.add(event, is_refused=event.line in self.refused)
        except TraceError as error:
            ahead = _raising(error)
        self._saved = self._line
        self._cached.save(self._line)
        self._progress(self.tally.events - len(behind))
        self._do_again(behind)
        return ahead

    def _is_admitted(self, event: Event) -> bool:
        found = self._engine.list_reservations(
            self._context, event.project_id, consumer=event.consumer, group=self._group(event), limit=1
        )
        return bool(found)

    def _do_again(self, behind: list[Event]) -> None:
        """These are counted, but perhaps not done: settling calls, for a repeated reserve charges nothing."""
        released: set[tuple[str, str]] = set()
        for event in reversed(behind):
            who = (event.project_id, event.consumer)
            if event.kind == "release":
                released.add(who)
            elif event.kind == "commit" and who in released:
                self._maybe_released.add(event.line)
        for event in behind:
            if not self.tally.is_skipped(event) and event.line not in self._repeated:
                self._push(event)
            self._advance(event)

    def _do(self, event: Event) -> None:
        is_refused = not (self.tally.is_skipped(event) or self._push(event))
        self.tally.add(event, is_refused=is_refused)
        if is_refused:
            self.refused.add(event.line)
        self._advance(event)

    def _advance(self, event: Event) -> None:
        self._line = event.line
        self.done += 1
        self._progress(1)
        if self._line - self._saved >= CHECKPOINT_EVENTS:
            self._cached.save(self._line)
            self._saved = self._line

    def _push(self, event: Event) -> bool:
        """One event through the engine. False: a reserve, and refused."""
        try:
            if event.kind == "reserve":
                return self._reserve(event)
            self._settle(event)
        except exceptions.QuotaError as error:
            raise Located(f"{self._trace.name}, line {event.line}", error) from error
        return True

    def _reserve(self, event: Event) -> bool:
        if event.resource not in self._known:
            self._engine.register_resource(event.resource)
            self._known.add(event.resource)
        try:
            uuids = self._engine.reserve(
                self._context,
                {event.resource: event.amount},
                project_id=event.project_id,
                consumer=event.consumer,
                group=self._group(event),
            )
        except exceptions.OverQuota:
            self._cached.refuse(event.line)
            return False
        if not self._is_own_ledger and self.tally.is_fresh(event):
            self._check_own(event, uuids)
        return True

    def _check_own(self, event: Event, uuids: list[str]) -> None:
        """The first reservation must be the replay's, not one that its consumer held before."""
        found = self._engine.list_reservations(self._context, reservations=uuids)
        if any(one.group != self._group(event) for one in found):
            raise BadUsage(
                f"Consumer {event.consumer} of project {event.project_id} holds reservations that are not this "
                "replay's. Replay on a database of its own."
            )
        self._is_own_ledger = True

    def _settle(self, event: Event) -> None:
        call = {"commit": self._engine.commit, "rollback": self._engine.rollback, "release": self._engine.release}
        try:
            call[event.kind](self._context, project_id=event.project_id, consumer=event.consumer)
        except (exceptions.ReservationReleased, exceptions.ReservationRolledBack):
            # Committed and then released before the kill, and now done again from the commit on.
            if event.line not in self._maybe_released:
                raise

    def _group(self, event: Event) -> str:
        return f"{self._mark}:{event.line}"


def _begun(events: Iterator[Event]) -> Iterator[Event]:
    """The same events, the first of them already read."""
    return itertools.chain(list(itertools.islice(events, 1)), events)


def _raising(error: TraceError) -> Iterator[Event]:
    """Events that end in this error: it comes when it is reached, not before."""
    yield from ()
    raise error
