# SPDX-License-Identifier: Apache-2.0
"""Whether a request would be granted now, and if not, why."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Caller, Json
from cyborg_quota.types import Over


def check(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/check"""
    amounts = call.body["check"]
    context = Caller(call.project_id, call.is_admin)
    try:
        violations = [_violation(over) for over in call.engine.check(context, amounts, call.project_id)]
    except exceptions.LimitNotSet as error:
        over = Over(call.project_id, error.resource, "project", 0, amounts[error.resource], None, None)
        violations = [{**_violation(over), "limit": None}]
    return {"granted": not violations, "violations": violations}


def _violation(over: Over) -> Json:
    return {
        "project_id": None if over.scope == "total" else over.project_id,
        "resource": over.resource,
        "scope": over.scope,
        "limit": over.limit,
        "requested": over.requested,
        "in_use": over.used,
        "reserved": over.reserved,
        "subtree": over.subtree,
    }
