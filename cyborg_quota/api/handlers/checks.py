# SPDX-License-Identifier: Apache-2.0
"""Whether a request would be granted now, and if not, why."""

from __future__ import annotations

from cyborg_quota import enforcement, exceptions
from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.handlers import pod_limits
from cyborg_quota.types import Over


def check(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/check"""
    amounts, pod = call.body["check"], call.body.get("pod")
    if pod is not None:
        pod_limits.require_pod(call, pod)
    try:
        found = call.engine.check(call.elevated, amounts, call.project_id, pod=pod)
        visible = found if call.is_admin else enforcement.redact(found, call.project_id)
        violations = [_violation(over, in_pod=pod is not None) for over in visible]
    except exceptions.LimitNotSet as error:
        over = Over(call.project_id, error.resource, "project", 0, amounts[error.resource], None, None)
        violations = [{**_violation(over, in_pod=pod is not None), "limit": None}]
    return {"granted": not violations, "violations": violations}


def _violation(over: Over, *, in_pod: bool) -> Json:
    return {
        "project_id": None if over.scope == "total" else over.project_id,
        "resource": over.resource,
        "scope": over.scope,
        "limit": over.limit,
        "requested": over.requested,
        "in_use": over.used,
        "reserved": over.reserved,
        "subtree": over.subtree,
        **({"pod": over.pod} if in_pod else {}),
    }
