# SPDX-License-Identifier: Apache-2.0
"""The cells of tables: a value for programs, and its text for people."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cliff import columns

from cyborg_quota.types import TOTAL, UNLIMITED

if TYPE_CHECKING:
    _Base = columns.FormattableColumn[Any]
else:
    _Base = columns.FormattableColumn  # older versions of cliff are not generic


class Cell(_Base):
    """A value, and its text in a table. Sorts None last, as cliff does with plain values."""

    def __init__(self, value: Any, text: str) -> None:
        super().__init__(value)
        self._text = text

    def human_readable(self) -> str:
        return self._text

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, columns.FormattableColumn):
            return NotImplemented
        own_value, other_value = self.machine_readable(), other.machine_readable()
        return own_value is not None and (other_value is None or bool(own_value < other_value))


def _shown(texts: Mapping[Any, str]) -> Callable[[Any], Cell]:
    """A function that makes cells. ``texts``: what a table shows for some values."""
    return lambda value: Cell(value, texts.get(value, str(value)))


Limit: Final = _shown({None: "not set", UNLIMITED: "unlimited"})
"""A limit: -1, or ``unlimited`` in a table; null, or ``not set`` in a table, if there is none."""

Available: Final = _shown({None: "unlimited"})
"""The available amount: null, or ``unlimited`` in a table, if there is no limit."""

Unknown: Final = _shown({None: "unknown"})
"""A value that is not available now: null, or ``unknown`` in a table."""

Default: Final = _shown({None: "(default)", TOTAL: "(total)"})
"""The project of a limit. In a table, ``(default)`` is the default of all projects, otherwise null; ``(total)`` is the
total over all projects."""

OptionalProject: Final = _shown({None: "", TOTAL: "(total)"})
"""A project. In a table, ``(total)`` is the total over all projects, and nothing is shown for no project."""

Optional: Final = _shown({None: ""})
"""A value that may be missing: null, or an empty cell in a table."""

NonZero: Final = _shown({None: "", 0: ""})
"""An amount that most rows do not have: a table shows nothing for 0."""

OptionalLimit: Final = _shown({None: "", UNLIMITED: "unlimited"})
"""A limit that may be missing: null, or an empty cell in a table."""


def fits(value: int | None, *, is_unlimited: bool) -> Cell:
    """What fits: a table shows ``unlimited`` if that is so, whatever the exact amount."""
    return Cell(value, "unlimited" if is_unlimited else str(value))


def indented(value: str, depth: int) -> Cell:
    """A project in a tree; a table indents it by two blanks for each level. The total is as in OptionalProject."""
    return Cell(value, "  " * depth + ("(total)" if value == TOTAL else value))


def timestamp(value: datetime.datetime | str | None) -> Cell:
    """Format a stored time (naive UTC) as ISO 8601, always with microseconds. One of the REST API stays as it is."""
    if isinstance(value, datetime.datetime):
        value = f"{value.isoformat(timespec='microseconds')}Z"
    return Optional(value)


def brief(value: datetime.datetime | str | None) -> str:
    """The time of ``timestamp`` in a table that is wide: to the second."""
    return "" if value is None else f"{str(value)[:19].replace(' ', 'T')}Z"


def machine(row: Iterable[Any]) -> list[Any]:
    """A row in a machine-readable format: numbers stay numbers (cliff's CSV would quote them), None stays None."""
    return [value.machine_readable() if isinstance(value, Cell) else value for value in row]


def nothing(noun: str) -> str:
    """What is said of an empty list."""
    return f"No {noun} found."
