# SPDX-License-Identifier: Apache-2.0
"""Lists over projects: reservations."""

from __future__ import annotations

from typing import Any

from cyborg_quota import policy
from cyborg_quota.api.call import Call, Json, moment, render
from cyborg_quota.api.errors import Refused
from cyborg_quota.types import COMMITTED


def list_reservations(call: Call) -> Json:
    """GET /v2/quota_reservations

    Without a project: those of all projects if the policy allows it, or else those of the caller's project.
    """
    project_id = call.project_of_list(policy.RESERVATIONS, policy.ALL_RESERVATIONS)
    marker = call.query.get("marker")
    filters: dict[str, Any] = {name: call.query.get(name) for name in ("state", "resource", "consumer", "group")}
    # The marker must match too: otherwise the answer would reveal that another project has this reservation (I8).
    if marker is not None and not call.engine.list_reservations(call.elevated, project_id, reservations=[marker]):
        raise Refused(400, "The marker is not a reservation of this list.")
    reservations = call.engine.list_reservations(
        call.elevated, project_id, limit=call.limit + 1, after=marker, **filters
    )
    return call.page(
        "reservations",
        reservations,
        # (A committed one does not expire.)
        lambda row: render("Reservation", row, expire=None if row.state == COMMITTED else moment(row.expire)),
        lambda row: row.uuid,
    )
