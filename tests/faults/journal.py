# SPDX-License-Identifier: Apache-2.0
"""A journal of the calls of all workers and their answers.

It is written at once, so that it survives a killed worker.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator

ASK, OK = "ask", "ok"
"""The words of an entry: the call was made, or it was answered. Any other word is the name of the error."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line. A request is the argument of one reserve: a group of its own, with a number of rows in the ledger."""

    word: str
    call: str
    request: str
    project_id: str
    rows: int
    detail: str = ""
    seconds: float = 0.0


class Journal:
    """Writes one line at a time, in the order of all writers.

    A line is never half written, even if its writer is killed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(
        self,
        word: str,
        call: str,
        request: str,
        project_id: str,
        rows: int,
        *,
        detail: str = "",
        seconds: float = 0.0,
    ) -> None:
        line = json.dumps([word, call, request, project_id, rows, detail, seconds])
        os.write(self._fd, f"{line}\n".encode())

    def entries(self, begin: int = 0) -> Iterator[Entry]:
        """Return all lines in order, or those begun when the journal had ``begin`` bytes (see ``size``).

        ``begin`` may lie within a line: the file system may show a line that crosses a page in two parts.
        """
        with self._path.open("rb") as lines:
            if begin:
                lines.seek(begin - 1)
                lines.readline()
            for line in lines:
                if line.endswith(b"\n"):
                    yield Entry(*json.loads(line))

    def by_request(self) -> dict[str, list[Entry]]:
        """Return the entries of each request."""
        found: dict[str, list[Entry]] = collections.defaultdict(list)
        for entry in self.entries():
            found[entry.request].append(entry)
        return dict(found)

    def longest_seconds(self) -> float:
        """Return the longest time that a caller waited for an answer, whatever the answer was."""
        return max((entry.seconds for entry in self.entries()), default=0.0)

    @property
    def size(self) -> int:
        """Return the size in bytes. It grows as long as a worker makes progress."""
        return self._path.stat().st_size

    def close(self) -> None:
        os.close(self._fd)
