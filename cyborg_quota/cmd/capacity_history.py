# SPDX-License-Identifier: Apache-2.0
"""Commands on the history of providers and inventories: history, checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from oslo_log import log as logging

from cyborg_quota.capacity_types import CapacityDifference, CapacityEntry, CapacityValues, describe
from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.errors import REFUSED, BadUsage

LOG = logging.getLogger(__name__)

COLUMNS = ("id", "at", "actor", "request_id", "action", "provider", "resource", "change", "reason")
DIFFERENCE_COLUMNS = ("before_id", "provider", "resource", "recorded", "actual")
_NOT_RECORDED = (
    "%d providers or inventories were changed without a record, by an earlier release or with SQL. "
    "`cyborg-quota capacity checkpoint` records the present ones."
)


class History(base.Lister):
    """Show who changed providers and inventories, when and why; newest first.

    With --verify, replay the history instead, and compare the result with the
    present providers and inventories. Prints the differences and exits with 1 if
    there are any: an earlier release that still runs, or SQL, makes changes without
    recording them. before_id is the first entry after such a change; without it,
    actual are the present values. What is in use is not part of this history.
    """

    example = (
        "cyborg-quota capacity history --provider node1 --since 30d\n"
        "  cyborg-quota capacity history --resource gpu -f csv\n"
        "  cyborg-quota capacity history --verify"
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")
        parser.add_argument(
            "--since",
            type=arguments.moment_or_age,
            metavar="TIME",
            help="only changes since this time (2026-12-01T08:00Z) or of this age (12h, 30d)",
        )
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="ID", help="start after the entry with this id")
        paging.add_resource(parser)
        parser.add_argument("--verify", action="store_true", help="compare it with the present inventories")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        capacity = self.engine.capacity
        if parsed_args.verify:
            filters = (parsed_args.provider, parsed_args.since, parsed_args.marker, parsed_args.resource)
            if any(value is not None for value in filters):
                raise BadUsage(
                    "--verify replays the whole history: give no --provider, --since, --marker or --resource."
                )
            differences = capacity.verify_history(self.context)
            if differences:
                self.status = REFUSED
                LOG.warning(_NOT_RECORDED, len(differences))
            return DIFFERENCE_COLUMNS, [_difference(one) for one in differences]
        entries = capacity.history(
            self.context,
            parsed_args.provider,
            since=parsed_args.since,
            limit=parsed_args.limit,
            marker=parsed_args.marker,
            resource=parsed_args.resource,
        )
        return COLUMNS, [_row(entry) for entry in entries]


def _row(entry: CapacityEntry) -> tuple[Any, ...]:
    return (
        entry.id,
        formats.timestamp(entry.at),
        formats.Optional(entry.actor),
        formats.Optional(entry.request_id),
        entry.action if entry.operation is None else f"{entry.action} ({entry.operation})",
        formats.Optional(entry.provider),
        formats.Optional(entry.resource),
        describe(entry.before, entry.after),
        formats.Optional(entry.reason),
    )


def _difference(difference: CapacityDifference) -> tuple[Any, ...]:
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
    example after the last host was upgraded. The next verification starts at the
    checkpoint. Prints the number of entries written.
    """

    example = "cyborg-quota capacity checkpoint --reason 'upgrade finished'"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_capacity_reason(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return ("recorded",), (self.engine.capacity.checkpoint(self.context, reason=parsed_args.reason),)
