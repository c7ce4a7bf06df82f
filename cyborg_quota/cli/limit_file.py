# SPDX-License-Identifier: Apache-2.0
"""limits import and export: limits and the project tree as a YAML file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.cli import base, output
from cyborg_quota.cli.errors import BadUsage, Located
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Column, Operation
from cyborg_quota.types import TOTAL, RecordedChange


def _cell(change: RecordedChange, value: Any) -> formats.Cell:
    return (formats.Optional if change.resource is None else formats.OptionalLimit)(value)


COLUMNS: Final = (
    Column("change", value=lambda change: change.action),
    Column("project_id", formats.Default),
    Column("resource", formats.Optional),
    Column("before", value=lambda change: _cell(change, change.before)),
    Column("after", value=lambda change: _cell(change, change.after)),
    Column("pod", formats.Optional),
)
"""The columns of a RecordedChange."""


def _import(
    run: base.Run,
    *,
    file: str,
    reason: str | None,
    dry_run: bool,
    force: bool,
) -> Sequence[RecordedChange]:
    try:
        content = read_document(file)
        _check_projects(run, content, force=force)
        return run.engine.limits.import_limits(run.context, content, dry_run=dry_run, reason=reason)
    except exceptions.InvalidDocument as error:
        raise Located(ascii("stdin" if file == "-" else file), error) from None
    except exceptions.LimitRefused as error:
        if not dry_run:
            raise
        run.refusal = error
        return error.changes


def _check_projects(run: base.Run, content: object, *, force: bool) -> None:
    """Raise UnknownProject if Keystone is asked, and does not know a project that the file would change."""
    if force or not run.app.uses_keystone:
        return
    try:
        changes: Sequence[RecordedChange] = run.engine.limits.import_limits(run.context, content, dry_run=True)
    except exceptions.LimitRefused as error:
        changes = error.changes
    changed = {change.project_id for change in changes if change.project_id and change.action != "unset limit"}
    if unknown := run.app.directory.unknown(changed - {TOTAL}):
        raise exceptions.UnknownProject(unknown[0], hint="To import nevertheless, add --force.")


def read_document(file: str) -> object:
    """The parsed content of a YAML file, not yet checked; - is stdin. Raises BadUsage, InvalidDocument."""
    from cyborg_quota.limits import document

    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
            return document.parse(source.read())
    except OSError as error:
        raise BadUsage(f"Cannot read {file!a}: {error.strerror}.") from None


Import = base.generate(
    Operation(
        """Change limits and the project tree to match a YAML file.

        The defaults, the limits of projects and the tree are changed together, or not
        at all; the total limits, and then the minimums, follow. Prints the changes;
        pod is that of a limit per pod. Limits and projects that the file does not
        mention stay unchanged. Each project is moved to its position in the file (at
        the top level it has no parent); a limit of null is removed. If the changes are
        refused, the error has the first ten reasons; `cyborg-quota -v limits import`
        logs the others.
        """,
        "cyborg-quota limits import limits.yaml --dry-run",
        _import,
        (
            Argument("file", metavar="FILE", help="the file, in the format of `limits export`; - is stdin"),
            Argument("--dry-run", action="store_true", help="write nothing; print what would change or be refused"),
            arguments.REASON,
            Argument("--force", action="store_true", help="do not ask Keystone whether the projects of the file exist"),
        ),
        COLUMNS,
    )
)


def _export(run: base.Run, file: str | None) -> None:
    from cyborg_quota.limits import document

    text = document.render(run.engine.limits.export_limits(run.context))
    with output.output(run.app.stdout, file) as target:
        target.write(text)


Export = base.generate(
    Operation(
        "Write all limits and the whole project tree as YAML, in the format of `limits import`.",
        "cyborg-quota limits export limits.yaml",
        _export,
        (arguments.OUTPUT,),
    )
)
