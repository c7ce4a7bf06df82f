# SPDX-License-Identifier: Apache-2.0
"""Commands on reservations: reserve, commit, rollback, release, extend, list, show and expire."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import Claim, PodChoice, Reservation, exceptions
from cyborg_quota.cmd import arguments, base, formats, paging, pod
from cyborg_quota.cmd.errors import BadUsage
from cyborg_quota.types import COMMITTED, SELECT_TEXT, STATES

COLUMNS = ("uuid", "project_id", "resource", "delta", "state", "consumer", "group", "source", "expire")
ALL_COLUMNS = (*COLUMNS, "created_at", "ended_at", "provider")


def _rows(reservations: Iterable[Reservation]) -> list[tuple[Any, ...]]:
    return [_values(reservation)[: len(COLUMNS)] for reservation in reservations]


def _values(reservation: Reservation) -> tuple[Any, ...]:
    return (
        reservation.uuid,
        reservation.project_id,
        reservation.resource,
        reservation.delta,
        reservation.state,
        formats.Optional(reservation.consumer),
        formats.Optional(reservation.group),
        formats.Optional(reservation.source),
        formats.timestamp(None if reservation.state == COMMITTED else reservation.expire),
        formats.timestamp(reservation.created_at),
        formats.timestamp(reservation.ended_at),
        formats.Optional(reservation.provider),
    )


class Reserve(base.Lister):
    """Reserve accelerators for a project, if its limits allow.

    With --consumer, the command may be repeated: the same amounts return the same
    reservations. Prints the reservations. Then `commit` or `rollback` them;
    otherwise they expire.
    """

    example = "cyborg-quota reserve --project P --consumer ARQ-UUID gpu=1 fpga=2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser, required=True)
        arguments.add_consumer_and_group(parser)
        parser.add_argument(
            "--expire",
            type=int,
            metavar="SECONDS",
            help="the lifetime (default: [quota] reservation_expire)",
        )
        parser.add_argument(
            "--source",
            metavar="NAME",
            help="the program that reserves, if several share the ledger: `reconcile` ignores other sources",
        )
        parser.add_argument(
            "--provider",
            metavar="PROVIDER",
            help="take capacity of this provider (a name or UUID), or of `any` one that fits; prints the provider",
        )
        parser.add_argument(
            "--pod",
            metavar="POD",
            help="with --provider any: of a provider of this pod, or of the pod that `select` finds for the project, "
            "to which it is then bound; prints the pod",
        )
        parser.add_argument("--zone", metavar="ZONE", help="with --pod select: the availability zone (default: any)")
        pod.add_affinity(parser, "with --pod select: a tag that the pod must have; may be repeated")
        arguments.add_amounts(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        deltas = arguments.once_each(parsed_args.deltas, "amounts")
        chosen = _pod(parsed_args)
        provider = parsed_args.provider
        claim = Claim(parsed_args.consumer, deltas, source=parsed_args.source, provider=provider, pod=chosen)
        uuids = self.engine.reserve_many(
            self.context, [claim], parsed_args.expire, parsed_args.project, group=parsed_args.group
        )
        reservations = self.engine.list_reservations(self.context, reservations=uuids)
        if provider is None:
            return COLUMNS, _rows(reservations)
        rows = zip(_rows(reservations), reservations, strict=True)
        if chosen is None:
            return (*COLUMNS, "provider"), [(*values, formats.Optional(one.provider)) for values, one in rows]
        used = self.engine.capacity.show_provider(self.context, str(reservations[0].provider))  # the same one for all
        return (*COLUMNS, "provider", "pod"), [(*values, used.name, formats.Optional(used.pod)) for values, _ in rows]


def _pod(parsed: argparse.Namespace) -> str | PodChoice | None:
    """The pod of the claim. Raises BadUsage."""
    if parsed.pod == SELECT_TEXT:
        return PodChoice(parsed.zone, pod.tags(parsed.affinity))
    if parsed.zone is not None or parsed.affinity:
        raise BadUsage("--zone and --affinity need --pod select.")
    return None if parsed.pod is None else str(parsed.pod)


class _Settle(base.Command):
    """A command on existing reservations."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_selection(parser)


class Commit(_Settle):
    """Commit reservations: the accelerators are attached and count as used.

    Commits all selected reservations, or none. Committed ones stay committed. With
    --known-as, the UUIDs are of reservations without a consumer, and the name
    becomes their consumer.
    """

    example = "cyborg-quota commit 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--known-as", metavar="NAME", help="the consumer that holds the reservations (given by UUID) from now on"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.commit(self.context, **arguments.selection(parsed_args), known_as=parsed_args.known_as)


