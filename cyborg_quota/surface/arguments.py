# SPDX-License-Identifier: Apache-2.0
"""Arguments that several operations share, and the parsing of their values.

A value that is invalid is an error of argparse, on one line.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from cyborg_quota.exceptions import InvalidRequest
from cyborg_quota.surface.operations import NAME, Argument, Schema
from cyborg_quota.surface.operations import REASON as REASON_SCHEMA
from cyborg_quota.types import MAX_AMOUNT, MAX_LIMIT
from cyborg_quota.validation import MAX_EXPIRE_SECONDS

T = TypeVar("T")

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def integer(text: str, minimum: int, maximum: int) -> int:
    """Parse an integer from ``minimum`` to ``maximum``."""
    if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write an integer from {minimum} to {maximum}")
    return int(text)


positive: Final = functools.partial(integer, minimum=1, maximum=MAX_AMOUNT)
at_least_zero: Final = functools.partial(integer, minimum=0, maximum=MAX_AMOUNT)
lifetime: Final = functools.partial(integer, minimum=1, maximum=MAX_EXPIRE_SECONDS)


def amount(text: str, form: str = "RESOURCE=AMOUNT, as in gpu=2") -> tuple[str, int]:
    """Parse ``gpu.A100=2`` into (resource, integer), splitting at the last ``=``. ``form``: what an error asks for."""
    resource, equals, number = text.rpartition("=")
    if not equals or not resource or not _INTEGER.fullmatch(number):
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write {form}")
    if abs(int(number)) > MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: at most {MAX_LIMIT}")
    return resource, int(number)


def limit(text: str) -> tuple[str, int]:
    """Parse ``gpu=50`` into (resource, limit): -1 is unlimited, 0 allows nothing."""
    resource, number = amount(text, "RESOURCE=LIMIT, as in gpu=20")
    if number < -1:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: -1 is unlimited, 0 allows nothing")
    return resource, number


def abbreviated(text: str) -> str:
    """A value for a message: quoted, in ASCII, at most about 80 characters."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def once_each(pairs: Iterable[tuple[str, T]] | None) -> dict[str, T]:
    """Return the pairs as a dict. Raises InvalidRequest if a name is given twice."""
    values: dict[str, T] = {}
    for name, value in pairs or ():
        if name in values:
            raise InvalidRequest(f"{abbreviated(name)} is given twice.")
        values[name] = value
    return values


def bundle(text: str) -> dict[str, int]:
    """Parse ``gpu=2,fpga=1`` into {resource: amount}: each resource once, each amount at least 1."""
    amounts = once_each(map(amount, text.split(",")))
    if min(amounts.values()) < 1:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: each amount must be at least 1")
    return amounts


def by_resource(schema: Schema) -> Schema:
    """The schema of an object with a value for each resource."""
    bounds = {"minProperties": 1, "maxProperties": MAX_RESOURCES}
    return {"type": "object", "propertyNames": NAME, "additionalProperties": schema, **bounds}


AMOUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}
MAX_RESOURCES: Final = 1000
"""The maximum number of resources in one request."""


def pairs(name: str, text: str, **details: Any) -> Argument:
    """A positional argument of pairs such as gpu=2, each resource once. Its value is {resource: integer}."""
    defaults = {"nargs": "+", "type": amount, "metavar": "RESOURCE=AMOUNT", "schema": by_resource(AMOUNT)}
    return Argument(name, help=text, collect=once_each, **{**defaults, **details})


class _Operands(argparse.Action):
    """Words such as ``gpu=2``, which ``const`` parses, and the project: the word without ``=``."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        names = [word for word in values if "=" not in word]
        if len(names) > 1:
            raise argparse.ArgumentError(self, f"{abbreviated(names[1])}: name one project only")
        try:
            setattr(namespace, self.dest, [self.const(word) for word in values if "=" in word])
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        namespace.project_id = names[0] if names else None


def operands(name: str, parse: Callable[[str], tuple[str, int]], what: str, text: str, **details: Any) -> Argument:
    """Positional arguments: pairs such as gpu=2, each resource once, and a project, in any order."""
    return Argument(
        name,
        **{"nargs": "+", "metavar": f"RESOURCE={what.upper()}|PROJECT", **details},
        action=_Operands,
        const=parse,
        collect=once_each,
        help=text,
    )


PROJECT_HELP: Final = "the project's ID or, if Keystone is configured, its name"
PROJECT: Final = Argument("project_id", metavar="PROJECT", help=PROJECT_HELP)
"""The project as a positional argument."""


def project(**details: Any) -> Argument:
    """--project. The name of a project is resolved before the command runs."""
    return Argument("--project", dest="project_id", metavar="PROJECT", help=PROJECT_HELP, **details)


FORCE_PROJECT: Final = Argument(
    "--force",
    action="store_true",
    rest="force",
    dest="force_project",
    help="the project is an ID; do not ask Keystone whether it exists",
)
"""For a command whose project Keystone must know, if it is configured."""

REASON: Final = Argument(
    "--reason",
    schema=REASON_SCHEMA,
    metavar="TEXT",
    help="why, for `history list`, where the project's users can read it (required by [limits] require_reason)",
)
CAPACITY_REASON: Final = Argument("--reason", schema=REASON_SCHEMA, metavar="TEXT", help="why, for `history list`")


_DURATION = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment_or_age(text: str) -> datetime.datetime:
    """Parse a time in ISO 8601 (UTC, or with an offset), or an age by this host's clock: 90s, 30m, 12h, 30d, 4w."""
    if not _DURATION.fullmatch(text):
        return moment(text)
    return datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=duration(text))


