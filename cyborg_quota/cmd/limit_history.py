# SPDX-License-Identifier: Apache-2.0
"""Commands on the history of limits: history, checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import arguments, base, change_history, formats
from cyborg_quota.types import HistoryDifference, HistoryEntry

LONG_COLUMNS = ("actor_project_id", "request_id")
COLUMNS = (
    "id",
    "at",
    "actor",
    "action",
    "project_id",
    "resource",
    "pod",
    "before",
    "after",
    "from",
    "until",
    "reason",
    *LONG_COLUMNS,
)
DIFFERENCE_COLUMNS = ("before_id", "project_id", "resource", "pod", "recorded", "actual")
_NOT_RECORDED = (
    "%d limits or places in the tree were changed without a record, with SQL. "
    "`cyborg-quota limit checkpoint` records the present ones."
)


class History(change_history.History[HistoryEntry, HistoryDifference]):
    """Show who changed limits and the project tree, when and why; newest first.

    pod is that of a limit per pod. from and until are the span of an override.
    actor_project_id and request_id are the project and the request ID of the
    context in which the limit was changed; a table shows them with --long.

    With --verify, replay the history instead, and compare the result with the
    present limits and tree. Prints the differences and exits with 1 if there are
    any: SQL makes changes without
    recording them. before_id is the first entry after such a change; without it,
    actual is the present value.
    """

    example = (
        "cyborg-quota limit history --project P --since 30d --long\n"
        "  cyborg-quota limit history --since 2026-12-01T08:00Z -f csv\n"
        "  cyborg-quota limit history --verify"
    )

    columns = COLUMNS
    long_columns = LONG_COLUMNS
    difference_columns = DIFFERENCE_COLUMNS
    owner = "project"
    verified = "limits and tree"
    not_recorded = _NOT_RECORDED

    def add_owner(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)

    def entries(self, owner: str | None, **filters: Any) -> Sequence[HistoryEntry]:
        return self.engine.administration.limit_history(self.context, owner, **filters)

    def verify(self) -> Sequence[HistoryDifference]:
        return self.engine.administration.verify_limit_history(self.context)

    def row(self, entry: HistoryEntry) -> tuple[Any, ...]:
        is_limit = entry.resource is not None
        column = formats.OptionalLimit if is_limit else formats.Optional
        action = entry.action if entry.operation is None else f"{entry.action} ({entry.operation})"
        return (
            entry.id,
            formats.timestamp(entry.at),
            formats.Optional(entry.actor),
            action,
            formats.Default(entry.project_id) if is_limit else formats.Optional(entry.project_id),
            formats.Optional(entry.resource),
            formats.Optional(entry.pod),
            column(entry.before),
            column(entry.after),
            formats.timestamp(entry.starts_at),
            formats.timestamp(entry.until),
            formats.Optional(entry.reason),
            formats.Optional(entry.actor_project_id),
            formats.Optional(entry.request_id),
        )

    def difference_row(self, difference: HistoryDifference) -> tuple[Any, ...]:
        column = formats.Optional if difference.resource is None else formats.OptionalLimit
        return (
            formats.Optional(difference.before_entry),
            formats.Default(difference.project_id),
            formats.Optional(difference.resource),
            formats.Optional(difference.pod),
            column(difference.recorded),
            column(difference.actual),
        )


class Checkpoint(base.ShowOne):
    """Record all present limits and the project tree in the history.

    Run this if `limit history --verify` reports changes without a record, for
    example after a repair with SQL. The next verification starts at the
    checkpoint. Prints the number of entries written.
    """

    example = "cyborg-quota limit checkpoint --reason 'repaired with SQL'"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_reason(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        count = self.engine.administration.checkpoint_limits(self.context, reason=parsed_args.reason)
        return ("recorded",), (count,)
