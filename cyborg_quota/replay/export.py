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
from typing import Final, TextIO

from cyborg_quota.db import history, overrides
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.replay.traces import HEADER, Event, Kind
from cyborg_quota.types import MICROSECONDS, RELEASED

_PROGRESS_ROWS: Final = 1000
_HEADER_LINES: Final = 1


def events(rows: Iterable[history.HistoryRow], begin: datetime.datetime) -> Iterator[Event]:
    """The events of a trace whose time 0 is ``begin``. Pure.

    What a negative reservation frees is written when the trace holds that much. It can hold less at the time of the
    commit: what was freed then has been deleted by a purge, while the negative reservation is still stored.
    """
    used: Counter[tuple[str, str]] = Counter()
    pending: dict[tuple[str, str], list[history.HistoryRow]] = {}
    line = _HEADER_LINES
    time = 0.0

    def make(row: history.HistoryRow, kind: Kind) -> Event:
        nonlocal line
        line += 1
        return Event(line, time, kind, row.uuid, row.project_id, row.resource, row.delta)

    def free(key: tuple[str, str]) -> Iterator[Event]:
        while pending.get(key) and used[key] + pending[key][0].delta >= 0:
            row = pending[key].pop(0)
            used[key] += row.delta
            yield make(row, "reserve")
            yield make(row, "commit")

    for row in rows:
        time = (row.moment - begin) / datetime.timedelta(seconds=1)
        key = (row.project_id, row.resource)
        if row.delta < 0:
            if row.step == history.COMMIT:
                pending.setdefault(key, []).append(row)
                yield from free(key)
        elif row.step == history.RESERVE:
            yield make(row, "reserve")
        elif row.step == history.COMMIT:
            used[key] += row.delta
            yield make(row, "commit")
            yield from free(key)
        else:
            used[key] -= row.delta if row.state == RELEASED else 0
            yield make(row, "release" if row.state == RELEASED else "rollback")
    for key in sorted(pending):
        yield from free(key)


def database_time(database: Database) -> datetime.datetime:
    """The present time of the database, naive UTC."""
    return database.read(overrides.now)


def write(
    database: Database, file: TextIO, since_seconds: int | None, progress: Callable[[int], None] = lambda _count: None
) -> history.Span:
    """Write the history of the last seconds (None: all of it) to a seekable file. Returns the span of time."""

    def work(connection: Connection) -> history.Span:
        file.seek(0)
        file.truncate()  # a retried transaction writes everything again
        span = history.span(connection, None if since_seconds is None else since_seconds * MICROSECONDS)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for event in events(history.stream(connection, span.begin), span.begin):
            time = f"{event.time:.6f}".rstrip("0").rstrip(".")
            writer.writerow((time, event.kind, event.consumer, event.project_id, event.resource, event.amount))
            if event.line % _PROGRESS_ROWS == 0:
                progress(_PROGRESS_ROWS)
        return span

    return database.read(work)
