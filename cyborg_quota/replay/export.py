# SPDX-License-Identifier: Apache-2.0
"""Writes the ledger's history as a trace. A replay of it, without a limit, ends with the counters of the ledger.

Each reservation is a consumer of its own, named by its UUID: the trace format allows one resource for each consumer.
Refused requests are not in it, because the ledger does not store them; nor is what a purge has deleted.
"""

from __future__ import annotations

import csv
import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TextIO

from cyborg_quota.db import history
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.replay.traces import HEADER, HEADER_LINE, Event, Kind
from cyborg_quota.types import COMMITTED, MICROSECONDS, RELEASED

_PROGRESS_ROWS: Final = 1000


def events(rows: Iterable[Any], begin: datetime.datetime) -> Iterator[Event]:
    """The events of a trace whose time 0 is ``begin``, from the rows of history.stream. Pure.

    A resize or a transfer ends one consumer of the trace, and begins another at the same time: UUID-1, UUID-2, ...
    """
    changes: Counter[str] = Counter()
    line = HEADER_LINE
    for row in rows:
        if row.step == history.TAKE:
            changes[row.uuid] += 1
        consumer = f"{row.uuid}-{changes[row.uuid]}" if row.uuid in changes else row.uuid
        for kind in _kinds(row):
            line += 1
            time = ((row.moment or begin) - begin) / datetime.timedelta(seconds=1)
            yield Event(line, time, kind, consumer, row.project_id, row.resource, row.delta)
        if row.step == history.END:
            changes.pop(row.uuid, None)


def _kinds(row: Any) -> list[Kind]:
    """The kinds of the events of a row, which happen at the same time."""
    if row.step in (history.RESERVE, history.TAKE):
        return ["reserve", "commit"] if row.step == history.TAKE and row.state == COMMITTED else ["reserve"]
    if row.step == history.COMMIT:
        return ["commit"]
    return ["release" if row.state == (COMMITTED if row.step == history.LEAVE else RELEASED) else "rollback"]


def write(
    database: Database, file: TextIO, since_seconds: int | None, progress: Callable[[int], None] = lambda _count: None
) -> None:
    """Write the history of the last seconds (None: all of it) to a seekable file."""

    def work(connection: Connection) -> None:
        file.seek(0)
        file.truncate()  # a retried transaction writes everything again
        begin = history.begin(connection, None if since_seconds is None else since_seconds * MICROSECONDS)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for event in events(history.stream(connection, begin), begin):
            time = f"{event.time:.6f}".rstrip("0").rstrip(".")
            writer.writerow((time, event.kind, event.consumer, event.project_id, event.resource, event.amount))
            if event.line % _PROGRESS_ROWS == 0:
                progress(_PROGRESS_ROWS)

    database.read(work)
