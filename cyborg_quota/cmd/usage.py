# SPDX-License-Identifier: Apache-2.0
"""Commands on usage: list, check, audit, heal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import Usage
from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.errors import REFUSED
from cyborg_quota.types import Counters, Drift

COLUMNS = ("project_id", "resource", "limit", "used", "reserved", "available")
OVER_COLUMNS = ("project_id", "resource", "scope", "limit", "used", "reserved", "requested")
_COUNTERS = ("used", "reserved", "subtree")
DRIFT_COLUMNS = (
    "project_id",
    "resource",
    *(f"{column}_{counter}" for counter in _COUNTERS for column in ("recorded", "expected")),
)


class List(base.Lister):
    """List the usage of projects (used: attached; reserved: not yet attached) and limits.

    With --project, lists also the resources of which the project has no usage. If
    the limit source is unavailable, limits are shown as unknown (json: null).
    """

    example = "cyborg-quota usage list --project P -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser)
        paging.add_paging(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.project is None:
            usages = [
                (record.project_id, record.resource, record.usage)
                for record in self.engine.list_usages(self.context, allow_unknown_limits=True)
            ]
        else:
            by_resource = self.engine.get_usages(self.context, parsed_args.project, allow_unknown_limits=True)
            usages = [(parsed_args.project, resource, usage) for resource, usage in by_resource.items()]
        usages = paging.page(parsed_args, usages, lambda row: (row[0], row[1]))
        return COLUMNS, [(project, resource, *_usage_columns(usage)) for project, resource, usage in usages]


def _usage_columns(usage: Usage) -> tuple[Any, ...]:
    is_known = usage.limit is not None
    return (
        formats.Limit(usage.limit) if is_known else formats.Unknown(None),
        usage.used,
        usage.reserved,
        formats.Available(usage.available) if is_known else formats.Unknown(None),
    )


class Check(base.Lister):
    """Check whether a reserve would be admitted now; writes nothing.

    If not, prints a row for each limit that it would exceed and exits with 1;
    otherwise prints nothing and exits with 0.
    """

    example = "cyborg-quota check --project P gpu=2"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser, required=True)
        arguments.add_amounts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        deltas = arguments.once_each(parsed_args.deltas, "amounts")
        violations = self.engine.check(self.context, deltas, parsed_args.project)
        if violations:
            self.status = REFUSED
        return OVER_COLUMNS, [
            (
                violation.project_id,
                violation.resource,
                violation.scope,
                violation.limit,
                formats.Optional(violation.used),
                formats.Optional(violation.reserved),
                violation.requested,
            )
            for violation in violations
        ]


class Audit(base.Lister):
    """Compare the usage counters with the reservations; writes nothing.

    If there are differences, prints a row for each (recorded: the counter;
    expected: the sum of the reservations) and exits with 1; otherwise prints
    nothing and exits with 0. `usage heal` repairs the counters.
    """

    example = "cyborg-quota usage audit -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        drifts = self.engine.audit(self.context)
        if drifts:
            self.status = REFUSED
        return DRIFT_COLUMNS, [_row(drift) for drift in drifts]


class Heal(base.Lister):
    """Correct the usage counters that differ from the reservations.

    May run while other programs reserve and commit. Prints a row for each
    corrected counter, with the old value (recorded) and the new one (expected).
    """

    example = "cyborg-quota usage heal"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "rows") as progress:
            return DRIFT_COLUMNS, [_row(drift) for drift in self.engine.heal(self.context, progress=progress)]


def _row(drift: Drift) -> tuple[Any, ...]:
    values: list[formats.Optional] = []
    for counter in _COUNTERS:
        values += [formats.Optional(_counter(counters, counter)) for counters in (drift.recorded, drift.expected)]
    return (drift.project_id, drift.resource, *values)


def _counter(counters: Counters | None, name: str) -> int | None:
    return None if counters is None else int(getattr(counters, name))
