# SPDX-License-Identifier: Apache-2.0
"""The table replays: the progress of the replay of a trace. A trace is identified by its digest.

Line 0 is the checkpoint: the position, and under which terms the replay runs. Every other line is that of a reserve
that was refused, with the reason if that was the capacity; what was admitted, the ledger knows.
"""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa

from cyborg_quota.db.models import replays

_CHECKPOINT = 0
_CAPACITY = "capacity"
_row = replays.c


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """The recorded state of a replay. All events up to line ``position`` are done; ``terms`` is the caller's text.

    ``over_capacity``: the lines among ``refused`` that were refused because of the capacity.
    """

    position: int
    terms: str
    refused: frozenset[int]
    over_capacity: frozenset[int] = frozenset()


_READ = sa.select(_row.line, _row.position, _row.limits).where(_row.digest == sa.bindparam("b_digest"))


def read(connection: sa.Connection, digest: str) -> Stored | None:
    """The recorded state, or None if the trace was never replayed on this database."""
    rows = connection.execute(_READ, {"b_digest": digest}).all()
    for row in rows:
        if row.line == _CHECKPOINT:
            refused = frozenset(other.line for other in rows if other.line != _CHECKPOINT)
            over_capacity = frozenset(other.line for other in rows if other.limits == _CAPACITY)
            return Stored(row.position, row.limits, refused, over_capacity)
    return None


_INSERT = sa.insert(replays).values(
    digest=sa.bindparam("b_digest"),
    line=sa.bindparam("b_line"),
    position=sa.bindparam("b_position"),
    limits=sa.bindparam("b_terms"),
)


def begin(connection: sa.Connection, digest: str, position: int, terms: str) -> None:
    """Insert the first checkpoint. Raises DBDuplicateEntry if one exists."""
    connection.execute(_INSERT, {"b_digest": digest, "b_line": _CHECKPOINT, "b_position": position, "b_terms": terms})


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


def move(connection: sa.Connection, digest: str, position: int, before: str, terms: str) -> bool:
    """Update the checkpoint. False: its terms are not ``before``, because another run has taken over the replay."""
    found = connection.execute(
        _MOVE, {"b_digest": digest, "b_position": position, "b_before": before, "b_terms": terms}
    )
    return found.rowcount == 1


_HAS = sa.select(_row.line).where(_row.digest == sa.bindparam("b_digest"), _row.line == sa.bindparam("b_line"))


def refuse(connection: sa.Connection, digest: str, line: int, *, is_over_capacity: bool = False) -> None:
    """Record that the reserve on this line was refused. Idempotent."""
    if connection.execute(_HAS, {"b_digest": digest, "b_line": line}).first() is None:
        reason = _CAPACITY if is_over_capacity else None
        connection.execute(_INSERT, {"b_digest": digest, "b_line": line, "b_position": line, "b_terms": reason})
