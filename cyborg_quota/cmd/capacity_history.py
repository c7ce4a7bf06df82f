# SPDX-License-Identifier: Apache-2.0
"""Commands on the history of providers and inventories: history, checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.capacity_types import CapacityDifference, CapacityEntry, CapacityValues, describe
from cyborg_quota.cmd import arguments, base, change_history, formats

LONG_COLUMNS = ("actor_project_id", "request_id")
COLUMNS = ("id", "at", "actor", "action", "provider", "resource", "change", "reason", *LONG_COLUMNS)
DIFFERENCE_COLUMNS = ("before_id", "provider", "resource", "recorded", "actual")
_NOT_RECORDED = (
    "%d providers or inventories were changed without a record, with SQL. "
    "`cyborg-quota capacity checkpoint` records the present ones."
)


class History(change_history.History[CapacityEntry, CapacityDifference]):
    """Show who changed providers and inventories, when and why; newest first.

    actor_project_id and request_id are the project and the request ID of the
    context in which the change was made; a table shows them with --long.

    With --verify, replay the history instead, and compare the result with the
    present providers and inventories. Prints the differences and exits with 1 if
    there are any: SQL makes changes without
    recording them. before_id is the first entry after such a change; without it,
    actual are the present values. What is in use is not part of this history.
    """

    example = (
        "cyborg-quota capacity history --provider node1 --since 30d --long\n"
        "  cyborg-quota capacity history --resource gpu -f csv\n"
        "  cyborg-quota capacity history --verify"
    )

    columns = COLUMNS
    long_columns = LONG_COLUMNS
    difference_columns = DIFFERENCE_COLUMNS
    owner = "provider"
    verified = "providers and inventories"
    not_recorded = _NOT_RECORDED

    def add_owner(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")

    def entries(self, owner: str | None, **filters: Any) -> Sequence[CapacityEntry]:
        return self.engine.capacity.history(self.context, owner, **filters)

    def verify(self) -> Sequence[CapacityDifference]:
        return self.engine.capacity.verify_history(self.context)

    def row(self, entry: CapacityEntry) -> tuple[Any, ...]:
        return (
            entry.id,
            formats.timestamp(entry.at),
            formats.Optional(entry.actor),
            entry.action if entry.operation is None else f"{entry.action} ({entry.operation})",
            formats.Optional(entry.provider),
            formats.Optional(entry.resource),
            describe(entry.before, entry.after),
            formats.Optional(entry.reason),
            formats.Optional(entry.actor_project_id),
            formats.Optional(entry.request_id),
        )

    def difference_row(self, difference: CapacityDifference) -> tuple[Any, ...]:
        return (
            formats.Optional(difference.before_entry),
            difference.provider,
            formats.Optional(difference.resource),
            _values(difference.recorded),
            _values(difference.actual),
        )


def _values(values: CapacityValues | None) -> formats.Optional:
    return formats.Optional(None if values is None else describe(None, values))


class Checkpoint(base.ShowOne):
    """Record all present providers and inventories in the history.

    Run this if `capacity history --verify` reports changes without a record, for
    example after a repair with SQL. The next verification starts at the
    checkpoint. Prints the number of entries written.
    """

    example = "cyborg-quota capacity checkpoint --reason 'repaired with SQL'"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_capacity_reason(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return ("recorded",), (self.engine.capacity.checkpoint(self.context, reason=parsed_args.reason),)
