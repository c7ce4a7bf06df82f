# SPDX-License-Identifier: Apache-2.0
"""Commands on reservations: reserve, commit, rollback, release, extend, resize, transfer and expire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyborg_quota import Claim, Reservation
from cyborg_quota.cli import base
from cyborg_quota.ledger.operations import COLUMNS, PROVIDER
from cyborg_quota.surface import arguments
from cyborg_quota.surface.operations import Argument, OneOf, Operation, Table, cells


def _reserve(
    run: base.Run, *, project_id: str, deltas: dict[str, int], expire: int | None, group: str | None, **given: Any
) -> Table:
    claim = Claim(deltas=deltas, **given)
    uuids = run.engine.reserve_many(run.context, [claim], expire, project_id, group=group)
    reservations = run.engine.list_reservations(run.context, reservations=uuids)
    return Table(COLUMNS if claim.provider is None else (*COLUMNS, PROVIDER), reservations)


Reserve = base.generate(
    Operation(
        """Reserve accelerators for a project, if its limits allow.

        With --consumer, the command may be repeated: the same amounts return the same
        reservations. Prints the reservations. Then `commit` or `rollback` them;
        otherwise they expire.
        """,
        "cyborg-quota reserve --project P --consumer ARQ-UUID gpu=1 fpga=2",
        _reserve,
        (
            arguments.project(required=True),
            *arguments.CONSUMER_AND_GROUP,
            Argument(
                "--expire",
                type=arguments.lifetime,
                metavar="SECONDS",
                help="the lifetime (default: [quota] reservation_expire)",
            ),
            Argument(
                "--source",
                metavar="NAME",
                help="the program that reserves, if several share the ledger: `reconcile` ignores other sources",
            ),
            Argument(
                "--provider",
                metavar="PROVIDER",
                help="take capacity of this provider (a name or UUID), or of `any` one that fits; prints the provider",
            ),
            arguments.pairs("deltas", "the amount of a resource, as in gpu=2"),
        ),
        COLUMNS,
    )
)

Commit = base.generate(
    Operation(
        """Commit reservations: the accelerators are attached and count as used.

        Commits all selected reservations, or none. Committed ones stay committed. With
        --known-as, the UUIDs are of reservations without a consumer, and the name
        becomes their consumer.
        """,
        "cyborg-quota commit 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77",
        lambda run, known_as, **given: run.engine.commit(
            run.context, **arguments.selection(**given), known_as=known_as
        ),
        (
            *arguments.SELECTION,
            Argument(
                "--known-as",
                metavar="NAME",
                help="the consumer that holds the reservations (given by UUID) from now on",
            ),
        ),
    )
)

Rollback = base.generate(
    Operation(
        """Roll back reservations: the attach failed, and the amounts are free again.

        Rolls back all selected reservations, or none. Ended ones stay as they are. A
        committed one is refused: use `release`.
        """,
        "cyborg-quota rollback --project P --consumer ARQ-UUID",
        lambda run, **given: run.engine.rollback(run.context, **arguments.selection(**given)),
        arguments.SELECTION,
    )
)

Release = base.generate(
    Operation(
        """Release reservations, committed or not: the amounts are free again.

        Selects by UUID, or by --consumer or --group of a project. Ended reservations
        stay as they are.
        """,
        "cyborg-quota release --project P --group INSTANCE-UUID",
        lambda run, **given: run.engine.release(run.context, **arguments.selection(**given)),
        arguments.SELECTION,
    )
)

Extend = base.generate(
    Operation(
        "Set a new expiry time, counted from now, for uncommitted reservations.",
        "cyborg-quota extend --project P --consumer ARQ-UUID --expire 3600",
        lambda run, expire, **given: run.engine.extend(run.context, expire=expire, **arguments.selection(**given)),
        (
            *arguments.SELECTION,
            Argument(
                "--expire",
                type=arguments.lifetime,
                metavar="SECONDS",
                help="the lifetime from now (default: [quota] reservation_expire)",
            ),
        ),
    )
)


def _resize(run: base.Run, amounts: Any, expect: Any, **holder: Any) -> list[Reservation]:
    expected = arguments.once_each(expect) or None
    run.engine.resize(run.context, amounts, expected=expected, **holder)
    uuid = holder.pop("reservation")
    return _live(run.engine.list_reservations(run.context, reservations=uuid and [uuid], **holder))


def _live(reservations: Iterable[Reservation]) -> list[Reservation]:
    return [reservation for reservation in reservations if reservation.ended_at is None]


Resize = base.generate(
    Operation(
        """Set new amounts of what a consumer holds, and print its reservations.

        With --reservation, set that of one reservation. Reservations keep their UUIDs
        and states. A growth must fit within the limits and the capacity; a reduction
        ignores limits. The command may be repeated. With --expect, nothing changes if
        the consumer or the reservation holds other amounts.
        """,
        "cyborg-quota resize --project P --consumer VOLUME-UUID gpu=4 --expect gpu=2",
        _resize,
        (
            arguments.project(),
            OneOf(
                Argument("--consumer", metavar="NAME", help="the consumer that holds the resources; needs --project"),
                Argument("--reservation", metavar="UUID", help="the UUID of the reservation"),
            ),
            Argument(
                "--expect",
                action="append",
                default=[],
                type=arguments.amount,
                metavar="RESOURCE=AMOUNT",
                help="the amount before; can be repeated",
            ),
            arguments.pairs("amounts", "the new amount, as in gpu=4"),
        ),
        COLUMNS,
    )
)


def _transfer(run: base.Run, project_id: str, consumer: str, to_project: str) -> list[Reservation]:
    run.engine.transfer(run.context, to_project, project_id, consumer=consumer)
    return _live(run.engine.get_reservations(run.context, to_project, consumer=consumer))


Transfer = base.generate(
    Operation(
        """Transfer all that a consumer holds to another project, and print its reservations.

        The limits of the receiving project and of its ancestors apply. The reservations
        keep their UUIDs, states and providers. The command may be repeated while the
        receiving project holds them; after that, it finds no reservation.
        """,
        "cyborg-quota transfer --project P --consumer ARQ-UUID --to-project Q",
        _transfer,
        (
            arguments.project(required=True),
            Argument("--consumer", required=True, metavar="NAME", help="the consumer that holds the resources"),
            Argument("--to-project", required=True, metavar="PROJECT", help="the project that receives them"),
        ),
        COLUMNS,
    )
)

Expire = base.generate(
    Operation(
        """Expire all overdue reservations, and print their number.

        The service cyborg-quota-expirer does this periodically.
        """,
        "cyborg-quota expire",
        lambda run, progress: (run.engine.expire(run.context, progress=progress),),
        columns=cells("expired"),
        is_list=False,
        progress="reservations",
    )
)
