# SPDX-License-Identifier: Apache-2.0
"""Writes the man page of cyborg-quota from its commands.

python -m tests.man_page > share/man/man1/cyborg-quota.1
"""

from __future__ import annotations

import argparse
import inspect
import pathlib
import sys
from collections.abc import Iterator
from typing import Final

import cyborg_quota
from cyborg_quota.cli.main import EPILOG, Shell

FILE: Final = pathlib.Path(__file__).parents[1] / "share/man/man1/cyborg-quota.1"
_FROM_CLIFF: Final = ("complete", "help")
_FILES: Final = {
    "~/.cyborg_quota/cyborg_quota.conf, ~/cyborg_quota.conf, /etc/cyborg_quota/cyborg_quota.conf, "
    "/etc/cyborg_quota.conf": "The configuration: the first of these that exists is read, unless --config-file names "
    "another one. It contains the password of the database.",
}
_ENVIRONMENT: Final = {
    "OS_GROUP__OPTION": "An option of the configuration, for example OS_DATABASE__CONNECTION for connection in "
    "[database]. It takes precedence over the files.",
}
_EXAMPLES: Final = {
    "cyborg-quota set gpu=4 PROJECT": "Set the limit of a project.",
    "cyborg-quota show --usage PROJECT": "Show what a project has in use and reserved, and what fits.",
    "cyborg-quota audit": "Compare the counters with the reservations.",
}


def text() -> str:
    """The page in the format of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    shell = Shell()
    yield '.\\" Generated: python -m tests.man_page > share/man/man1/cyborg-quota.1'
    yield f'.TH CYBORG\\-QUOTA 1 "" "cyborg_quota {cyborg_quota.__version__}" "User Commands"'
    yield from (".SH NAME", "cyborg\\-quota \\- quota for the accelerators of OpenStack Cyborg")
    yield from (".SH SYNOPSIS", ".B cyborg\\-quota", "[\\fIoption\\fR ...] \\fIcommand\\fR [\\fIargument\\fR ...]")
    yield from (".SH DESCRIPTION", _escape(" ".join(str(shell.parser.description).split())))
    yield from (".SH OPTIONS", *_entries(dict(_options(shell.parser))))
    yield from (".SH COMMANDS", "\\fBcyborg\\-quota help\\fR \\fIcommand\\fR describes the arguments of a command.")
    yield from _entries(dict(_commands(shell)))
    yield from (".SH EXIT STATUS", _escape(EPILOG.removeprefix("exit statuses: ").capitalize() + "."))
    yield from (".SH FILES", *_entries(_FILES), ".SH ENVIRONMENT", *_entries(_ENVIRONMENT))
    yield from (".SH EXAMPLES", *_entries(_EXAMPLES))


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        name = ", ".join(action.option_strings)
        yield (f"{name} {action.metavar}" if action.metavar else name), f"{action.help}."


def _commands(shell: Shell) -> Iterator[tuple[str, str]]:
    for name, entry in sorted(shell.command_manager):
        if name not in _FROM_CLIFF:
            summary, *_ = inspect.cleandoc(entry.load().__doc__).split("\n\n")
            yield name.replace("_", " "), " ".join(summary.split())


def _entries(entries: dict[str, str]) -> Iterator[str]:
    for term, description in entries.items():
        yield from (".TP", f".B {_escape(term)}", _escape(description))


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(text())
