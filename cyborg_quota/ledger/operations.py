# SPDX-License-Identifier: Apache-2.0
"""The operations that read reservations."""

from __future__ import annotations

from typing import Any, Final

from cyborg_quota import exceptions, policy
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.operations import (
    INTEGER,
    NAME,
    TEXT,
    TIME,
    Argument,
    Column,
    Operation,
    Route,
    columns,
    nullable,
)
from cyborg_quota.types import COMMITTED, STATES, Reservation

_PATH: Final = "/v2/quota_reservations"
COLUMNS: Final = (
    *columns("uuid", "project_id", "resource", schema=NAME),
    Column("delta", schema=INTEGER, rest="amount"),
    Column("state", schema={"enum": list(STATES)}),
    *columns("consumer", "group", cell=formats.Optional, schema=nullable(TEXT)),
    Column("source", formats.Optional),
    Column(
        "expire",
        formats.timestamp,
        lambda reservation: None if reservation.state == COMMITTED else reservation.expire,
        nullable(TIME),
    ),
)
PROVIDER: Final = Column("provider", formats.Optional)


def _show(caller: Any, uuid: str) -> Reservation:
    for reservation in caller.engine.list_reservations(caller.elevated, reservations=[uuid]):
        record: Reservation = reservation
        return record
    raise exceptions.ReservationNotFound(uuid)


OPERATIONS: Final = (
    Operation(
        "List the reservations that match all given options, oldest first.",
        "cyborg-quota reservation list --project P --state reserved -f json",
        lambda caller, **given: caller.engine.list_reservations(caller.elevated, **given),
        (
            arguments.project(),
            Argument("--state", choices=STATES, help="only reservations in this state"),
            *arguments.CONSUMER_AND_GROUP,
            paging.LIMIT,
            paging.marker("UUID", "start after this reservation"),
            paging.RESOURCE,
        ),
        COLUMNS,
        words="reservation list",
        route=Route("GET", _PATH, None, "reservations", "Reservation"),
    ),
    Operation(
        "Show one reservation, with the times when it was created and when it ended.",
        "cyborg-quota reservation show 6f2c1d1e-6a53-4c5c-9c0e-3f0f4f1f2a77",
        _show,
        (Argument("uuid", metavar="UUID", help="the UUID of the reservation"),),
        (
            *COLUMNS,
            *columns("created_at", "ended_at", cell=formats.timestamp, schema=nullable(TIME)),
            PROVIDER._replace(schema=nullable(NAME)),
        ),
        is_list=False,
        words="reservation show",
        route=Route(
            "GET", f"{_PATH}/{{uuid}}", policy.ALL_RESERVATIONS, "reservation", "OneReservation", errors=(404,)
        ),
    ),
)