def moment(text: str) -> datetime.datetime:
    """Parse a time in ISO 8601 as an aware datetime; without an offset, it is in UTC."""
    try:
        # (Before Python 3.11, fromisoformat does not know Z.)
        time = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{abbreviated(text)}: write a time as in 2026-12-01T08:00Z, in UTC if it has no offset"
        ) from None
    return time if time.utcoffset() is not None else time.replace(tzinfo=datetime.timezone.utc)


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _date(text: str, rest: str, what: str) -> datetime.date:
    try:
        # (From Python 3.11 on, fromisoformat parses other forms, too.)
        return datetime.date.fromisoformat(text + rest if _DATE.fullmatch(text + rest) else "")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write {what}") from None


day: Final = functools.partial(_date, rest="", what="a day as in 2026-12-01")
month: Final = functools.partial(_date, rest="-01", what="a month as in 2026-12")
"""Parses a month, as its first day."""


CONSUMER_AND_GROUP: Final = (
    Argument("--consumer", metavar="NAME", help="the consumer that holds the resources: an ARQ's UUID"),
    Argument("--group", metavar="NAME", help="their group, with all groups below it: an instance's UUID, or a path"),
)
SELECTION: Final = (
    Argument("reservations", nargs="*", metavar="UUID", help="the UUIDs of reservations"),
    project(),
    *CONSUMER_AND_GROUP,
)
"""The selection of reservations: UUIDs, or --consumer or --group together with --project."""


def selection(
    reservations: list[str], project_id: str | None, consumer: str | None, group: str | None
) -> dict[str, Any]:
    """Return the keyword arguments of the engine's commit, rollback, release or extend. Raises InvalidRequest."""
    given = {"reservations": reservations or None, "consumer": consumer, "group": group}
    selectors = [name for name, value in given.items() if value is not None]
    if len(selectors) != 1:
        raise InvalidRequest("Select the reservations by UUIDs, by --consumer or by --group.")
    if selectors != ["reservations"] and project_id is None:
        raise InvalidRequest(f"--{selectors[0]} needs --project: the name is unique only within a project.")
    return {**given, "project_id": project_id}


def duration(text: str) -> int:
    """Parse ``4w``, ``30d``, ``12h``, ``45m`` or ``90s`` into seconds."""
    match = _DURATION.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= MAX_EXPIRE_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{abbreviated(text)}: write a time such as 30d, 12h, 45m or 90s, at most {MAX_EXPIRE_SECONDS // 86400}d"
        )
    return seconds


SINCE: Final = Argument(
    "--since",
    type=duration,
    metavar="TIME",
    help="only the last TIME of the ledger's history: 30d, 12h, 45m or 90s (default: all that is stored)",
)
OUTPUT: Final = Argument("file", nargs="?", metavar="FILE", help="the file to write; - is stdout (default: stdout)")


def tags_text(affinity: Mapping[str, str]) -> str:
    """The tags as the command line takes them."""
    return ",".join(f"{key}={value}" for key, value in sorted(affinity.items()))


def tag(text: str) -> list[tuple[str, str]]:
    """Parse ``purpose=CAD``, or several tags as ``tags_text`` writes them: ``purpose=CAD,site=north``."""
    pairs = []
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise argparse.ArgumentTypeError(f"{text!a}: write KEY=VALUE, as in purpose=CAD")
        pairs.append((key, value))
    return pairs


def tags(options: Iterable[list[tuple[str, str]]] | None) -> dict[str, str] | None:
    """Return the tags as a dict, None if there are none. Raises InvalidRequest if a key is given twice."""
    return once_each(itertools.chain.from_iterable(options or ())) or None


TAGS: Final[Schema] = {
    "type": "object",
    "maxProperties": 32,
    "propertyNames": NAME,
    "additionalProperties": NAME,
}


def affinity(text: str, **details: Any) -> Argument:
    """--affinity, which can be repeated. ``text``: its help."""
    kind = {"action": "append", "type": tag, "collect": tags, "schema": TAGS, "metavar": "KEY=VALUE"}
    return Argument("--affinity", help=text, **{**kind, **details})
