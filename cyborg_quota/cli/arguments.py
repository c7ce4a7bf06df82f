# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share, and the parsing of their values."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, NoReturn

from cyborg_quota.cli.errors import BAD_USAGE, BadUsage
from cyborg_quota.surface.operations import Argument
from cyborg_quota.surface.parsing import abbreviated, amount
from cyborg_quota.validation import MAX_EXPIRE_SECONDS


def raise_errors(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Make ``parser`` raise BadUsage, which is printed on one line, instead of printing the usage. Returns it."""

    def error(message: str) -> NoReturn:
        raise _bad_usage(message, parser.prog)

    parser.error = error  # type: ignore[method-assign]
    return parser


def _bad_usage(message: str, prog: str) -> BadUsage:
    message = _NAMED_TYPE.sub("invalid value: ", message)
    sentence = f"{message[:1].upper()}{message[1:]}".rstrip(".")
    return BadUsage(f"{sentence}. See `{prog} --help`.")


@contextlib.contextmanager
def usage_as_errors() -> Iterator[None]:
    """Raise BadUsage if oslo.config refuses the arguments. (Its parser would print the usage to stderr, and exit.)

    All other output to stderr is printed at the end of the block.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as exit_request:
        refusal = _PRINTED_ERROR.search(printed.getvalue())
        if exit_request.code != BAD_USAGE or refusal is None:
            raise
        printed.truncate(0)
        raise _bad_usage(refusal[2], refusal[1]) from None
    finally:
        sys.stderr.write(printed.getvalue())


_PRINTED_ERROR = re.compile(r"(?ms)^(\S[^\n]*): error: (.*)\n\Z")
"""What argparse prints last: the name of the program, and the message."""

_NAMED_TYPE = re.compile(r"invalid \w+ value: ")
"""If a function raises ValueError for a value, argparse's message has the name of this function."""


def once_each(pairs: Iterable[tuple[str, int]], what: str) -> dict[str, int]:
    """Return the pairs as a dict. Raises BadUsage if a resource is given twice; ``what`` names the values."""
    values: dict[str, int] = {}
    for resource, number in pairs:
        if resource in values:
            raise BadUsage(f"{abbreviated(resource)} has two {what}; give one.")
        values[resource] = number
    return values


def bundle(text: str) -> dict[str, int]:
    """Parse ``gpu=2,fpga=1`` into {resource: amount}: each resource once, each amount at least 1."""
    amounts: dict[str, int] = {}
    for resource, number in map(amount, text.split(",")):
        if number < 1:
            raise argparse.ArgumentTypeError(f"{abbreviated(text)}: each amount must be at least 1")
        if resource in amounts:
            raise argparse.ArgumentTypeError(f"{abbreviated(text)}: {abbreviated(resource)} has two amounts")
        amounts[resource] = number
    return amounts


def amounts(text: str = "the amount of a resource, as in gpu=2", *, nargs: str = "+") -> Argument:
    """The positional argument ``deltas``: the requested amounts. ``text``: its help."""
    return Argument("deltas", nargs=nargs, type=amount, metavar="RESOURCE=AMOUNT", help=text)


PROJECT_HELP: Final = "the project's ID or, if Keystone is configured, its name"
PROJECT_DOMAIN: Final = Argument(
    "--project-domain",
    metavar="DOMAIN",
    help="the domain of the project (ID or name), for a name that several domains have",
)


def project(*, required: bool = False) -> tuple[Argument, ...]:
    """--project and --project-domain. The name of a project is resolved before the command runs."""
    option = Argument("--project", dest="project_id", required=required, metavar="PROJECT", help=PROJECT_HELP)
    return option, PROJECT_DOMAIN


FORCE_PROJECT: Final = Argument(
    "--force",
    action="store_true",
    dest="force_project",
    help="the project is an ID; do not ask Keystone whether it exists",
)
"""For a command whose project Keystone must know, if it is configured."""

REASON: Final = Argument(
    "--reason",
    metavar="TEXT",
    help="why, for `history list`, where the project's users can read it (required by [limits] require_reason)",
)
CAPACITY_REASON: Final = Argument("--reason", metavar="TEXT", help="why, for `history list`")


_AGE = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment_or_age(text: str) -> datetime.datetime | datetime.timedelta:
    """Parse a time in ISO 8601 (UTC, or with an offset), or an age: 90s, 30m, 12h, 30d, 4w."""
    age = _AGE.fullmatch(text)
    if age is not None:
        seconds = int(age[1]) * _SECONDS[age[2]]
        if seconds > MAX_EXPIRE_SECONDS:
            raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write an age of at most {_MAX_DAYS}d")
        return datetime.timedelta(seconds=seconds)
    return moment(text)


def moment(text: str) -> datetime.datetime:
    """Parse a time in ISO 8601 as an aware datetime; without an offset, it is in UTC."""
    try:
        # (Before Python 3.11, fromisoformat does not know Z.)
        found = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{abbreviated(text)}: write a time as in 2026-12-01T08:00Z, in UTC if it has no offset"
        ) from None
    return found if found.utcoffset() is not None else found.replace(tzinfo=datetime.timezone.utc)