class Rollback(_Settle):
    """Roll back reservations: the attach failed, and the amounts are free again.

    Rolls back all selected reservations, or none. Ended ones stay as they are. A
    committed one is refused: use `release`.
    """

    example = "cyborg-quota rollback --project P --consumer ARQ-UUID"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.rollback(self.context, **arguments.selection(parsed_args))


class Release(_Settle):
    """Release reservations, committed or not: the amounts are free again.

    Selects by UUID, or by --consumer or --group of a project. Ended reservations
    stay as they are.
    """

    example = "cyborg-quota release --project P --group INSTANCE-UUID"

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.release(self.context, **arguments.selection(parsed_args))


class Extend(_Settle):
    """Set a new expiry time, counted from now, for uncommitted reservations."""

    example = "cyborg-quota extend --project P --consumer ARQ-UUID --expire 3600"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--expire",
            type=int,
            metavar="SECONDS",
            help="the lifetime from now (default: [quota] reservation_expire)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.extend(self.context, expire=parsed_args.expire, **arguments.selection(parsed_args))


class Resize(base.Lister):
    """Set new amounts of what a consumer holds, and print its reservations.

    The reservations keep their UUIDs and states. A growth must fit within the
    limits and the capacity; a reduction ignores limits. The command may be
    repeated. With --expect, nothing changes if the consumer holds other amounts.
    """

    example = "cyborg-quota resize --project P --consumer VOLUME-UUID gpu=4 --expect gpu=2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser, required=True)
        parser.add_argument("--consumer", required=True, metavar="NAME", help="the consumer that holds the resources")
        parser.add_argument(
            "--expect",
            action="append",
            default=[],
            type=arguments.amount,
            metavar="RESOURCE=AMOUNT",
            help="the amount before; can be repeated",
        )
        parser.add_argument(
            "amounts", nargs="+", type=arguments.amount, metavar="RESOURCE=AMOUNT", help="the new amount, as in gpu=4"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        amounts = arguments.once_each(parsed_args.amounts, "amounts")
        expected = arguments.once_each(parsed_args.expect, "expected amounts") or None
        project, consumer = parsed_args.project, parsed_args.consumer
        self.engine.resize(self.context, amounts, project, consumer=consumer, expected=expected)
        return COLUMNS, _rows(_live(self.engine.get_reservations(self.context, project, consumer=consumer)))


class Transfer(base.Lister):
    """Transfer all that a consumer holds to another project, and print its reservations.

    The limits of the receiving project and of its ancestors apply. The reservations
    keep their UUIDs, states and providers. The command may be repeated while the
    receiving project holds them; after that, it finds no reservation.
    """

    example = "cyborg-quota transfer --project P --consumer ARQ-UUID --to-project Q"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser, required=True)
        parser.add_argument("--consumer", required=True, metavar="NAME", help="the consumer that holds the resources")
        parser.add_argument("--to-project", required=True, metavar="PROJECT", help="the project that receives them")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        receiver, consumer = parsed_args.to_project, parsed_args.consumer
        self.engine.transfer(self.context, receiver, parsed_args.project, consumer=consumer)
        return COLUMNS, _rows(_live(self.engine.get_reservations(self.context, receiver, consumer=consumer)))


def _live(reservations: Iterable[Reservation]) -> list[Reservation]:
    return [reservation for reservation in reservations if reservation.ended_at is None]


class List(base.Lister):
    """List the reservations that match all given options, oldest first."""

    example = "cyborg-quota reservation list --project P --state reserved -f json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)
        parser.add_argument("--state", choices=STATES, help="only reservations in this state")
        arguments.add_consumer_and_group(parser)
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="UUID", help="start after this reservation")
        paging.add_resource(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        reservations = self.engine.list_reservations(
            self.context,
            parsed_args.project,
            state=parsed_args.state,
            consumer=parsed_args.consumer,
            group=parsed_args.group,
            limit=parsed_args.limit,
            after=parsed_args.marker,
            resource=parsed_args.resource,
        )
        return COLUMNS, _rows(reservations)


class Show(base.ShowOne):
    """Show one reservation, with the times when it was created and when it ended."""

    example = "cyborg-quota reservation show 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("uuid", metavar="UUID", help="the UUID of the reservation")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        reservations = self.engine.list_reservations(self.context, reservations=[parsed_args.uuid])
        if not reservations:
            raise exceptions.ReservationNotFound(parsed_args.uuid)
        return ALL_COLUMNS, _values(reservations[0])


class Expire(base.ShowOne):
    """Expire all overdue reservations, and print their number.

    The service cyborg-quota-expirer does this periodically.
    """

    example = "cyborg-quota expire"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "reservations") as progress:
            return ("expired",), (self.engine.expire(self.context, progress=progress),)
