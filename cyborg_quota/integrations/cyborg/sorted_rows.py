# SPDX-License-Identifier: Apache-2.0
"""Sort any number of rows in bounded memory: an external merge sort. Does not import Cyborg."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import operator
import tempfile
from collections.abc import Iterator
from typing import Any, Final, TextIO

from cyborg_quota import spool

Row = list[Any]
"""A key (a text), and further values that JSON can represent. A tuple may be read back as a list."""

RUN_ROWS: Final = 50_000
"""The number of rows in memory. Further rows are written to temporary files, in sorted runs of this length."""
_BUFFER_CHARS: Final = 65536

_key: Final = operator.itemgetter(0)


class SortedRows(contextlib.AbstractContextManager["SortedRows"]):
    """Rows sorted by their first value; rows with the same one stay in the order in which they were added.

    Fewer than RUN_ROWS rows need no file. The files have no name, and are deleted at the end of the ``with`` block or
    of the process. They are in the directory that the environment variable TMPDIR names (tempfile.gettempdir). ``add``
    raises QuotaError if a file cannot be written.
    """

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._runs: list[TextIO] = []

    def __exit__(self, *_error: object) -> None:
        self._rows.clear()
        while self._runs:
            spool.close(self._runs.pop())

    def add(self, row: Row) -> None:
        """Add a row. Do not add rows after the first call of ``groups``."""
        self._rows.append(row)
        if len(self._rows) >= RUN_ROWS:
            self._write_run()

    def _write_run(self) -> None:
        with spool.writing():
            run = tempfile.TemporaryFile("w+", encoding="ascii", buffering=_BUFFER_CHARS)  # noqa: SIM115 (closed at exit)
            self._runs.append(run)
            for row in sorted(self._rows, key=_key):
                run.write(json.dumps(row, separators=(",", ":")) + "\n")
            run.flush()
        self._rows.clear()

    def groups(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield each key with its rows, sorted by key. May be called again when all keys were read."""
        self._rows.sort(key=_key)
        in_order = heapq.merge(*map(_read, self._runs), self._rows, key=_key)
        for key, rows in itertools.groupby(in_order, key=_key):
            yield key, list(rows)


def _read(run: TextIO) -> Iterator[Row]:
    run.seek(0)
    for line in run:
        yield json.loads(line)
