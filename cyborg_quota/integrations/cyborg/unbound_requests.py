# SPDX-License-Identifier: Apache-2.0
"""A limit on the ARQs that a project makes and does not bind: [cyborg] max_unbound_requests. Runs in Cyborg's API.

It keeps a project from filling Cyborg's table; it is no quota. ARQs are counted before they are made, without a lock:
calls that run at the same time may together pass the limit by what each of them makes. An exact count would make one
POST of a project wait for the other, through all of its calls to the conductor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cyborg.common import exception
from cyborg.db import api as db_api

from cyborg_quota.integrations.cyborg import arq_records
from cyborg_quota.integrations.cyborg.mapping import requests_of


def check(context: Any, device_profile_id: int, maximum: int) -> None:
    """Refuse a POST that would leave a project with more than ``maximum`` ARQs that have no instance.

    Called before the first ARQ is made, so that all of them are made or none. Reads at most ``maximum`` + 1 rows.
    Raises Cyborg's Forbidden.
    """
    db = db_api.get_instance()
    wanted = _wanted(arq_records.groups_of(context, device_profile_id))
    # With an instance, it is Nova's, which deletes what it could not bind.
    found = db.extarq_list(
        context, project_id=context.project_id, instance_uuid=db_api.NULL_FILTER, limit=max(maximum - wanted, 0) + 1
    )
    if len(found) + wanted > maximum:
        raise exception.Forbidden(
            f"Quota exceeded: project {context.project_id} may have {maximum} accelerator requests that are not bound, "
            f"requested {wanted} more"
        )


def _wanted(groups: Iterable[Mapping[str, str]]) -> int:
    return sum(requests_of(group) for group in groups)
