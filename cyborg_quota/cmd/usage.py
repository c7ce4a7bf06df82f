# SPDX-License-Identifier: Apache-2.0
"""Commands on usage: list, check, audit, heal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import Usage
from cyborg_quota.cmd import arguments, base, formats
from cyborg_quota.cmd.errors import REFUSED
from cyborg_quota.types import Counters, Drift

COLUMNS = ("project_id", "resource", "limit", "used", "reserved", "available")
OVER_COLUMNS = ("project_id", "resource", "scope", "limit", "used", "reserved", "requested")
_COUNTERS = ("used", "reserved", "subtree")
DRIFT_COLUMNS = (
    "project_id",
    "resource",
    *(f"{moment}_{counter}" for counter in _COUNTERS for moment in ("recorded", "expected")),
)


class List(base.Lister):
    """List what projects have attached (used) and in flight (reserved), and their limits.

    With --project, also the resources of which it has nothing. Where the source
    of the limits cannot be asked, they are shown as unknown (json: null).
    """

    example = "cyborg-quota usage list --project P -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.project is None:
            found = [
                (record.project_id, record.resource, record.usage)
                for record in self.engine.list_usages(self.context, allow_unknown_limits=True)
            ]
        else:
            usages = self.engine.get_usages(self.context, parsed_args.project, allow_unknown_limits=True)
            found = [(parsed_args.project, resource, usage) for resource, usage in usages.items()]
        return COLUMNS, [(project, resource, *_figures(usage)) for project, resource, usage in found]


def _figures(usage: Usage) -> tuple[Any, ...]:
    is_known = usage.limit is not None
    return (
        formats.Limit(usage.limit) if is_known else formats.Unknown(None),
        usage.used,
        usage.reserved,
        formats.Available(usage.available) if is_known else formats.Unknown(None),
    )


class Check(base.Lister):
    """Say what would refuse a reserve now; writes nothing.

    Prints a row per offended constraint and exits with 1, or nothing and 0.
    """

    example = "cyborg-quota check --project P gpu=2"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser, required=True)
        arguments.add_amounts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        deltas = arguments.once_each(parsed_args.deltas, "amounts")
        overs = self.engine.check(self.context, deltas, parsed_args.project)
        if overs:
            self.status = REFUSED
        return OVER_COLUMNS, [
            (
                over.project_id,
                over.resource,
                over.scope,
                over.limit,
                formats.Optional(over.used),
                formats.Optional(over.reserved),
                over.requested,
            )
            for over in overs
        ]


class Audit(base.Lister):
    """Compare the counters with the reservations; writes nothing.

    Prints a row per difference (what is recorded, what was expected) and exits
    with 1, or nothing and 0. `usage heal` repairs.
    """

    example = "cyborg-quota usage audit -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        drifts = self.engine.audit(self.context)
        if drifts:
            self.status = REFUSED
        return DRIFT_COLUMNS, [_row(drift) for drift in drifts]


class Heal(base.Lister):
    """Set counters that differ from the reservations to what these say.

    May run while others reserve and commit. Prints what it changed: what was
    recorded before, and what is now (expected).
    """

    example = "cyborg-quota usage heal"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "rows") as progress:
            return DRIFT_COLUMNS, [_row(drift) for drift in self.engine.heal(self.context, progress=progress)]


def _row(drift: Drift) -> tuple[Any, ...]:
    figures: list[formats.Optional] = []
    for counter in _COUNTERS:
        figures += [formats.Optional(_counter(moment, counter)) for moment in (drift.recorded, drift.expected)]
    return (drift.project_id, drift.resource, *figures)


def _counter(figures: Counters | None, name: str) -> int | None:
    return None if figures is None else int(getattr(figures, name))
