# SPDX-License-Identifier: Apache-2.0
"""How an error ends a program: the exit statuses, and the errors that only a command line has."""

from __future__ import annotations

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
