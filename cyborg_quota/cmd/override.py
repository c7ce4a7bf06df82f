# SPDX-License-Identifier: Apache-2.0
"""Commands on overrides: limit override list, cancel. (`limit set --until` makes them.)"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import arguments, base, formats, paging

COLUMNS = ("id", "project_id", "resource", "limit", "from", "until", "is_active", "reason")


class List(base.Lister):
    """List the overrides that have not ended, in the order in which they were made.

    Where several overrides of a limit are active, the last one in the list
    applies. is_active is true between from and until, by the database's clock.
    """

    example = "cyborg-quota limit override list --project P"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="ID", help="start after the override with this id")
        paging.add_resource(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        overrides, now = self.engine.administration.list_overrides(
            self.context,
            parsed_args.project,
            limit=parsed_args.limit,
            after=parsed_args.marker,
            resource=parsed_args.resource,
        )
        return COLUMNS, [
            (
                one.id,
                one.project_id,
                one.resource,
                formats.Limit(one.limit),
                formats.timestamp(one.starts_at),
                formats.timestamp(one.until),
                now is not None and one.starts_at <= now,
                formats.Optional(one.reason),
            )
            for one in overrides
        ]


class Cancel(base.Command):
    """Cancel overrides. All of them are cancelled, or none.

    The limits that are set without --until apply again. The project keeps what it
    holds.
    """

    example = "cyborg-quota limit override cancel 42-0 --reason 'workshop is over'"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ids", nargs="+", metavar="ID", help="the id, as in `limit override list`")
        arguments.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.cancel_overrides(self.context, parsed_args.ids, reason=parsed_args.reason)
