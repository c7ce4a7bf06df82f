# SPDX-License-Identifier: Apache-2.0
"""limit import and export: limits and the project tree as a YAML file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.cmd import arguments, base, formats, projects
from cyborg_quota.cmd.errors import BadUsage, Located
from cyborg_quota.cmd.replay_export import add_chart, add_since
from cyborg_quota.types import TOTAL, RecordedChange

COLUMNS = ("change", "project_id", "resource", "before", "after", "pod")


class Import(base.Previewer):
    """Change limits and the project tree to match a YAML file; all of it or nothing.

    Prints the changes; pod is that of a limit per pod. Limits and projects that
    the file does not mention stay unchanged. Each project is moved to its
    position in the file (at the top level it has no parent); a limit of null is
    removed. If the changes are refused, the error has the first ten reasons;
    `cyborg-quota -v limit import` logs the others. With --dry-run and --against,
    prints the table of `limit simulate`.
    """

    example = "cyborg-quota limit import limits.yaml --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the file, in the format of `limit export`; - is stdin")
        parser.add_argument(
            "--dry-run", action="store_true", help="write nothing; print what would change or be refused"
        )
        arguments.add_reason(parser)
        parser.add_argument(
            "--force", action="store_true", help="do not ask Keystone whether the projects of the file exist"
        )
        parser.add_argument(
            "--against",
            metavar="TRACE|ledger",
            help="with --dry-run: print, instead of the changes, which claims they would have "
            "refused (see `limit simulate`)",
        )
        add_since(parser)
        add_chart(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        name = "stdin" if parsed_args.file == "-" else parsed_args.file
        if parsed_args.against is None and (parsed_args.since or parsed_args.chart):
            raise BadUsage("--since and --chart need --against.")
        if parsed_args.against is not None and not parsed_args.dry_run:
            raise BadUsage("--against needs --dry-run: an import is not simulated.")
        try:
            content = read_document(parsed_args.file)
            self._check_projects(content, parsed_args)
            changes = self.engine.administration.import_limits(
                self.context, content, dry_run=parsed_args.dry_run, reason=parsed_args.reason
            )
        except exceptions.InvalidDocument as error:
            raise Located(ascii(name), error) from None
        except exceptions.LimitRefused as error:
            if not parsed_args.dry_run:
                raise
            self.refusal, self.notice, changes = error, None, error.changes
        if parsed_args.against is not None:
            from cyborg_quota.cmd import simulate

            return simulate.COLUMNS, simulate.rows(self, parsed_args, content)
        return COLUMNS, [change_row(change) for change in changes]

    def _check_projects(self, content: object, parsed_args: argparse.Namespace) -> None:
        """Raise UnknownProject if Keystone does not know a project that the file would change.

        If Keystone is not asked: set the notice about projects that the file would add.
        """
        try:
            changes = self.engine.administration.import_limits(self.context, content, dry_run=True)
        except exceptions.LimitRefused as error:
            changes = list(error.changes)
        if parsed_args.force or not self.app.uses_keystone:
            self.notice = projects.new_projects_notice(self.app, changes, dry_run=parsed_args.dry_run)
            return
        changed = {change.project_id for change in changes if change.project_id and change.action != "unset limit"}
        changed.discard(TOTAL)
        projects.require_known(self.app, changed)


def change_row(change: RecordedChange) -> tuple[Any, ...]:
    """The row of one change; the columns are COLUMNS."""
    column = formats.Optional if change.resource is None else formats.OptionalLimit
    project = formats.Default(change.project_id)
    resource, pod = formats.Optional(change.resource), formats.Optional(change.pod)
    return change.action, project, resource, column(change.before), column(change.after), pod


def read_document(file: str) -> object:
    """The parsed content of a YAML file, not yet checked; - is stdin. Raises BadUsage, InvalidDocument."""
    from cyborg_quota.limits import document

    return document.parse(_read(file))


def _read(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read()
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise BadUsage(f"Cannot read {file!a}: {error.strerror}.") from None


class Export(base.Command):
    """Write all limits and the whole project tree as YAML, in the format of `limit import`."""

    example = "cyborg-quota limit export limits.yaml"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", metavar="FILE", help="the file to write; - is stdout (default: stdout)")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from cyborg_quota.limits import document

        text = document.render(self.engine.administration.export_limits(self.context))
        if parsed_args.file in (None, "-"):
            self.app.stdout.write(text)
            return
        try:
            with open(parsed_args.file, "w", encoding="utf-8") as target:
                target.write(text)
        except OSError as error:
            raise BadUsage(f"Cannot write {parsed_args.file!a}: {error.strerror}.") from None
