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
from typing import Any, NoReturn

from cyborg_quota.cmd.errors import BAD_USAGE, BadUsage
from cyborg_quota.types import MAX_AMOUNT, MAX_LIMIT
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

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def integer(text: str, least: int, most: int = MAX_AMOUNT) -> int:
    """Parse an integer from ``least`` to ``most``."""
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: write an integer from {least} to {most}")
    return int(text)


def amount(text: str) -> tuple[str, int]:
    """Parse ``gpu.A100=2`` into (resource, integer), splitting at the last ``=``."""
    return _pair(text, "RESOURCE=AMOUNT, as in gpu=2", MAX_AMOUNT)


def _pair(text: str, form: str, most: int) -> tuple[str, int]:
    resource, equals, number = text.rpartition("=")
    if not equals or not resource or not _INTEGER.fullmatch(number):
        raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: write {form}")
    if abs(int(number)) > most:
        raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: at most {most}")
    return resource, int(number)


def limit(text: str) -> tuple[str, int]:
    """Parse ``gpu=50`` into (resource, limit): -1 is unlimited, 0 allows nothing."""
    resource, number = _pair(text, "RESOURCE=LIMIT, as in gpu=20", MAX_LIMIT)
    if number < -1:
        raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: -1 is unlimited, 0 allows nothing")
    return resource, number


def once_each(pairs: Iterable[tuple[str, int]], what: str) -> dict[str, int]:
    """Return the pairs as a dict. Raises BadUsage if a resource is given twice; ``what`` names the values."""
    values: dict[str, int] = {}
    for resource, number in pairs:
        if resource in values:
            raise BadUsage(f"{_abbreviated(resource)} has two {what}; give one.")
        values[resource] = number
    return values


def bundle(text: str) -> dict[str, int]:
    """Parse ``gpu=2,fpga=1`` into {resource: amount}: each resource once, each amount at least 1."""
    amounts: dict[str, int] = {}
    for resource, number in map(amount, text.split(",")):
        if number < 1:
            raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: each amount must be at least 1")
        if resource in amounts:
            raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: {_abbreviated(resource)} has two amounts")
        amounts[resource] = number
    return amounts


def add_amounts(
    parser: argparse.ArgumentParser,
    *,
    nargs: str = "+",
    text: str = "the amount of a resource, as in gpu=2",
) -> None:
    """Add the positional argument ``deltas``: the requested amounts. ``text``: its help."""
    parser.add_argument("deltas", nargs=nargs, type=amount, metavar="RESOURCE=AMOUNT", help=text)


PROJECT_HELP = "the project's ID or, if Keystone is configured, its name"


def add_project(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add --project and --project-domain. The name of a project is resolved before the command runs."""
    parser.add_argument("--project", required=required, metavar="PROJECT", help=PROJECT_HELP)
    add_project_domain(parser)


def add_project_domain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--project-domain",
        metavar="DOMAIN",
        help="the domain of the project (ID or name), for a name that several domains have",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add --force to a command whose project Keystone must know, if it is configured."""
    parser.add_argument(
        "--force",
        action="store_true",
        dest="force_project",
        help="the project is an ID; do not ask Keystone whether it exists",
    )
    parser.set_defaults(must_exist=True)


def add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        help="why, for `history list`, where the project's users can read it (required by [limits] require_reason)",
    )


def add_capacity_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="why, for `history list`")


_AGE = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment_or_age(text: str) -> datetime.datetime | datetime.timedelta:
    """Parse a time in ISO 8601 (UTC, or with an offset), or an age: 90s, 30m, 12h, 30d, 4w."""
    age = _AGE.fullmatch(text)
    if age is not None:
        seconds = int(age[1]) * _SECONDS[age[2]]
        if seconds > MAX_EXPIRE_SECONDS:
            raise argparse.ArgumentTypeError(f"{_abbreviated(text)}: write an age of at most {_MAX_DAYS}d")
        return datetime.timedelta(seconds=seconds)
    return moment(text)


def moment(text: str) -> datetime.datetime:
    """Parse a time in ISO 8601 as an aware datetime; without an offset, it is in UTC."""
    try:
        # (Before Python 3.11, fromisoformat does not know Z.)
        found = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{_abbreviated(text)}: write a time as in 2026-12-01T08:00Z, in UTC if it has no offset"
        ) from None
    return found if found.utcoffset() is not None else found.replace(tzinfo=datetime.timezone.utc)


def add_consumer_and_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumer", metavar="NAME", help="the consumer that holds the resources: an ARQ's UUID")
    parser.add_argument("--group", metavar="NAME", help="the group of the consumers: an instance's UUID")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the selection of reservations: UUIDs, or --consumer or --group together with --project."""
    parser.add_argument("reservations", nargs="*", metavar="UUID", help="the UUIDs of reservations")
    add_project(parser)
    add_consumer_and_group(parser)


def selection(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of the engine's commit, rollback, release or extend. Raises BadUsage."""
    selectors = [name for name in ("reservations", "consumer", "group") if getattr(parsed, name) not in (None, [])]
    if len(selectors) != 1:
        raise BadUsage("Select the reservations by UUIDs, by --consumer or by --group.")
    if selectors != ["reservations"] and parsed.project is None:
        raise BadUsage(f"--{selectors[0]} needs --project: the name is unique only within a project.")
    return {selectors[0]: getattr(parsed, selectors[0]), "project_id": parsed.project}


def _abbreviated(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


_DURATION = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_MAX_DAYS = MAX_EXPIRE_SECONDS // 86400


def duration(text: str) -> int:
    """Parse ``30d``, ``12h``, ``45m`` or ``90s`` into seconds."""
    match = _DURATION.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= MAX_EXPIRE_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{_abbreviated(text)}: write a time such as 30d, 12h, 45m or 90s, at most {_MAX_DAYS}d"
        )
    return seconds
