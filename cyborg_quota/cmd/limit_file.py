# SPDX-License-Identifier: Apache-2.0
"""Commands that take limits and the project tree from a file, and write them to one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.cmd import base, formats
from cyborg_quota.cmd.errors import BadUsage, Located
from cyborg_quota.types import LimitChange

COLUMNS = ("change", "project_id", "resource", "before", "after")


class Import(base.Lister):
    """Make limits and the project tree as a YAML file says; all of it or nothing.

    Prints what it changed. What the file does not mention stays as it is; a
    project lies where it stands in the file (at the top: below none), and a limit
    null is taken away. Every reason for a refusal is named.
    """

    example = "cyborg-quota limit import limits.yaml --dry-run"
    _refusal: exceptions.LimitRefused | None = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", metavar="FILE", help="the file, as `limit export` writes it; - is stdin")
        parser.add_argument(
            "--dry-run", action="store_true", help="write nothing: print what would change, and what would be refused"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        from cyborg_quota.limits import document

        name = "stdin" if parsed_args.file == "-" else parsed_args.file
        try:
            wanted = document.parse(_read(parsed_args.file))
            changes = self.engine.administration.import_limits(self.context, wanted, dry_run=parsed_args.dry_run)
        except exceptions.InvalidDocument as error:
            raise Located(ascii(name), error) from None
        except exceptions.LimitRefused as error:
            if not parsed_args.dry_run:
                raise
            self._refusal, changes = error, error.changes
        return COLUMNS, [_row(change) for change in changes]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """First what would change, then why it would be refused."""
        super().run(parsed_args)
        if self._refusal is not None:
            self.app.stdout.flush()
            raise self._refusal
        return self.status


def _row(change: LimitChange) -> tuple[Any, ...]:
    shown = formats.Optional if change.resource is None else formats.OptionalLimit
    whose = formats.Default(change.project_id)
    return change.action, whose, formats.Optional(change.resource), shown(change.before), shown(change.after)


def _read(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read()
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise BadUsage(f"Cannot read {file!a}: {error.strerror}.") from None


class Export(base.Command):
    """Write all limits and the whole project tree as YAML, for `limit import`."""

    example = "cyborg-quota limit export limits.yaml"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", nargs="?", metavar="FILE", help="where to write it (default: stdout)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from cyborg_quota.limits import document

        text = document.render(self.engine.administration.export_limits(self.context))
        if parsed_args.file is None:
            self.app.stdout.write(text)
            return
        try:
            with open(parsed_args.file, "w", encoding="utf-8") as target:
                target.write(text)
        except OSError as error:
            raise BadUsage(f"Cannot write {parsed_args.file!a}: {error.strerror}.") from None
