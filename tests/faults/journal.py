# SPDX-License-Identifier: Apache-2.0
"""What workers asked and what they were answered, written as it happens, so that it outlives whoever is killed."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator

ASK, OK = "ask", "ok"
"""What is written of a call: that it was asked, that it was answered; any other word is the name of its error."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line. A thing is what one reserve asked for: a group of its own, of so many rows in the ledger."""

    word: str
    call: str
    thing: str
    project_id: str
    rows: int
    detail: str = ""
    seconds: float = 0.0


class Journal:
    """A line at a time, in the order of all writers; a line that was begun is whole, whoever is killed."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(
        self,
        word: str,
        call: str,
        thing: str,
        project_id: str,
        rows: int,
        *,
        detail: str = "",
        seconds: float = 0.0,
    ) -> None:
        line = json.dumps([word, call, thing, project_id, rows, detail, seconds])
        os.write(self._fd, f"{line}\n".encode())

    def entries(self, begin: int = 0) -> Iterator[Entry]:
        """All lines, in order, or those that were written when the journal had ``begin`` bytes (see ``size``)."""
        with self._path.open("rb") as lines:
            lines.seek(begin)
            for line in lines:
                if line.endswith(b"\n"):
                    yield Entry(*json.loads(line))

    def by_thing(self) -> dict[str, list[Entry]]:
        """The same for each thing."""
        found: dict[str, list[Entry]] = collections.defaultdict(list)
        for entry in self.entries():
            found[entry.thing].append(entry)
        return dict(found)

    def longest_seconds(self) -> float:
        """How long a caller waited for an answer, whatever it was, at most."""
        return max((entry.seconds for entry in self.entries()), default=0.0)

    @property
    def size(self) -> int:
        """In bytes: it grows while somebody gets something done."""
        return self._path.stat().st_size

    def close(self) -> None:
        os.close(self._fd)
