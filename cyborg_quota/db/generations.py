# SPDX-License-Identifier: Apache-2.0
"""The generations of usage rows, by which a charge detects that its path has changed (rule 1 in projects.py).

They are random. After a restore from a backup, or the promotion of a lagging replica, a row may get the id of a lost
row, and a project may be moved again whose move was lost. Numbers in sequence would be given twice then, and a process
that was not restarted would charge the path that it had read before.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import sqlalchemy as sa

_BITS: Final = 30


def first() -> int:
    """The generation of a new row."""
    return secrets.randbits(_BITS)


def other_than(column: sa.Column[int]) -> sa.ColumnElement[Any]:
    """Another generation than the present one. The statement needs the parameter of ``random_step``."""
    step = sa.bindparam("b_step", type_=column.type)
    return (column + step).bitwise_and(sa.literal_column(str(2**_BITS - 1)))


def random_step() -> dict[str, int]:
    """The parameter of ``other_than``: from 1 to 2**29, so that the sum fits into 32 bits."""
    return {"b_step": 1 + secrets.randbits(_BITS - 1)}
