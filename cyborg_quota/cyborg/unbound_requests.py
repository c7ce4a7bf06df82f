# SPDX-License-Identifier: Apache-2.0
"""Limit the unbound ARQs of a project: [cyborg] max_unbound_requests. Runs in Cyborg's API.

The limit protects Cyborg's table, and is not a quota. ARQs are counted before they are created, without a lock, so
concurrent calls may together exceed the limit by the number that each of them creates. An exact limit would need a lock
that one POST of a project holds during all of its calls to the conductor.
"""

from __future__ import annotations

from typing import Any

from cyborg.common import exception
from cyborg.db import api as db_api

from cyborg_quota.cyborg import arq_records
from cyborg_quota.cyborg.mapping import requests_of


def check(context: Any, device_profile_id: int, maximum: int) -> None:
    """Refuse a POST after which a project would have more than ``maximum`` ARQs without an instance.

    Called before the first ARQ is created, so that all of them are created or none. Reads at most ``maximum`` + 1 rows.
    Raises Cyborg's Forbidden.
    """
    db = db_api.get_instance()
    requested = sum(map(requests_of, arq_records.groups_of(context, device_profile_id)))
    # ARQs with an instance belong to Nova, which deletes those that it could not bind.
    unbound = db.extarq_list(
        context, project_id=context.project_id, instance_uuid=db_api.NULL_FILTER, limit=max(maximum - requested, 0) + 1
    )
    if len(unbound) + requested > maximum:
        raise exception.Forbidden(
            f"Quota exceeded: project {context.project_id} may have {maximum} accelerator requests that are not bound, "
            f"requested {requested} more"
        )
