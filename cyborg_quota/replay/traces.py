# SPDX-License-Identifier: Apache-2.0
"""Reads a trace: a CSV file of what happened to accelerators, one event a line, ordered by time.

    time,event,consumer,project,resource,amount
    0,reserve,instance_0,app_0,gpu,1

Lines are counted from 1, the header. Each is judged when it is reached, so that what stands before a wrong one is
good. Pure: it knows neither an engine nor a database.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO, Final, Literal, get_args

from cyborg_quota import exceptions, names
from cyborg_quota.types import MAX_AMOUNT

Kind = Literal["reserve", "commit", "rollback", "release"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
HEADER: Final = ["time", "event", "consumer", "project", "resource", "amount"]
HEADER_LINE: Final = 1

_LONGEST_LINE_BYTES: Final = 16384
_BLOCK_BYTES: Final = 1 << 20
_TIME = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)
_AMOUNT = re.compile(r"[0-9]{1,10}", re.ASCII)


class TraceError(exceptions.InvalidRequest):
    """A trace, or a line of it, that cannot be read. ``line`` is None where the whole file is meant."""

    def __init__(self, name: str, line: int | None, reason: str) -> None:
        self.name = name
        self.line = line
        self.reason = reason
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: {reason}.")


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One line. ``time`` is in seconds; ``amount`` is positive."""

    line: int
    time: float
    kind: Kind
    consumer: str
    project_id: str
    resource: str
    amount: int


class Trace:
    """A trace file. Iterating gives its events, as often as wanted; raises TraceError at the first wrong line."""

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
        time = 0.0
        with self._open() as file:
            for number in range(1, max(self.lines, HEADER_LINE) + 1):
                raw = file.readline(_LONGEST_LINE_BYTES + 1)
                fields = self._fields(number, raw)
                if number == HEADER_LINE:
                    if fields != HEADER:
                        raise self._wrong(number, f"the header must be {','.join(HEADER)}")
                    continue
                event = self._event(number, fields)
                if event.time < time:
                    raise self._wrong(number, f"time {event.time:g} is before {time:g}, that of an earlier line")
                time = event.time
                yield event

    def _open(self) -> BinaryIO:
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - the caller closes it
        except (OSError, ValueError) as error:
            raise TraceError(self.name, None, getattr(error, "strerror", None) or "no such file") from None
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise TraceError(self.name, None, "a trace must be a regular file, for it is read more than once")
        return file

    def _fields(self, number: int, raw: bytes) -> list[str]:
        if len(raw) > _LONGEST_LINE_BYTES:
            raise self._wrong(number, f"longer than {_LONGEST_LINE_BYTES} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == HEADER_LINE else "utf-8")
        except UnicodeDecodeError:
            raise self._wrong(number, "not UTF-8") from None
        if "\0" in text:
            raise self._wrong(number, "a NUL character")
        try:
            return next(csv.reader([text.rstrip("\r\n")], strict=True), [])
        except csv.Error as error:
            raise self._wrong(number, str(error)) from None

    def _event(self, number: int, fields: list[str]) -> Event:
        if len(fields) != len(HEADER):
            raise self._wrong(number, f"{len(fields)} columns, not {len(HEADER)}")
        time, kind, consumer, project_id, resource, amount = fields
        if not _TIME.fullmatch(time):
            raise self._wrong(number, f"time {_shown(time)} is not a number of seconds")
        if kind not in KINDS:
            raise self._wrong(number, f"event {_shown(kind)} is none of {', '.join(KINDS)}")
        if not _AMOUNT.fullmatch(amount) or not 0 < int(amount) <= MAX_AMOUNT:
            raise self._wrong(number, f"amount {_shown(amount)} is not an integer from 1 to {MAX_AMOUNT}")
        try:
            for field, value in (("consumer", consumer), ("project", project_id), ("resource", resource)):
                names.check_name(field, value)
        except exceptions.InvalidName as error:
            raise self._wrong(number, str(error).rstrip(".")) from None
        return Event(number, float(time), kind, consumer, project_id, resource, int(amount))

    def _wrong(self, number: int, reason: str) -> TraceError:
        return TraceError(self.name, number, reason)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