CONSUMER_AND_GROUP: Final = (
    Argument("--consumer", metavar="NAME", help="the consumer that holds the resources: an ARQ's UUID"),
    Argument("--group", metavar="NAME", help="the group of the consumers: an instance's UUID"),
)
SELECTION: Final = (
    Argument("reservations", nargs="*", metavar="UUID", help="the UUIDs of reservations"),
    *project(),
    *CONSUMER_AND_GROUP,
)
"""The selection of reservations: UUIDs, or --consumer or --group together with --project."""


def selection(
    reservations: list[str], project_id: str | None, consumer: str | None, group: str | None
) -> dict[str, Any]:
    """Return the keyword arguments of the engine's commit, rollback, release or extend. Raises BadUsage."""
    given = {"reservations": reservations or None, "consumer": consumer, "group": group}
    selectors = [name for name, value in given.items() if value is not None]
    if len(selectors) != 1:
        raise BadUsage("Select the reservations by UUIDs, by --consumer or by --group.")
    if selectors != ["reservations"] and project_id is None:
        raise BadUsage(f"--{selectors[0]} needs --project: the name is unique only within a project.")
    return {**given, "project_id": project_id}


_DURATION = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_MAX_DAYS = MAX_EXPIRE_SECONDS // 86400


def duration(text: str) -> int:
    """Parse ``30d``, ``12h``, ``45m`` or ``90s`` into seconds."""
    match = _DURATION.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= MAX_EXPIRE_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{abbreviated(text)}: write a time such as 30d, 12h, 45m or 90s, at most {_MAX_DAYS}d"
        )
    return seconds


SINCE: Final = Argument(
    "--since",
    type=duration,
    metavar="TIME",
    help="only the last TIME of the ledger's history: 30d, 12h, 45m or 90s (default: all that is stored)",
)
CHART: Final = Argument(
    "--chart",
    metavar="FILE",
    help="draw the amounts held under both limits, with a panel for each project and resource, as FILE.png or "
    "FILE.svg (needs cyborg_quota[chart])",
)
OUTPUT: Final = Argument("file", nargs="?", metavar="FILE", help="the file to write; - is stdout (default: stdout)")


@contextlib.contextmanager
def output(stdout: IO[str], file: str | None) -> Iterator[IO[str]]:
    """Open the file of OUTPUT. Raises BadUsage."""
    if file in (None, "-"):
        yield stdout
        return
    try:
        with open(str(file), "w", encoding="utf-8", newline="") as target:
            yield target
    except OSError as error:
        raise BadUsage(f"Cannot write {file!a}: {error.strerror}.") from None
