# SPDX-License-Identifier: Apache-2.0
"""The overrides of a project: limits that apply between a start and an end."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.handlers.history import parse_time
from cyborg_quota.types import LimitOverride


def list_overrides(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/overrides"""
    return {"overrides": [render("Override", one) for one in _list(call)]}


def _list(call: Call) -> list[LimitOverride]:
    """The overrides of the project: none if another service or a file stores the limits."""
    try:
        return call.engine.limits.list_overrides(call.elevated, call.project_id)[0]
    except exceptions.LimitsReadOnly:
        return []


def set_override(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/overrides"""
    wanted = call.body["override"]
    made = call.engine.limits.set_overrides(
        call.context,
        wanted["quota"],
        call.project_id,
        parse_time("until", wanted["until"]),
        start=parse_time("start", wanted["start"]) if "start" in wanted else None,
        reason=call.body.get("reason"),
    )
    return {"overrides": [render("Override", one) for one in made]}


def cancel_override(call: Call) -> None:
    """DELETE /v2/quotas/{project_id}/overrides/{override_id}"""
    override_id = call.path["override_id"]
    if override_id not in {one.id for one in _list(call)}:
        raise exceptions.OverrideNotFound(override_id)
    call.engine.limits.cancel_overrides(call.context, [override_id], reason=call.query.get("reason"))
