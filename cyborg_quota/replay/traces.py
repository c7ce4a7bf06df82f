# SPDX-License-Identifier: Apache-2.0
"""Reads a trace: a CSV file of quota events, one event per line, ordered by time.

    time,event,consumer,project,resource,amount
    0,reserve,instance_0,app_0,gpu,1

Line numbers start at 1, the header. A line is checked when it is read, so the events before an invalid line can be
used. This module uses neither the engine nor the database.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO, Final, Literal, get_args

from cyborg_quota import exceptions, validation
from cyborg_quota.types import MAX_AMOUNT

Kind = Literal["reserve", "commit", "rollback", "release"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
HEADER: Final = ["time", "event", "consumer", "project", "resource", "amount"]
HEADER_LINE: Final = 1

_LONGEST_LINE: Final = 16384
_BLOCK_BYTES: Final = 1 << 20
_TIME = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"[0-9]{1,10}", re.ASCII)


class TraceError(exceptions.InvalidRequest):
    """A trace, or a line of it, is invalid. ``line`` is None if the error concerns the whole file."""

    def __init__(self, name: str, line: int | None, reason: str) -> None:
        self.line = line
        super().__init__(f"{name}{'' if line is None else f', line {line}'}: {reason}.")


# ``cli`` may import ``replay``, but not the reverse: cli/errors.py exports these too.


class BadUsage(exceptions.InvalidRequest):
    """The arguments of a command are invalid or contradict each other."""


class Located(exceptions.QuotaError):
    """An error of the engine, with the file and line that caused it. ``cause`` determines the exit status."""

    def __init__(self, location: str, cause: exceptions.QuotaError) -> None:
        self.cause = cause
        super().__init__(f"{location}: {cause}")


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One line. ``time`` is in seconds; ``amount`` is at least 1."""

    line: int
    time: float
    kind: Kind
    consumer: str
    project_id: str
    resource: str
    amount: int


class Trace:
    """A trace file. Iteration yields its events, may be repeated, and raises TraceError at the first invalid line."""

    def __init__(self, path: str) -> None:
        """Read the file once, for its ``digest`` (SHA-256, hexadecimal) and its number of ``lines``."""
        self.name = ascii(path)[1:-1]
        self._path = path
        digest = hashlib.sha256()
        self.lines = 0
        last = b"\n"
        with self._open() as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                self.lines += block.count(b"\n")
                last = block
        self.lines += not last.endswith(b"\n")
        self.digest = digest.hexdigest()

    def __iter__(self) -> Iterator[Event]:
        time, number = 0.0, 0
        # (A byte that is not UTF-8 becomes an unpaired surrogate, which no valid value has.)
        with io.TextIOWrapper(self._open(), "utf-8-sig", errors="surrogateescape", newline="\n") as file:
            # (What is read of a longer line has too many characters to be valid.)
            reader = csv.reader(iter(lambda: file.readline(_LONGEST_LINE), ""), strict=True)
            try:
                if next(reader, None) != HEADER:
                    raise TraceError(self.name, HEADER_LINE, f"the header must be {','.join(HEADER)}")
                number = HEADER_LINE
                for fields in itertools.islice(reader, self.lines - HEADER_LINE):
                    number += 1
                    event = self._event(number, fields)
                    if event.time < time:
                        raise TraceError(
                            self.name, number, f"time {event.time:g} is before {time:g}, that of an earlier line"
                        )
                    time = event.time
                    yield event
            except csv.Error as error:
                raise TraceError(self.name, number + 1, str(error)) from None

    def _open(self) -> BinaryIO:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - the callers close it
        except (OSError, ValueError) as error:
            raise TraceError(self.name, None, getattr(error, "strerror", None) or "no such file") from None
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise TraceError(self.name, None, "a trace must be a regular file, because it is read more than once")
        return file

    def _event(self, number: int, fields: list[str]) -> Event:
        if len(fields) != len(HEADER):
            raise TraceError(self.name, number, f"{len(fields)} columns, not {len(HEADER)}")
        time, kind, consumer, project_id, resource, amount = fields
        if not _TIME.fullmatch(time):
            raise TraceError(self.name, number, f"time {_abbreviated(time)} is not a number of seconds")
        if kind not in KINDS:
            raise TraceError(self.name, number, f"event {_abbreviated(kind)} is none of {', '.join(KINDS)}")
        if not _AMOUNT.fullmatch(amount) or not 0 < int(amount) <= MAX_AMOUNT:
            raise TraceError(
                self.name, number, f"amount {_abbreviated(amount)} is not an integer from 1 to {MAX_AMOUNT}"
            )
        try:
            for field, value in (("consumer", consumer), ("project", project_id), ("resource", resource)):
                validation.check_name(field, value)
        except exceptions.InvalidName as error:
            raise TraceError(self.name, number, str(error).rstrip(".")) from None
        return Event(number, float(time), kind, consumer, project_id, resource, int(amount))


def _abbreviated(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
