# SPDX-License-Identifier: Apache-2.0
"""How an error ends a program: the exit statuses, and the errors that only a command line has."""

from __future__ import annotations

import re
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions

DONE: Final = 0
REFUSED: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""The last two are what a shell reports of a program that SIGINT or SIGPIPE ended."""


class BadUsage(exceptions.InvalidRequest):
    """The command line itself cannot be followed."""


class Located(exceptions.QuotaError):
    """An engine's error with the place in a file that led to it; ``cause`` decides the exit status."""

    def __init__(self, place: str, cause: exceptions.QuotaError) -> None:
        self.cause = cause
        super().__init__(f"{place}: {cause}")


def exit_status(error: BaseException) -> int:
    """2 where the input was wrong, 1 where it was right and the answer is no."""
    if isinstance(error, Located):
        return exit_status(error.cause)
    if isinstance(error, exceptions.UsageOverflow):
        return REFUSED  # the same amount fits once the project holds less
    wrong = (exceptions.InvalidRequest, exceptions.ConfigurationError, cfg.Error)
    return BAD_USAGE if isinstance(error, wrong) else REFUSED


_NOT_SHOWN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, what ends a line, lone surrogates, and what turns the direction of the text behind it."""


def printable(text: str) -> str:
    """A text for a terminal or a log, on one line: whatever would act, and not show, is escaped."""
    return _NOT_SHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """A message that may have several lines (a library's, mostly) on one."""
    return printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))
