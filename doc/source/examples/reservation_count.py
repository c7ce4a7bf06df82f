# SPDX-License-Identifier: Apache-2.0
"""An operation: the number of reservations, as a command and as a call of the REST API."""

from __future__ import annotations

from typing import Any

from cyborg_quota import policy
from cyborg_quota.surface import arguments
from cyborg_quota.surface.operations import COUNT, Argument, Column, Operation, Route, numbered
from cyborg_quota.types import STATES


def _count(caller: Any, **given: Any) -> tuple[int]:
    return (len(list(caller.engine.list_reservations(caller.elevated, **given))),)


RESERVATION_COUNT = Operation(
    "Count the reservations that match all given options.",
    "cyborg-quota reservation count --project P --state reserved",
    _count,
    (arguments.project(), Argument("--state", choices=STATES, help="only reservations in this state")),
    numbered(Column("count", schema=COUNT)),
    is_list=False,
    words="reservation count",
    route=Route("GET", "/v2/quota_reservations/count", policy.ALL_RESERVATIONS, "reservations", "ReservationCount"),
)
