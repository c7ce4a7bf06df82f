# SPDX-License-Identifier: Apache-2.0
"""The table replays: the progress of the replay of a trace. A trace is identified by its digest.

Line 0 has the terms under which the replay runs, and its position: the last line, when all events are done. Every other
line is that of a reserve that was refused, with the reason if that was the capacity; what was admitted, the ledger
knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import paging
from cyborg_quota.db.database import Database
from cyborg_quota.db.models import replays, reservations
from cyborg_quota.replay.traces import BadUsage

_CHECKPOINT = 0
_CAPACITY = "capacity"
_row = replays.c


class Stored(NamedTuple):
    """What earlier runs of a replay have recorded: all reserves up to ``line`` are done, and none after it.

    ``refused``: the lines of the refused reserves; ``over_capacity``: those refused because of the capacity.
    """

    is_resumed: bool
    line: int
    refused: frozenset[int]
    over_capacity: frozenset[int]


class Position:
    """The stored position of a replay.

    :param limits: the limit configuration, in JSON types; it must be the same for all runs of one replay.
    """

    def __init__(self, database: Database, digest: str, limits: Mapping[str, Any]) -> None:
        self._database = database
        self._digest = digest
        self._limits = json.dumps(limits, sort_keys=True)

    def group(self, line: int | str) -> str:
        """The group of the reserve on this line."""
        return f"replay:{self._digest[:16]}:{line}"

    def load(self) -> Stored:
        """Return what earlier runs recorded; the first one stores the limits. Raises BadUsage if they had others."""
        rows, admitted = self._database.read(self._read)
        if not rows:
            self._insert(_CHECKPOINT, self._limits)
        for limits in (row.limits for row in rows if row.line == _CHECKPOINT and row.limits != self._limits):
            raise BadUsage(
                f"This trace was replayed on this database with other limits ({limits}, now {self._limits}). To "
                "resume, use the same limits; otherwise use another database."
            )
        return Stored(
            bool(rows),
            max((admitted, *(row.position for row in rows))),
            frozenset(row.line for row in rows if row.line != _CHECKPOINT),
            frozenset(row.line for row in rows if row.limits == _CAPACITY),
        )

    def _read(self, connection: sa.Connection) -> tuple[Any, int]:
        """The rows of the trace, and the last line that was admitted (0: none)."""
        rows = connection.execute(sa.select(_row.line, _row.position, _row.limits).where(_row.digest == self._digest))
        groups = sa.select(reservations.c.group_id).where(reservations.c.group_id.like(self.group("%")))
        last = connection.execute(groups.order_by(reservations.c.id.desc()).limit(1)).scalar()
        return rows.all(), int(last.rpartition(":")[2]) if last else 0

    def save(self, position: int) -> None:
        """Record that all events up to this line are done."""
        checkpoint = sa.update(replays).where(_row.digest == self._digest, _row.line == _CHECKPOINT)
        self._database.write(lambda connection: connection.execute(checkpoint.values(position=position)))

    def refuse(self, line: int, *, is_over_capacity: bool) -> None:
        """Record that the reserve on this line was refused. Idempotent."""
        self._insert(line, _CAPACITY if is_over_capacity else None)

    def _insert(self, line: int, limits: str | None) -> None:
        values = {"digest": self._digest, "line": line, "position": line, "limits": limits}

        def work(connection: sa.Connection) -> None:
            if not paging.exists(connection, _row.digest == self._digest, _row.line == line):
                connection.execute(sa.insert(replays).values(values))

        self._database.write(work)
