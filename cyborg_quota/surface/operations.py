# SPDX-License-Identifier: Apache-2.0
"""The description of an operation: what it does, its arguments, the call, and the columns of what it returns.

Commands are generated from it; see cli/base.py and osc/base.py. It knows no library of a surface but
argparse's types of arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller
from typing import Any, NamedTuple


class Argument:
    """An argument: its name or its options (``--limit``), and how argparse handles it (type, bounds, help)."""

    def __init__(self, *flags: str, **details: Any) -> None:
        self.flags, self.details = flags, details


class OneOf:
    """Arguments of which at most one may be given. ``required``: one must be given."""

    def __init__(self, *arguments: Argument, required: bool = False) -> None:
        self.arguments, self.required = arguments, required


Arguments = Sequence[Argument | OneOf]


def add_to(parser: argparse._ActionsContainer, arguments: Arguments) -> list[str]:
    """Add the arguments to a parser. Returns the names of their values."""
    names: list[str] = []
    for one in arguments:
        if isinstance(one, OneOf):
            names += add_to(parser.add_mutually_exclusive_group(required=one.required), one.arguments)
        else:
            names.append(parser.add_argument(*one.flags, **one.details).dest)
    return names


def _plain(value: Any) -> Any:
    return value


class Column(NamedTuple):
    """A column: its name, how a value is shown (an empty one, above all), and the value (None: the field ``name``)."""

    name: str
    cell: Callable[[Any], Any] = _plain
    value: Callable[[Any], Any] | None = None

    def of(self, record: Any) -> Any:
        """The cell of a record."""
        return self.cell(getattr(record, self.name) if self.value is None else self.value(record))


Columns = Sequence[Column]


def columns(*names: str, cell: Callable[[Any], Any] = _plain) -> list[Column]:
    """Columns that are shown alike, each with the value of the field of its name."""
    return [Column(name, cell) for name in names]


def cells(*names: str) -> list[Column]:
    """The columns of records that are tuples of cells."""
    return [Column(name, value=itemgetter(index)) for index, name in enumerate(names)]


def entries(**names: str) -> list[Column]:
    """The columns of records that are mappings, by the key of the value. A value may be missing."""
    return [Column(name, value=methodcaller("get", key)) for key, name in names.items()]


def names_of(shown: Columns) -> tuple[str, ...]:
    """The names of columns."""
    return tuple(column.name for column in shown)


def values(shown: Columns, record: Any) -> tuple[Any, ...]:
    """The row of a record."""
    return tuple(column.of(record) for column in shown)


class Table(NamedTuple):
    """What a call returns if its arguments determine the columns."""

    columns: Columns
    records: Any


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of one or several surfaces.

    ``summary``: what it does; the first sentence is its title. ``call``: gets the running command and the values of
    ``arguments`` by name, and returns a record or (``is_list``) records, or a Table of them. ``columns``: what is shown
    of a record; None: the operation returns nothing. ``refuses``: it has failed if it returns records. ``progress``:
    the unit of a progress bar, for calls that take a function ``progress``.
    """

    summary: str
    example: str
    call: Callable[..., Any]
    arguments: Arguments = ()
    columns: Columns | None = None
    is_list: bool = True
    refuses: bool = False
    progress: str | None = None
    has_names: bool = True

    def run(self, command: Any, **given: Any) -> Any:
        """Make the call. Returns the names of the columns, and the row or the rows; None if it returns nothing."""
        found = self.call(command, **given)
        if self.columns is None:
            return None
        shown, records = found if isinstance(found, Table) else (self.columns, found)
        return names_of(shown), [values(shown, one) for one in records] if self.is_list else values(shown, records)

    def command(self, run: type, plain: type, lister: type, show: type) -> Any:
        """The command, which is also of the kind for what the call returns: nothing, records or one record."""
        kind = plain if self.columns is None else lister if self.is_list else show
        fields = {
            "__doc__": self.summary,
            "__module__": __name__,
            "operation": self,
            "arguments": self.arguments,
            "example": self.example,
        }
        return type("Generated", (run, kind), fields)
