# SPDX-License-Identifier: Apache-2.0
"""What a value looks like to a person and to a program, and the formats cliff has not."""

from __future__ import annotations

import argparse
import csv
import datetime
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from cliff import columns
from cliff.formatters import base
from stevedore import extension

from cyborg_quota.cmd.errors import BadUsage, printable
from cyborg_quota.types import UNLIMITED

TABLE: Final = "table"


if TYPE_CHECKING:
    _Base = columns.FormattableColumn[Any]
else:
    _Base = columns.FormattableColumn  # older ones take no type


class _Column(_Base):
    """Sorts with None last, as cliff does where values stand bare."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, columns.FormattableColumn):
            return NotImplemented
        mine, theirs = self.machine_readable(), other.machine_readable()
        return mine is not None and (theirs is None or bool(mine < theirs))


class Limit(_Column):
    """A limit: -1 for programs, ``unlimited`` for persons; null and ``not set`` where there is none."""

    def human_readable(self) -> str:
        if self._value is None:
            return "not set"
        return "unlimited" if self._value == UNLIMITED else str(self._value)


class Available(_Column):
    """What is left: null for programs where there is no limit, ``unlimited`` for persons."""

    def human_readable(self) -> str:
        return "unlimited" if self._value is None else str(self._value)


class Unknown(_Column):
    """What cannot be looked up now: null for programs, ``unknown`` for persons."""

    def human_readable(self) -> str:
        return "unknown"


class Default(_Column):
    """Whose limit it is: null for programs, ``(default)`` for persons where it is everybody's."""

    def human_readable(self) -> str:
        return "(default)" if self._value is None else str(self._value)


class Indented(_Column):
    """A project in a tree: two blanks a level for persons."""

    def __init__(self, value: str, depth: int) -> None:
        super().__init__(value)
        self._depth = depth

    def human_readable(self) -> str:
        return "  " * self._depth + str(self._value)


class Optional(_Column):
    """What may be missing: null for programs, nothing for persons."""

    def human_readable(self) -> str:
        return "" if self._value is None else str(self._value)


class OptionalLimit(_Column):
    """A limit that may be missing: null for programs, nothing for persons."""

    def human_readable(self) -> str:
        return "" if self._value is None else Limit(self._value).human_readable()


def moment(value: datetime.datetime | None) -> Optional:
    """A stored time (naive UTC) as ISO 8601, always with microseconds."""
    return Optional(None if value is None else f"{value.isoformat(timespec='microseconds')}Z")


def machine(row: Iterable[Any]) -> list[Any]:
    """A row for programs: numbers stay numbers (cliff's CSV would make them text), None stays None."""
    return [value.machine_readable() if isinstance(value, columns.FormattableColumn) else value for value in row]


class _Printable(_Column):
    """Another column, whose text does nothing to a terminal or to the table's lines."""

    def __init__(self, inner: columns.FormattableColumn[Any]) -> None:
        super().__init__(inner.machine_readable())
        self._inner = inner

    def human_readable(self) -> str:
        return printable(str(self._inner.human_readable()))


def person(row: Iterable[Any]) -> list[Any]:
    """A row for a table. Names cannot hold control characters, but a database can be written by hand."""
    return [
        _Printable(value)
        if isinstance(value, columns.FormattableColumn)
        else printable(value)
        if isinstance(value, str)
        else value
        for value in row
    ]


@contextmanager
def known_columns() -> Iterator[None]:
    """cliff says with a ValueError that --column names none of the columns."""
    try:
        yield
    except ValueError as error:
        raise BadUsage(str(error)) from None


class _CSV(base.SingleFormatter, base.ListFormatter):
    """One thing as a CSV file of one line; cliff has CSV for lists alone."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """It has no options."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        self.emit_list(column_names, [data], stdout, parsed_args)

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        writer = csv.writer(stdout, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(column_names)
        writer.writerows(data)


def with_csv(plugins: Any) -> Any:
    """cliff's formatters of one thing, and CSV. (An entry point would give it to every cliff program.)"""
    none: Any = None  # there is no entry point, and nothing to load
    plugins.extensions.append(extension.Extension("csv", none, none, _CSV()))
    return plugins
