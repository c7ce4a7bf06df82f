# SPDX-License-Identifier: Apache-2.0
"""Output of rows in tables and in machine-readable formats, and CSV output of one object, which cliff lacks."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, TextIO

from cliff import columns
from cliff.formatters import base, commaseparated

from cyborg_quota.cli.errors import BadUsage, printable
from cyborg_quota.surface.formats import Cell

TABLE: Final = "table"


def human(row: Iterable[Any]) -> list[Any]:
    """A row for a table, with control characters escaped.

    The engine allows no control characters in names, but rows written with plain SQL may have them.
    """
    return [
        Cell(value.machine_readable(), printable(str(value.human_readable())))
        if isinstance(value, columns.FormattableColumn)
        else printable(value)
        if isinstance(value, str)
        else value
        for value in row
    ]


@contextmanager
def known_columns() -> Iterator[None]:
    """Turn the ValueError that cliff raises for an unknown --column into BadUsage."""
    try:
        yield
    except ValueError as error:
        raise BadUsage(str(error)) from None


class CSV(commaseparated.CSVLister, base.SingleFormatter):
    """Prints one object as CSV with one row; cliff has CSV only for lists."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        self.emit_list(column_names, [data], stdout, parsed_args)


@contextmanager
def output(stdout: IO[str], file: str | None) -> Iterator[IO[str]]:
    """Open the file of OUTPUT. Raises BadUsage."""
    if file in (None, "-"):
        if isinstance(stdout, io.TextIOWrapper):
            stdout.reconfigure(encoding="utf-8")  # as that of a file, whatever the locale
        yield stdout
        return
    try:
        with open(str(file), "w", encoding="utf-8", newline="") as target:
            yield target
    except OSError as error:
        raise BadUsage(f"Cannot write {file!a}: {error.strerror}.") from None
