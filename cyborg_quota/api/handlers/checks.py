# SPDX-License-Identifier: Apache-2.0
"""Whether a request would be granted now, and if not, why."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.handlers import pod_limits
from cyborg_quota.types import Over


def check(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/check"""
    amounts, pod = call.body["check"], call.body.get("pod")
    if pod is not None:
        pod_limits.require_pod(call, pod)
    found = call.engine.check(call.elevated, amounts, call.project_id, pod=pod, redacted=not call.is_admin)
    violations = [_violation(over, in_pod=pod is not None) for over in found]
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
