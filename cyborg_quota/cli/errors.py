# SPDX-License-Identifier: Apache-2.0
"""The exit statuses of the programs, and how error messages are printed on one line."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf import loading
from cyborg_quota.replay.traces import BadUsage, Located

__all__ = [
    "BAD_USAGE",
    "BROKEN_PIPE",
    "DONE",
    "INTERRUPTED",
    "REFUSED",
    "BadUsage",
    "Located",
    "exit_status",
    "print_line",
    "printable",
    "run_program",
]

LOG = logging.getLogger(__name__)

DONE: Final = 0
REFUSED: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""INTERRUPTED and BROKEN_PIPE are 128 + the signal number (SIGINT, SIGPIPE), as a shell reports them."""


def exit_status(error: BaseException) -> int:
    """Return BAD_USAGE (2) for invalid input or configuration, REFUSED (1) for any other error.

    A Located error has the exit status of its cause.
    """
    if isinstance(error, Located):
        return exit_status(error.cause)
    if isinstance(error, exceptions.UsageOverflow):
        return REFUSED  # the input is valid: the same amount fits when the project holds less
    input_errors = (exceptions.InvalidRequest, exceptions.ConfigurationError, cfg.Error)
    return BAD_USAGE if isinstance(error, input_errors) else REFUSED


_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line separators, lone surrogates, and characters that change the direction of text."""


def printable(text: str) -> str:
    """Escape control characters and line breaks, so that a text is safe on one line of a terminal or a log."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def open_streams() -> None:
    """Open /dev/null in place of the standard streams that the caller has closed, as some daemons do."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def run_program(
    prog: str,
    work: Callable[[], int],
    *,
    debug: bool = False,
    has_debug: bool = True,
    next_step: Callable[[Exception], str] = lambda _error: "",
) -> int:
    """Run ``work``, and print its error on one line to stderr; returns the exit status.

    ``debug``: print its traceback too. ``has_debug``: the program has the option --debug; without it, an error that is
    neither a QuotaError nor of oslo.config is raised. ``next_step``: what follows the text of an error.
    """
    try:
        return work()
    except SystemExit as exit_request:  # argparse has printed the help or the version
        return exit_request.code if isinstance(exit_request.code, int) else BAD_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # so that Python's flush at exit raises no second error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE if isinstance(error, BrokenPipeError) else REFUSED
        if status == REFUSED:
            print_line(prog, f"Input or output failed: {error}.", debug=debug)
        return status
    except (exceptions.QuotaError, cfg.Error) as error:
        text = loading.safe_message(error) if isinstance(error, cfg.Error) else str(error)
        print_line(prog, text + next_step(error), debug=debug)
        return exit_status(error)
    except Exception as error:
        if not has_debug:
            raise
        LOG.debug("Unexpected error:", exc_info=True)
        name = type(error).__name__  # (the repr of an error may have more than its message: the content of a file)
        print_line(prog, f"Internal error: {name}: {error}. (Run with --debug for the traceback.)", debug=debug)
        return REFUSED


def print_line(prog: str, text: str, *, debug: bool = False) -> None:
    """Print a text on one line to stderr. ``debug``: after the traceback of the exception that is handled."""
    if debug:
        traceback.print_exc(file=sys.stderr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]  # (a library's message often has several)
    print(f"{prog}: {printable(' '.join(lines))}", file=sys.stderr)


def raise_errors(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Make ``parser`` raise BadUsage, which is printed on one line, instead of printing the usage. Returns it."""

    def error(message: str) -> NoReturn:
        message = _NAMED_TYPE.sub("invalid value: ", message)
        sentence = f"{message[:1].upper()}{message[1:]}".rstrip(".")
        raise BadUsage(f"{sentence}. See `{parser.prog} --help`.")

    parser.error = error  # type: ignore[method-assign]
    return parser


_NAMED_TYPE = re.compile(r"invalid \w+ value: ")
"""If a function raises ValueError for a value, argparse's message has the name of this function."""
