# SPDX-License-Identifier: Apache-2.0
"""The table replays: the progress of the replay of a trace. A trace is identified by its digest.

Line 0 is the checkpoint: the position, and under which terms the replay runs. Every other line is that of a reserve
that was refused, with the reason if that was the capacity; what was admitted, the ledger knows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db.database import Database, DuplicateEntry
from cyborg_quota.db.models import replays
from cyborg_quota.replay.errors import BadUsage

_CHECKPOINT = 0
_CAPACITY = "capacity"
_row = replays.c
_READ = sa.select(_row.line, _row.position, _row.limits).where(_row.digest == sa.bindparam("b_digest"))
_INSERT = sa.insert(replays).values(
    digest=sa.bindparam("b_digest"),
    line=sa.bindparam("b_line"),
    position=sa.bindparam("b_position"),
    limits=sa.bindparam("b_terms"),
)
_MOVE = (
    sa.update(replays)
    .where(
        _row.digest == sa.bindparam("b_digest"),
        _row.line == _CHECKPOINT,
        # (An earlier attempt may have been committed although its answer was lost.)
        sa.or_(_row.limits == sa.bindparam("b_before"), _row.limits == sa.bindparam("b_terms")),
    )
    .values(position=sa.bindparam("b_position"), limits=sa.bindparam("b_terms"))
)
_HAS = sa.select(_row.line).where(_row.digest == sa.bindparam("b_digest"), _row.line == sa.bindparam("b_line"))


class Stored(NamedTuple):
    """The recorded state of a replay: all events up to line ``position`` are done.

    ``refused``: the lines of the refused reserves; ``over_capacity``: those refused because of the capacity.
    """

    position: int
    refused: frozenset[int]
    over_capacity: frozenset[int]


class Position:
    """The stored position of a replay.

    :param limits: the limit configuration, in JSON types; it must be the same for all runs of one replay.
    """

    def __init__(self, database: Database, digest: str, limits: Mapping[str, Any]) -> None:
        self._database = database
        self._digest = digest
        self._limits = json.loads(json.dumps(limits))
        # Each run writes its own UUID into the checkpoint, so that of two concurrent runs the first one stops.
        terms = {"limits": self._limits, "run": str(uuid.uuid4())}
        self._terms = json.dumps(terms, sort_keys=True, separators=(",", ":"))
        self._stored_terms = self._terms

    def load(self) -> Stored | None:
        """Return the state that an earlier run stored, or None. Raises BadUsage if that run had other limits."""
        rows = self._database.read(lambda connection: connection.execute(_READ, {"b_digest": self._digest}).all())
        checkpoint = next((row for row in rows if row.line == _CHECKPOINT), None)
        if checkpoint is None:
            return None
        stored_limits = json.loads(checkpoint.limits)["limits"]
        if stored_limits != self._limits:
            raise BadUsage(
                "This trace was replayed on this database with other limits "
                f"({json.dumps(stored_limits, sort_keys=True)}, now {json.dumps(self._limits, sort_keys=True)}). "
                "To resume, use the same limits; otherwise use another database."
            )
        self._stored_terms = checkpoint.limits
        return Stored(
            checkpoint.position,
            frozenset(row.line for row in rows if row.line != _CHECKPOINT),
            frozenset(row.line for row in rows if row.limits == _CAPACITY),
        )

    def begin(self, position: int) -> None:
        """Write the first checkpoint of a new replay."""
        values = {"b_digest": self._digest, "b_line": _CHECKPOINT, "b_position": position, "b_terms": self._terms}
        try:
            self._database.write(lambda connection: connection.execute(_INSERT, values))
        except DuplicateEntry:  # our own INSERT, retried after a lost answer, or that of a concurrent run
            self.save(position)

    def save(self, position: int) -> None:
        """Write a checkpoint: all events up to this line are done."""
        values = {
            "b_digest": self._digest,
            "b_position": position,
            "b_before": self._stored_terms,
            "b_terms": self._terms,
        }
        if self._database.write(lambda connection: connection.execute(_MOVE, values).rowcount) != 1:
            raise exceptions.QuotaError("Another run of this replay took over on this database; this run stops.")
        self._stored_terms = self._terms

    def refuse(self, line: int, *, is_over_capacity: bool) -> None:
        """Record that the reserve on this line was refused. Idempotent."""
        key = {"b_digest": self._digest, "b_line": line}
        values = {**key, "b_position": line, "b_terms": _CAPACITY if is_over_capacity else None}

        def work(connection: sa.Connection) -> None:
            if connection.execute(_HAS, key).first() is None:
                connection.execute(_INSERT, values)

        self._database.write(work)
