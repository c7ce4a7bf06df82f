# SPDX-License-Identifier: Apache-2.0
"""The overrides of a project: limits that apply between a start and an end."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.handlers.history import parse_time
from cyborg_quota.api.handlers.quotas import with_warnings


def set_override(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/overrides"""
    wanted = call.body["override"]
    call.require_project(call.project_id)
    made = call.engine.limits.set_overrides(
        call.context,
        wanted["quota"],
        call.project_id,
        parse_time("until", wanted["until"]),
        start=parse_time("start", wanted["start"]) if "start" in wanted else None,
        reason=call.body.get("reason"),
    )
    return with_warnings(call, {"overrides": [render("Override", one) for one in made]}, wanted["quota"])
