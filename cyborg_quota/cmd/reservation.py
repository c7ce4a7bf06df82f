# SPDX-License-Identifier: Apache-2.0
"""Commands on reservations: make, settle, list, expire."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import Claim, Reservation, exceptions
from cyborg_quota.cmd import arguments, base, formats
from cyborg_quota.types import STATES

COLUMNS = ("uuid", "project_id", "resource", "delta", "state", "consumer", "group", "source", "expire")
ALL_COLUMNS = (*COLUMNS, "created_at", "ended_at")


def _rows(found: Iterable[Reservation]) -> list[tuple[Any, ...]]:
    return [_values(one)[: len(COLUMNS)] for one in found]


def _values(one: Reservation) -> tuple[Any, ...]:
    return (
        one.uuid,
        one.project_id,
        one.resource,
        one.delta,
        one.state,
        formats.Optional(one.consumer),
        formats.Optional(one.group),
        formats.Optional(one.source),
        formats.moment(one.expire),
        formats.moment(one.created_at),
        formats.moment(one.ended_at),
    )


class Reserve(base.Lister):
    """Charge a project with what it is about to attach, if its limits allow.

    With --consumer the command may be repeated: the same amounts give the same
    reservations. Prints the reservations; commit or rollback ends them, and so
    does their expiry.
    """

    example = "cyborg-quota reserve --project P --consumer ARQ-UUID gpu=1 fpga=2"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser, required=True)
        arguments.add_consumer_and_group(parser)
        parser.add_argument(
            "--expire",
            type=int,
            metavar="SECONDS",
            help="how long it lives (default: [quota] reservation_expire)",
        )
        parser.add_argument(
            "--source",
            metavar="NAME",
            help="who makes it, where several programs share the ledger: `reconcile` leaves other sources alone",
        )
        arguments.add_amounts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        deltas = arguments.once_each(parsed_args.deltas, "amounts")
        claim = Claim(parsed_args.consumer, deltas, source=parsed_args.source)
        uuids = self.engine.reserve_many(
            self.context, [claim], parsed_args.expire, parsed_args.project, group=parsed_args.group
        )
        return COLUMNS, _rows(self.engine.list_reservations(self.context, reservations=uuids))


class _Settle(base.Command):
    """A call on reservations that exist."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_selection(parser)
        return parser


class Commit(_Settle):
    """What was reserved is attached: count it as used.

    All of what is named, or none. What is committed already stays so.
    """

    example = "cyborg-quota commit 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.commit(self.context, **arguments.selection(parsed_args))


class Rollback(_Settle):
    """What was reserved is given up: the attach failed.

    All of what is named, or none. What has ended already stays so; what was
    committed is refused (release it).
    """

    example = "cyborg-quota rollback --project P --consumer ARQ-UUID"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.rollback(self.context, **arguments.selection(parsed_args))


class Release(_Settle):
    """What was reserved or attached is free again.

    By --consumer or --group of a project, or by UUID. What has ended already
    stays so.
    """

    example = "cyborg-quota release --project P --group INSTANCE-UUID"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.release(self.context, **arguments.selection(parsed_args))


class Extend(_Settle):
    """What is reserved lives for so much longer, counted from now."""

    example = "cyborg-quota extend --project P --consumer ARQ-UUID --expire 3600"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--expire",
            type=int,
            metavar="SECONDS",
            help="from now (default: [quota] reservation_expire)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.extend(self.context, expire=parsed_args.expire, **arguments.selection(parsed_args))


class List(base.Lister):
    """List reservations, oldest first: those that match all that is given."""

    example = "cyborg-quota reservation list --project P --state reserved -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser)
        parser.add_argument("--state", choices=STATES, help="only those in this state")
        arguments.add_consumer_and_group(parser)
        parser.add_argument("--limit", type=_at_least_one, metavar="N", help="at most so many")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        found = self.engine.list_reservations(
            self.context,
            parsed_args.project,
            state=parsed_args.state,
            consumer=parsed_args.consumer,
            group=parsed_args.group,
            limit=parsed_args.limit,
        )
        return COLUMNS, _rows(found)


class Show(base.ShowOne):
    """Show one reservation, with the times of its beginning and its end."""

    example = "cyborg-quota reservation show 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("uuid", metavar="UUID", help="the reservation")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        found = self.engine.list_reservations(self.context, reservations=[parsed_args.uuid])
        if not found:
            raise exceptions.ReservationNotFound(parsed_args.uuid)
        return ALL_COLUMNS, _values(found[0])


class Expire(base.ShowOne):
    """End every reservation that is overdue, and say how many there were.

    cyborg-quota-expirer does it by itself.
    """

    example = "cyborg-quota expire"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "reservations") as progress:
            return ("expired",), (self.engine.expire(self.context, progress=progress),)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number
