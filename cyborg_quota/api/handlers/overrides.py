# SPDX-License-Identifier: Apache-2.0
"""The overrides of a project: limits that apply between a start and an end."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.handlers.history import parse_time
from cyborg_quota.limits import operations


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
    if override_id not in {one.id for one in operations.read_overrides(call, project_id=call.project_id)[0]}:
        raise exceptions.OverrideNotFound(override_id)
    call.engine.limits.cancel_overrides(call.context, [override_id], reason=call.query.get("reason"))
